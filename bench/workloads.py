"""
The workloads by name: what is stored, what is requested, and which servers take part.

workloads.toml lists those that differ in data only, cases.py those with steps of their own.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.load import Kind, Load, Protocol, Tool
from bench.machine import MIB
from bench.servers import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterable

KIB: Final = 1024


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
    """

    rounds: int = 5
    seconds: float = 1
    keys: int = 40_000
    large_keys: int = 8_000
    sample: int = 4_000
    sequence: int = 12_000
    warms_up: bool = True


FULL: Final = Scale()
QUICK: Final = Scale(
    rounds=1,
    keys=4_000,
    large_keys=1_000,
    sample=1_000,
    sequence=3_000,
    warms_up=False,
)
COMPARISON_ROUNDS: Final = 15  # Two revisions differ by little.


def dataset(name: str, scale: Scale) -> Dataset:
    """Return a dataset by its name, which may end with `, written`: not stored before."""
    size, _, written = name.partition(", ")
    sizes = {
        "small": (scale.keys, KIB),
        "few": (scale.keys // 40, KIB),  # All of which memcached holds.
        "large": (scale.large_keys, 64 * KIB),
        "huge": (scale.large_keys // 8, 512 * KIB),
    }
    count, value_bytes = sizes[size]
    found = Dataset(count=count, value_bytes=value_bytes)
    # Writing to memory that the machine has not used before costs more than writing to it
    # again, above all in a virtual machine: volumes that are written to are small, so that
    # they are soon overwritten.
    return replace(found, is_stored=False, volume_size=64 * MIB) if written else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    One thing to measure.

    Attributes:
        name: Selects it on the command line.
        text: What is done, in one line.
        dataset: The name of what is stored.
        kind: Of the requests, see `load.Load`.
        contenders: By the names of `servers.Contenders`; the first is compared with
            the others.
        is_cold: Whether files are read from the disk.
        is_extra: Whether it is measured only if it is named.
        protocol: Of the requests, if a contender speaks it.
        depth: How many requests are under way on each connection.
        tool: What sends the requests.
    """

    name: str
    text: str
    dataset: str
    kind: Kind
    contenders: tuple[str, ...]
    is_cold: bool = False
    is_extra: bool = False
    protocol: Protocol = "http"
    depth: int = 1
    tool: Tool = "load"

    def load(self, scale: Scale) -> Load:
        """Return the requests of one turn."""
        return Load(
            kind=self.kind,
            dataset=dataset(self.dataset, scale),
            seconds=scale.seconds,
            sample=scale.sequence if self.kind == "sequential" else scale.sample,
            protocol=self.protocol,
            depth=self.depth,
            tool=self.tool,
        )


def _read() -> Iterable[Workload]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, fields in tomllib.loads(text).items():
        contenders = tuple(fields.pop("contenders"))
        yield Workload(name=name, contenders=contenders, **fields)


WORKLOADS: Final = tuple(_read())


def select(names: Iterable[str], *, compares: bool = False) -> list[Workload]:
    """
    Return workloads in the order in which they are measured.

    Args:
        names: None for all but the extra ones. Unknown ones are ignored.
        compares: Return the workloads whose first contender is volcache, with two
            contenders: volcache and `base`, another revision of it.
    """
    wanted = set(names) or {found.name for found in WORKLOADS if not found.is_extra}
    chosen = [found for found in WORKLOADS if found.name in wanted]
    if not compares:
        return chosen
    return [
        replace(found, contenders=("volcache", "base"))
        for found in chosen
        if found.contenders[0] == "volcache"
    ]
