"""
Replays a trace on a store in this process: miss ratios, write amplification, requests/s.

A line `KEY` or `KEY SIZE` of the trace is a GET, followed by a PUT if it is a miss; `+KEY`
or `+KEY SIZE` is a PUT. A file whose name ends with .xz is decompressed. SIZE is the length
of the value. All GETs count, also those to the empty store; PUTs do not. Each value that is
read is checked: its length, and that it begins with its key.

The capacity is in bytes of values; for a trace without sizes it is in records, all of one
size. It is divided by the number of volumes, and room for headers and keys is added:

- Without sizes, a volume has room for capacity / volumes records, rounded up, as no record
  is divided between two volumes: 688 records in 64 volumes are 11 in each, 704 in all.
- With sizes, a volume has room for capacity / volumes bytes, rounded up, and for headers
  and keys: as much as they take next to the values of all keys of the trace. If the store
  keeps mostly small values, headers take more than that, and less is left for values.

What volumes leave unused at their ends and a volume that the store keeps free are part of
the capacity. A record larger than a volume is not stored: the next GET is a miss again.

Requests per second include the work of this script: values are made and checked.

    .venv/bin/python bench/hit_ratio.py TRACE [--capacity N] [--eviction fifo] [--compare]
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import os
import random
import re
import shutil
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from volcache.errors import ValueTooLargeError, VolcacheError
from volcache.store import Store
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from volcache.store.eviction import Eviction

# Values of a trace without sizes; together with its key, each record has the same size.
VALUE_BYTES: Final = 64
DEFAULT_CAPACITY: Final = 0.05  # of the footprint
POLICIES: Final = ("S3FIFO", "LRU", "FIFO")
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - A folder of its own is made in it.
LINE: Final = re.compile(rb"(\+?)([^\s+]\S*)(?:[ \t]+(\d+))?\s*")
HINT: Final = (
    "--compare needs libcachesim: .venv/bin/pip install -r bench/requirements.txt"
)


class TraceError(ValueError):
    """A trace cannot be replayed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in their order; `sizes` is empty if the trace has none."""

    keys: Sequence[bytes]
    sizes: Sequence[int]
    puts: Sequence[int]  # 1: a PUT that no GET asked for

    def weights(self) -> Sequence[int]:
        """Return what each request counts in bytes; 1 without sizes."""
        return self.sizes or [1] * len(self.keys)

    def requested(self) -> Sequence[int]:
        """Return the weights of the GETs."""
        return [
            weight
            for weight, is_put in zip(self.weights(), self.puts, strict=True)
            if not is_put
        ]

    def footprint(self) -> dict[bytes, int]:
        """Return the distinct keys with the size that each has first."""
        return dict(zip(reversed(self.keys), reversed(self.weights()), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The volumes that hold a capacity."""

    capacity: int
    volumes: int
    volume_size: int
    record_size: int  # of all records; 0: the values have the sizes of the trace

    def lengths(self, trace: Trace) -> Sequence[int]:
        """Return the length of the value of each request."""
        if not self.record_size:
            return trace.sizes
        room = self.record_size - RECORD_OVERHEAD_BYTES
        return [room - len(key) for key in trace.keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Misses among GETs, by number and by bytes; 0 if there is no GET."""

    object_miss: float
    byte_miss: float

    @classmethod
    def of(cls, trace: Trace, missed: Sequence[int]) -> Self:
        """Return the ratios when requests of these sizes were misses."""
        requested = trace.requested()
        return cls(
            object_miss=len(missed) / (len(requested) or 1),
            byte_miss=sum(missed) / (sum(requested) or 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a replay counts."""

    missed: list[int]  # sizes
    too_large: int
    put_bytes: int  # of records, headers included
    reinserted_bytes: int
    seconds: float


# --- The trace -----------------------------------------------------------------------


def read_trace(path: Path) -> Trace:
    """
    Read a trace.

    Raises:
        TraceError: A line is wrong, or there is none.
        OSError: The file cannot be read.
    """
    keys: list[bytes] = []
    sizes: list[int] = []
    puts = bytearray()
    known: dict[bytes, bytes] = {}  # One object for all requests of a key.
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            fields = LINE.fullmatch(line)
            if fields is None:
                raise TraceError(f"{path}:{number}: neither KEY nor KEY SIZE")
            mark, key, size = fields.groups()
            keys.append(known.setdefault(key, key))
            puts.append(bool(mark))
            if size is not None:
                sizes.append(int(size))
    if not keys:
        raise TraceError(f"{path}: no requests")
    if sizes and len(sizes) != len(keys):
        raise TraceError(f"{path}: some lines have a SIZE, others have none")
    return Trace(keys=keys, sizes=sizes, puts=puts)


def lay_out(trace: Trace, capacity: int | None, volumes: int) -> Layout:
    """
    Choose the size of the volumes.

    Args:
        trace: The requests.
        capacity: In bytes, or in records if the trace has no sizes; None: 5 % of the
            footprint.
        volumes: The number of volumes.
    """
    footprint = trace.footprint()
    total = sum(footprint.values())
    capacity = capacity or max(1, round(total * DEFAULT_CAPACITY))
    room = -(-capacity // volumes)
    record_size = 0
    if trace.sizes:
        overhead = sum(RECORD_OVERHEAD_BYTES + len(key) for key in footprint)
        room += -(-room * overhead // (total or 1))
    else:
        record_size = RECORD_OVERHEAD_BYTES + max(map(len, footprint)) + VALUE_BYTES
        room *= record_size
    return Layout(
        capacity=capacity,
        volumes=volumes,
        volume_size=VOLUME_HEADER_BYTES + room,
        record_size=record_size,
    )


# --- The replay ----------------------------------------------------------------------


class Values:
    """
    Makes and checks values: a key, and bytes that do not compress.

    Attributes:
        stored: The length of the value last stored under each key.
    """

    def __init__(self, longest: int) -> None:
        """Prepare for values of up to `longest` bytes."""
        block = random.Random(1).randbytes(1 << 16)  # noqa: S311 - Not a secret.
        self._filler = memoryview(block * (longest // len(block) + 1))
        self.stored: dict[bytes, int] = {}

    def make(self, key: bytes, length: int) -> bytes:
        """Return the value of a key; one that is shorter than the key is cut."""
        missing = length - len(key)
        return b"".join((key, self._filler[:missing])) if missing >= 0 else key[:length]

    def check(self, key: bytes, value: bytes) -> None:
        """
        Check length and beginning of a value.

        Raises:
            TraceError: It is not what was stored.
        """
        length = len(value)
        if length != self.stored.get(key) or not value.startswith(key[:length]):
            raise TraceError(f"a wrong value was read for the key {key!r}")


def replay(
    trace: Trace, open_: Callable[[], Store], layout: Layout, restarts: int
) -> Counts:
    """
    Send all requests to a store, which is stopped and started at equal distances.

    Raises:
        TraceError: A GET returned a wrong value.
        VolcacheError: The store refused.
    """
    # Local variables, because the loop is part of what is measured.
    lengths, weights = layout.lengths(trace), trace.weights()
    values = Values(max(lengths))
    make, check = values.make, values.check
    missed: list[int] = []
    too_large = put_bytes = reinserted = 0
    requests = zip(trace.keys, lengths, weights, trace.puts, strict=True)
    part = len(trace.keys) // (restarts + 1) + 1
    began = time.perf_counter()
    for _ in range(restarts + 1):
        with closing(open_()) as store:
            get, put = store.get, store.put
            for key, length, weight, is_put in islice(requests, part):
                if not is_put:
                    record = get(key)
                    if record is not None:
                        check(key, record.value)
                        continue
                    missed.append(weight)
                try:
                    put_bytes += put(key, make(key, length)).size
                except ValueTooLargeError:
                    too_large += 1
                else:
                    values.stored[key] = length
            reinserted += store.usage().eviction.disposition.copied_bytes
    seconds = time.perf_counter() - began
    return Counts(
        missed=missed,
        too_large=too_large,
        put_bytes=put_bytes,
        reinserted_bytes=reinserted,
        seconds=seconds,
    )


def open_store(
    directory: Path, layout: Layout, eviction: Eviction, reinsert_reads: float
) -> Store:
    """Open the store, which is empty at first."""
    return Store.open(
        str(directory),
        volume_size=layout.volume_size,
        volume_num=layout.volumes,
        sync_mode="none",
        eviction=eviction,
        reinsert_reads=reinsert_reads,
    )


def folder_for(layout: Layout) -> Path:
    """Return a folder in memory if it has the room, else that for temporary files."""
    needed = layout.volumes * layout.volume_size * 1.1  # with index files
    is_usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    if is_usable and shutil.disk_usage(MEMORY).free > needed:
        return MEMORY
    return Path(tempfile.gettempdir())


def measure(
    trace: Trace, layout: Layout, options: argparse.Namespace
) -> dict[str, object]:
    """
    Replay on a store in a temporary folder.

    Raises:
        TraceError: A GET returned a wrong value.
        VolcacheError: The store refused.
    """
    parent = options.directory or folder_for(layout)
    with tempfile.TemporaryDirectory(prefix="hit_ratio-", dir=parent) as folder:
        path, ratio = Path(folder) / "store", options.reinsert_reads
        counts = replay(
            trace,
            lambda: open_store(path, layout, options.eviction, ratio),
            layout,
            options.restarts,
        )
    found: dict[str, object] = {
        **asdict(Ratios.of(trace, counts.missed)),
        "write_amplification": 1 + counts.reinserted_bytes / (counts.put_bytes or 1),
        "requests_per_second": round(len(trace.keys) / counts.seconds),
        "seconds": round(counts.seconds, 3),
        "requests": len(trace.requested()),
        "misses": len(counts.missed),
        "puts": len(counts.missed) + sum(trace.puts),
        "too_large": counts.too_large,
        "put_bytes": counts.put_bytes,
        "reinserted_bytes": counts.reinserted_bytes,
        "eviction": options.eviction,
    }
    return found


# --- Other policies ------------------------------------------------------------------


def compare(trace: Trace, capacity: int) -> dict[str, Ratios] | None:
    """
    Replay on policies of libCacheSim, which have no volumes and no headers.

    A PUT is an access of the key that is not counted.

    Returns:
        None if the package is not installed.
    """
    try:
        library = importlib.import_module("libcachesim")
    except ImportError:
        return None
    numbers: dict[bytes, int] = {}
    numbered = [numbers.setdefault(key, len(numbers)) for key in trace.keys]
    found = {}
    for policy in POLICIES:
        get = getattr(library, policy)(cache_size=capacity).get
        request = library.Request()
        missed = []
        for number, weight, is_put in zip(
            numbered, trace.weights(), trace.puts, strict=True
        ):
            request.obj_id, request.obj_size = number, weight
            if not get(request) and not is_put:
                missed.append(weight)
        found[policy] = Ratios.of(trace, missed)
    return found


# --- The command ---------------------------------------------------------------------


def positive(text: str) -> int:
    """Return a number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="a text file, or one ending with .xz")
    add(
        "--capacity",
        type=positive,
        metavar="N",
        help="bytes of values, or records if there are no sizes (5 %% of the footprint)",
    )
    add("--eviction", choices=("frequency", "fifo"), default="frequency")
    add(
        "--reinsert-reads",
        type=float,
        default=0.10,
        metavar="X",
        help="as the setting of this name (0.10); 0: amplification is below 1.3",
    )
    add(
        "--volumes",
        type=positive,
        default=64,
        metavar="N",
        help="number of volumes (64)",
    )
    add(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="stop and start the store so often, at equal distances (0)",
    )
    add(
        "--directory",
        type=Path,
        metavar="DIR",
        help="where a temporary folder is made (in memory if there is room)",
    )
    add("--compare", action="store_true", help="replay on S3-FIFO, LRU and FIFO, too")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def text(found: dict[str, Any]) -> Iterator[str]:
    """Format the result for readers."""
    unit = "bytes" if found["has_sizes"] else "records"
    yield f"{found['requests']:,} GETs, {found['puts']:,} PUTs of {found['keys']:,} keys"
    yield (
        f"{found['capacity']:,} {unit} in {found['volumes']} volumes of "
        f"{found['volume_size']:,} bytes, eviction {found['eviction']}"
    )
    if found["too_large"]:
        yield f"{found['too_large']:,} PUTs of values larger than a volume"
    yield f"object miss ratio    {found['object_miss']:.4f}"
    yield f"byte miss ratio      {found['byte_miss']:.4f}"
    yield f"write amplification  {found['write_amplification']:.3f}"
    yield f"requests per second  {found['requests_per_second']:,}"
    for policy, ratios in (found.get("compare") or {}).items():
        yield (
            f"{policy:<8} object miss {ratios['object_miss']:.4f}, "
            f"byte miss {ratios['byte_miss']:.4f}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = make_parser().parse_args(arguments)
    try:
        trace = read_trace(options.trace)
        layout = lay_out(trace, options.capacity, options.volumes)
        measured = measure(trace, layout, options)
    except (OSError, TraceError, VolcacheError, lzma.LZMAError) as error:
        raise SystemExit(f"no figures: {error}") from None
    found = {
        "trace": options.trace.name,
        **measured,
        "keys": len(set(trace.keys)),
        "has_sizes": bool(trace.sizes),
        "reinsert_reads": options.reinsert_reads,
        **asdict(layout),
    }
    if options.compare:
        others = compare(trace, layout.capacity)
        if others is None:
            print(HINT, file=sys.stderr)
        else:
            found["compare"] = {name: asdict(ratios) for name, ratios in others.items()}
    print(json.dumps(found) if options.json else "\n".join(text(found)))


if __name__ == "__main__":
    main()
