"""
The workloads by name: what is stored, what is requested, and which servers take part.

The first contender of a workload is compared with the others. Workloads with the same
dataset stand together, so that its servers are filled once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from bench.load import Load, Protocol
from bench.machine import MIB
from bench.servers import EXTSTORE, FLOOR, ONE_FILE_PER_KEY, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

KIB: Final = 1024
# Seconds apart from those under load, measured on two cores and rounded up.
TURN_SECONDS: Final = 0.1  # Start of the load, sync.
START_SECONDS: Final = 0.7  # Start and end of a server.
STORED_SECONDS: Final = 1 / 20_000  # To store one key in one server.
STORED_BYTE_SECONDS: Final = 1 / (250 * MIB)
READ_SECONDS: Final = 1 / 20_000  # To read one key from the disk.
DROP_SECONDS: Final = 1 / 40_000  # To drop the pages of one key's file.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """
    How much is measured.

    Attributes:
        rounds: In each of which every contender has one turn.
        seconds: Of load in each turn.
        keys: Of 1 KiB.
        large_keys: Of 64 KiB.
        sample: Keys that are read from a cold disk in random order.
        sequence: Keys that are read from a cold disk in the order they were stored.
        warms_up: Whether each contender has a turn that does not count first.
        connections: With a request under way.
    """

    rounds: int
    seconds: float
    keys: int
    large_keys: int
    sample: int
    sequence: int
    warms_up: bool
    connections: int = 20


FULL: Final = Scale(
    rounds=5,
    seconds=1,
    keys=40_000,
    large_keys=8_000,
    sample=4_000,
    sequence=12_000,
    warms_up=True,
)
QUICK: Final = Scale(
    rounds=1,
    seconds=1,
    keys=4_000,
    large_keys=1_000,
    sample=1_000,
    sequence=3_000,
    warms_up=False,
)
COMPARISON_ROUNDS: Final = 15  # Two revisions differ by little.


def _small(scale: Scale) -> Dataset:
    return Dataset(count=scale.keys, value_bytes=KIB)


def _large(scale: Scale) -> Dataset:
    return Dataset(count=scale.large_keys, value_bytes=64 * KIB)


# Writing to memory that the machine has not used before costs more than writing to it
# again, above all in a virtual machine: volumes that are written to are small, so that
# they are soon overwritten.
def _small_written(scale: Scale) -> Dataset:
    return Dataset(
        count=scale.keys, value_bytes=KIB, is_stored=False, volume_size=64 * MIB
    )


def _large_written(scale: Scale) -> Dataset:
    return Dataset(
        count=scale.large_keys,
        value_bytes=64 * KIB,
        is_stored=False,
        volume_size=64 * MIB,
    )


def _huge_written(scale: Scale) -> Dataset:
    return replace(
        _large_written(scale), count=scale.large_keys // 8, value_bytes=512 * KIB
    )


def _promoted(scale: Scale) -> Dataset:
    """Return few keys, all of which memcached holds."""
    return Dataset(count=scale.keys // 40, value_bytes=KIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    One thing to measure.

    Attributes:
        name: Selects it on the command line.
        text: What is done, in one line.
        dataset: Returns what is stored.
        kind: Of the requests, see `load.Load`.
        contenders: By the names of `servers.Contenders`; the first is compared with
            the others.
        is_cold: Whether files are read from the disk.
        protocol: Of the requests, if a contender speaks it.
        depth: How many requests are under way on each connection.
    """

    name: str
    text: str
    dataset: Callable[[Scale], Dataset]
    kind: Literal["get", "put", "mix", "miss", "sample", "sequential"]
    contenders: tuple[str, ...]
    is_cold: bool = False
    protocol: Protocol = "http"
    depth: int = 1

    def load(self, scale: Scale) -> Load:
        """Return the requests of one turn."""
        return Load(
            kind=self.kind,
            dataset=self.dataset(scale),
            seconds=scale.seconds,
            connections=scale.connections,
            sample=scale.sequence if self.kind == "sequential" else scale.sample,
            protocol=self.protocol,
            depth=self.depth,
        )

    def seconds(self, scale: Scale) -> float:
        """Estimate the seconds of all turns."""
        load = self.load(scale)
        turn = load.seconds
        if self.is_cold:
            turn = load.count * READ_SECONDS + load.dataset.count * DROP_SECONDS
        warm_up = int(scale.warms_up and not self.is_cold)
        turns = len(self.contenders) * (scale.rounds + warm_up)
        return turns * (turn + TURN_SECONDS)


OTHERS: Final = (FLOOR, "nginx", "memcached", ONE_FILE_PER_KEY, "limit")
MEMCACHE: Final = ("volcache", "memcached", EXTSTORE, "redis", "limit")
ON_DISK: Final = ("nginx", ONE_FILE_PER_KEY)


def _memcache(
    dataset: Callable[[Scale], Dataset], kind: Literal["get", "put"]
) -> Iterable[Workload]:
    """Return the ways of reading or writing by memcached's protocols."""
    verb = "read" if kind == "get" else "write"
    ways: tuple[tuple[str, Protocol, int], ...]
    ways = (("memcache", "text", 1), ("pipelined", "text", 16), ("meta", "meta", 1))
    for name, protocol, depth in ways:
        many = f", {depth} pipelined" if depth > 1 else ""
        yield Workload(
            name=f"{name}-{verb}",
            text=f"{kind} of 1 KiB, random keys, memcached's {protocol} protocol{many}",
            dataset=dataset,
            kind=kind,
            contenders=MEMCACHE,
            protocol=protocol,
            depth=depth,
        )


WORKLOADS: Final = (
    Workload(
        name="write-1k",
        text="PUT of 1 KiB, random keys",
        dataset=_small_written,
        kind="put",
        contenders=("volcache", *OTHERS),
    ),
    *_memcache(_small_written, "put"),
    Workload(
        name="write-64k",
        text="PUT of 64 KiB, random keys",
        dataset=_large_written,
        kind="put",
        contenders=("volcache", *OTHERS),
    ),
    Workload(
        name="write-512k",
        text="PUT of 512 KiB, random keys",
        dataset=_huge_written,
        kind="put",
        contenders=("volcache", FLOOR, "nginx", "limit"),
    ),
    Workload(
        name="read-64k",
        text="GET of 64 KiB, random keys, from the page cache",
        dataset=_large,
        kind="get",
        contenders=("volcache", *OTHERS),
    ),
    Workload(
        name="read-1k",
        text="GET of 1 KiB, random keys, from the page cache",
        dataset=_small,
        kind="get",
        contenders=("volcache", FLOOR, "nginx", "nginx, open_file_cache", *OTHERS[2:]),
    ),
    Workload(
        name="misses",
        text="GET of keys that are not stored",
        dataset=_small,
        kind="miss",
        contenders=("volcache", "floor 404", *OTHERS[1:]),
    ),
    Workload(
        name="through-nginx",
        text="GET of 1 KiB through nginx, CPU of nginx and volcache together",
        dataset=_small,
        kind="get",
        contenders=("through nginx", "volcache", "nginx"),
    ),
    Workload(
        name="read-1k-cold",
        text="GET of 1 KiB, random keys, each at most once, from the disk",
        dataset=_small,
        kind="sample",
        contenders=("volcache", *ON_DISK),
        is_cold=True,
    ),
    Workload(
        name="sequential-cold",
        text="GET of 1 KiB, keys in the order they were stored, from the disk",
        dataset=_small,
        kind="sequential",
        contenders=("volcache", *ON_DISK),
        is_cold=True,
    ),
    Workload(
        name="mix-95-5",
        text="95 % GET and 5 % PUT of 1 KiB, random keys",
        dataset=_small,
        kind="mix",
        contenders=("volcache", FLOOR, *ON_DISK),
    ),
    Workload(
        name="hot-tier-others",
        text="GET of 1 KiB, keys that are not promoted",
        dataset=_small,
        kind="get",
        contenders=("hot tier, other keys", "volcache"),
    ),
    *_memcache(_small, "get"),
    Workload(
        name="hot-tier",
        text="GET of 1 KiB that memcached holds, CPU of memcached and volcache together",
        dataset=_promoted,
        kind="get",
        contenders=("hot tier", "volcache", "memcached"),
    ),
)


def select(names: str, *, compares: bool = False) -> list[Workload]:
    """
    Return workloads in the order in which they are measured.

    Args:
        names: Separated by commas; empty for all.
        compares: Return the workloads whose first contender is volcache, with two
            contenders: volcache and `base`, another revision of it.

    Raises:
        ValueError: A name is unknown, or not one that can be compared; the text lists
            the names.
    """
    usable: Sequence[Workload] = WORKLOADS
    if compares:
        usable = [
            replace(workload, contenders=("volcache", "base"))
            for workload in WORKLOADS
            if workload.contenders[0] == "volcache"
        ]
    known = [workload.name for workload in usable]
    wanted = [name.strip() for name in names.split(",")] if names else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(
            f"unknown workload: {', '.join(unknown)}; choose from: {', '.join(known)}"
        )
    return [workload for workload in usable if workload.name in wanted]


def setup_seconds(workloads: Iterable[Workload], scale: Scale) -> float:
    """Estimate the seconds to start the servers and to store the datasets."""
    pairs = {
        (workload.dataset(scale), name)
        for workload in workloads
        for name in workload.contenders
    }
    seconds = 0.0
    for dataset, name in pairs:
        seconds += START_SECONDS
        if dataset.is_stored and not name.startswith(FLOOR):
            count = dataset.count
            seconds += count * STORED_SECONDS
            seconds += count * dataset.value_bytes * STORED_BYTE_SECONDS
    return seconds
