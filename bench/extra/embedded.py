"""
The embedded store next to diskcache: latency, memory, time to open, and kill -9.

The first part is in the terms of diskcache's own benchmark: each worker does 100,000
operations (of 8 workers each 25,000) in random order, with ten times as many gets as sets,
and ten times as many sets as deletes, on 100 keys with short values. Where there are more
keys, all are stored before. A miss is a get or delete of a key without a value, or a set
that was given up. The candidates take turns; figures are those of all rounds together, and
the ratio is the median of the ratios of the rounds.

    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python -m bench.extra.embedded
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from array import array
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.extra.script import ScriptError, make_parser, measuring
from bench.machine import MIB, memory_bytes
from bench.report import table
from volcache.text import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.synchronize import Barrier

CAPACITY: Final = 1 << 30
ACTIONS: Final = ("get", "set", "delete")
SUBJECT: Final = "volcache"
KEY_BYTES: Final = 20
CRASH_KEYS: Final = 200
FEW_KEYS: Final = 100  # that the operations store soon


# --- The candidates ------------------------------------------------------------------


def open_volcache(path: Path) -> Any:  # noqa: ANN401 - No common type.
    """Open the embedded store, with the defaults."""
    import volcache  # noqa: PLC0415 - Each process measures what it imports.

    return volcache.open(path, capacity=CAPACITY)


def open_always(path: Path) -> Any:  # noqa: ANN401
    """Open the embedded store so that each write is on the disk before it returns."""
    import volcache  # noqa: PLC0415

    return volcache.open(path, capacity=CAPACITY, sync_mode="always")


def open_diskcache(path: Path) -> Any:  # noqa: ANN401
    """Open a cache of diskcache, with the defaults."""
    import diskcache  # noqa: PLC0415

    return diskcache.Cache(str(path), size_limit=CAPACITY)


def open_full(path: Path) -> Any:  # noqa: ANN401
    """Open it so that each write is on the disk before it returns."""
    import diskcache  # noqa: PLC0415

    return diskcache.Cache(str(path), size_limit=CAPACITY, sqlite_synchronous=2)


def open_fanout(path: Path) -> Any:  # noqa: ANN401
    """Open a sharded cache of diskcache, as in its benchmark."""
    import diskcache  # noqa: PLC0415

    return diskcache.FanoutCache(
        str(path), shards=8, timeout=0.010, size_limit=CAPACITY
    )


class NdbmCache:
    """A file of dbm, which has no eviction, no expiry and no threads."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._file = importlib.import_module("dbm.ndbm").open(str(path / "file"), "c")
        self.get = self._file.get
        self.close = self._file.close

    def set(self, key: bytes, value: bytes) -> bool:
        """Store a value."""
        self._file[key] = value
        return True

    def delete(self, key: bytes) -> bool:
        """Delete a key; return whether it had a value."""
        try:
            del self._file[key]
        except KeyError:
            return False
        return True


CANDIDATES: Final[dict[str, Callable[[Path], Any]]] = {
    SUBJECT: open_volcache,
    "diskcache.Cache": open_diskcache,
    "diskcache.FanoutCache": open_fanout,
    "dbm.ndbm": NdbmCache,
    "volcache, sync_mode always": open_always,
    "diskcache.Cache, synchronous FULL": open_full,
}
THREADED: Final = (SUBJECT, "diskcache.Cache", "diskcache.FanoutCache")
DURABLE: Final = ("volcache, sync_mode always", "diskcache.Cache, synchronous FULL")


# --- Operations ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What each worker does."""

    name: str
    operations: int
    keys: int
    value: int  # bytes
    candidates: tuple[str, ...]
    threads: int = 1
    processes: int = 1
    weights: tuple[int, ...] = (100, 10, 1)

    def schedule(self, seed: int) -> Iterable[tuple[str, bytes]]:
        """Yield actions and keys."""
        chance = random.Random(seed)  # noqa: S311 - Repeatable.
        for _ in range(self.operations):
            (action,) = chance.choices(ACTIONS, self.weights)
            yield action, b"%d" % chance.randrange(self.keys)


@dataclass(slots=True)
class Timings:
    """How long the operations took, in seconds, and how many were misses, by action."""

    seconds: dict[str, array[float]] = field(
        default_factory=lambda: {action: array("d") for action in ACTIONS}
    )
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ACTIONS, 0))
    wall: float = 0.0  # from the first operation to the last
    cpu: float = 0.0  # of the threads that work, or of all threads of the processes

    def add(self, other: Timings) -> None:
        """Add those of another worker or round; the times are added as well."""
        for action in ACTIONS:
            self.seconds[action].extend(other.seconds[action])
            self.misses[action] += other.misses[action]
        self.wall += other.wall
        self.cpu += other.cpu


def operate(cache: Any, workload: Workload, seed: int) -> Timings:  # noqa: ANN401
    """Do the operations of one worker."""
    timings, value = Timings(), os.urandom(workload.value)
    schedule = list(workload.schedule(seed))
    clock = time.perf_counter
    first, cpu = clock(), time.thread_time()
    for action, key in schedule:
        began = clock()
        if action == "get":
            found = cache.get(key) is not None
        elif action == "set":
            found = bool(cache.set(key, value))
        else:
            found = bool(cache.delete(key))
        timings.seconds[action].append(clock() - began)
        timings.misses[action] += not found
    timings.wall, timings.cpu = clock() - first, time.thread_time() - cpu
    return timings


def fill(name: str, path: Path, workload: Workload) -> None:
    """Store all keys before the measurement, if they are more than a few."""
    if workload.keys <= FEW_KEYS:
        return
    with closing(CANDIDATES[name](path)) as cache:
        for number in range(workload.keys):
            cache.set(b"%d" % number, os.urandom(workload.value))


_starts: list[Barrier] = []  # in a worker process: where it waits for the others


def begin_worker(start: Barrier) -> None:
    """Keep what the workers wait for."""
    _starts.append(start)


def in_process(name: str, path: Path, workload: Workload, seed: int) -> Timings:
    """Open the cache in this process and do the operations of one worker."""
    with closing(CANDIDATES[name](path)) as cache:
        _starts[0].wait()
        cpu = time.process_time()
        timings = operate(cache, workload, seed)
        _starts[0].wait()
        timings.cpu = time.process_time() - cpu  # Of all its threads.
    return timings


def run(name: str, path: Path, workload: Workload, round_: int) -> Timings:
    """Do the operations of all workers at the same time."""
    total, walls = Timings(), list[float]()
    if workload.processes > 1:
        seeds = range(round_ * 100, round_ * 100 + workload.processes)
        context = multiprocessing.get_context("spawn")
        start = context.Barrier(workload.processes)
        with ProcessPoolExecutor(
            workload.processes, context, initializer=begin_worker, initargs=(start,)
        ) as pool:
            jobs = [pool.submit(in_process, name, path, workload, s) for s in seeds]
            found = [job.result() for job in jobs]
    else:
        seeds = range(round_ * 100, round_ * 100 + workload.threads)
        with (
            closing(CANDIDATES[name](path)) as cache,
            ThreadPoolExecutor(workload.threads) as pool,
        ):
            threads = [pool.submit(operate, cache, workload, s) for s in seeds]
            found = [thread.result() for thread in threads]
    for timings in found:
        walls.append(timings.wall)
        total.add(timings)
    total.wall = max(walls)
    return total


HEAD: Final = ("Count", "Miss", "Median", "P90", "P99", "Max", "Total")


def rows_of(timings: Timings) -> Iterable[list[str]]:
    """Return the rows of one candidate as diskcache's benchmark has them."""
    for action in ACTIONS:
        seconds = sorted(timings.seconds[action])
        count = len(seconds)
        if not count:
            continue
        shares = (seconds[int(count * share)] for share in (0.5, 0.9, 0.99))
        yield [
            action,
            str(count),
            str(timings.misses[action]),
            *map(duration, shares),
            duration(seconds[-1]),
            duration(sum(seconds)),
        ]


def measure(workload: Workload, rounds: int, work: Path) -> None:
    """Measure the candidates in turns and print a table for each."""
    totals = {name: Timings() for name in workload.candidates}
    rounds_of: dict[str, list[Timings]] = {name: [] for name in workload.candidates}
    for round_ in range(rounds):
        for name in workload.candidates:
            path = work / f"{workload.name}-{name}-{round_}"
            fill(name, path, workload)
            timings = run(name, path, workload, round_)
            shutil.rmtree(path)
            totals[name].add(timings)
            rounds_of[name].append(timings)
    print(f"\n### {workload.name}\n")
    first = rounds_of[workload.candidates[0]]
    for name, timings in totals.items():
        found = rounds_of[name]
        wall = [one.wall / other.wall for one, other in zip(found, first, strict=True)]
        cpu = [one.cpu / other.cpu for one, other in zip(found, first, strict=True)]
        print(
            f"{name}: {statistics.median(one.wall for one in found):.2f} s a round,"
            f" {statistics.median(one.cpu for one in found):.2f} s of CPU;"
            f" {statistics.median(wall):.1f} and {statistics.median(cpu):.1f} times the"
            " first\n"
        )
        print(table(("Action", *HEAD), rows_of(timings)), end="\n\n", flush=True)


# --- Memory and opening --------------------------------------------------------------


class Footprint(NamedTuple):
    """What a new process finds; bytes and seconds."""

    memory: float
    seconds: float
    first_get: float


def key_of(number: int) -> bytes:
    """Return a key of a fixed length."""
    return b"%0*d" % (KEY_BYTES, number)


def child_fill(name: str, path: Path, keys: int) -> None:
    """Store keys with values of 100 bytes; print the seconds that it took."""
    began = time.perf_counter()
    with closing(CANDIDATES[name](path)) as cache:
        for number in range(keys):
            cache.set(key_of(number), b"%0100d" % number)
    print(time.perf_counter() - began)


def child_open(name: str, path: Path, keys: int) -> None:
    """Open a cache, read a thousand keys and print what that took."""
    # What is imported does not count.
    CANDIDATES[name](path.with_name(f"{path.name}-empty")).close()
    began = time.perf_counter()
    cache = CANDIDATES[name](path)
    opened = time.perf_counter()
    cache.get(key_of(keys // 2))
    got = time.perf_counter()
    for number in range(0, keys, max(1, keys // 1000)):
        if cache.get(key_of(number)) != b"%0100d" % number:
            raise ScriptError(f"{name} has lost key {number}")
    print(memory_bytes(os.getpid()), opened - began, got - opened)
    cache.close()


def in_child(job: str, name: str, path: Path, keys: int) -> list[float]:
    """Run a job of this script in a new process; return the numbers that it prints."""
    command = [sys.executable, "-m", __spec__.name, "--job", job, name, str(path)]
    done = subprocess.run(
        [*command, str(keys)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ScriptError(done.stderr.strip().splitlines()[-1])
    return [float(word) for word in done.stdout.split()]


def measure_memory(keys: int, rounds: int, work: Path) -> None:
    """Print memory and time to open, with the keys and without."""
    rows = []
    for name in (*THREADED[:2], "dbm.ndbm"):
        none, many = work / f"none-{name}", work / f"many-{name}"
        in_child("fill", name, none, 0)
        (filled,) = in_child("fill", name, many, keys)
        empty = [Footprint(*in_child("open", name, none, 0)) for _ in range(rounds)]
        full = [Footprint(*in_child("open", name, many, keys)) for _ in range(rounds)]
        before = statistics.median(found.memory for found in empty)
        after = statistics.median(found.memory for found in full)
        held = sum(f.stat().st_blocks * 512 for f in many.rglob("*"))
        rows.append(
            [
                name,
                f"{filled:.1f} s",
                duration(statistics.median(found.seconds for found in full)),
                duration(statistics.median(found.first_get for found in full)),
                f"{before / MIB:.0f} MiB",
                f"{after / MIB:.0f} MiB",
                f"{(after - before) / keys:.0f} bytes",
                f"{held / MIB:.0f} MiB",
            ]
        )
    head = ["", "filled", "opened", "first get", "memory, empty", "with keys"]
    print(f"\n### {keys:,} keys of {KEY_BYTES} bytes, values of 100 bytes\n")
    print(table([*head, "for each key", "disk"], rows), end="\n\n", flush=True)


# --- kill -9 -------------------------------------------------------------------------


def crash_value(number: int, size: int) -> bytes:
    """Return a value that shows if it is not whole."""
    return random.Random(number).randbytes(size)  # noqa: S311 - Repeatable.


def child_write(name: str, path: Path, size: int) -> None:
    """Store values without end; after each, print its number."""
    cache = CANDIDATES[name](path)
    number = int(sys.stdin.readline())
    while True:
        number += 1
        value = b"%d " % number + crash_value(number, size)
        cache.set(key_of(number % CRASH_KEYS), value)
        os.write(1, b"%d\n" % number)


@dataclass(slots=True)
class CrashCounts:
    """What the next process has found after the kills."""

    acknowledged: int = 0
    lost: int = 0
    wrong: int = 0
    opening: list[float] = field(default_factory=list)
    leftovers: int = 0  # what the check of diskcache finds


def kill_while_writing(
    name: str, path: Path, size: int, number: int, writes: int
) -> int:
    """Kill a writer after some acknowledged writes; return the last one."""
    command = [sys.executable, "-m", __spec__.name, "--job", "write", name, str(path)]
    with subprocess.Popen(
        [*command, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise ScriptError("no pipes")
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        for _ in range(writes):
            number = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # What it has still acknowledged.
        for line in process.stdout:
            if line.endswith(b"\n"):
                number = int(line)
    return number


def check_after_kill(
    name: str, path: Path, size: int, last: int, counts: CrashCounts
) -> None:
    """Compare every key with what was acknowledged for it."""
    began = time.perf_counter()
    with closing(CANDIDATES[name](path)) as cache:
        counts.opening.append(time.perf_counter() - began)
        for number in range(max(1, last - CRASH_KEYS + 1), last + 1):
            counts.acknowledged += 1
            try:
                value = cache.get(key_of(number % CRASH_KEYS))
            except OSError:
                value = b""
            if value is None:
                counts.lost += 1
                continue
            # The next write may have been complete, and not acknowledged.
            allowed = (
                (number, last + 1) if number == last - CRASH_KEYS + 1 else (number,)
            )
            if value not in [b"%d " % n + crash_value(n, size) for n in allowed]:
                counts.wrong += 1
        if hasattr(cache, "check"):
            counts.leftovers = len(cache.check())  # of all kills so far


def measure_kills(kills: int, work: Path) -> None:
    """Print what is lost when writers are killed."""
    rows = []
    chance = random.Random(1)  # noqa: S311 - Repeatable.
    for size in (100, 100_000):
        for name in THREADED[:2]:
            counts, path, last = CrashCounts(), work / f"kill-{size}-{name}", 0
            for _ in range(kills):
                writes = chance.randrange(CRASH_KEYS, 2 * CRASH_KEYS)
                last = kill_while_writing(name, path, size, last, writes)
                check_after_kill(name, path, size, last, counts)
            rows.append(
                [
                    f"{name}, values of {size:,} bytes",
                    *(f"{n:,}" for n in (kills, counts.acknowledged)),
                    *map(str, (counts.lost, counts.wrong, counts.leftovers)),
                    duration(statistics.median(counts.opening)),
                ]
            )
    head = ["", "kills", "values checked", "lost", "wrong", "files left over"]
    print("\n### kill -9 of a process that writes\n")
    print(table([*head, "opened"], rows), flush=True)


# --- The script ----------------------------------------------------------------------


def workloads(operations: int) -> list[Workload]:
    """Return what is measured, each with its candidates."""
    one = (*THREADED, "dbm.ndbm")
    few = max(100, operations // 100)
    return [
        Workload(
            name="1 worker, 100 keys",
            operations=operations,
            keys=FEW_KEYS,
            value=10,
            candidates=one,
        ),
        Workload(
            name="8 threads, 100 keys",
            operations=operations // 4,
            keys=FEW_KEYS,
            value=10,
            candidates=THREADED,
            threads=8,
        ),
        Workload(
            name="8 processes, 100 keys",
            operations=operations // 4,
            keys=FEW_KEYS,
            value=10,
            candidates=THREADED,
            processes=8,
        ),
        Workload(
            name="8 processes, 1,000 keys, values of 1 KiB, 90 % get 10 % set",
            operations=operations // 4,
            keys=1000,
            value=1024,
            candidates=THREADED,
            processes=8,
            weights=(90, 10, 0),
        ),
        Workload(
            name="1 worker, 10,000 keys, values of 10,000 bytes",
            operations=operations,
            keys=10_000,
            value=10_000,
            candidates=THREADED,
        ),
        Workload(
            name="1 worker, 2,000 keys, values of 100,000 bytes",
            operations=max(100, operations // 10),
            keys=2000,
            value=100_000,
            candidates=THREADED,
        ),
        Workload(
            name="1 worker, each write on the disk before it returns",
            operations=few * 10,
            keys=FEW_KEYS,
            value=10,
            candidates=DURABLE,
        ),
    ]


JOBS: Final = {"fill": child_fill, "open": child_open, "write": child_write}


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each part (3)")
    parser.add_argument("--operations", type=int, default=100_000, help="(100000)")
    parser.add_argument("--keys", type=int, default=200_000, help="in memory (200000)")
    parser.add_argument("--kills", type=int, default=20, help="(20)")
    parser.add_argument("--job", nargs=4, metavar="X", help="for its own processes")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="parts whose names have this text"
    )
    options = parser.parse_args()
    if options.job:
        job, name, path, number = options.job
        JOBS[job](name, Path(path), int(number))
        return
    with measuring(options.directory) as (_, work):
        for workload in workloads(options.operations):
            if options.only in workload.name:
                measure(workload, options.rounds, work)
        if options.only in "memory":
            measure_memory(options.keys, options.rounds, work)
        if options.only in "kills":
            measure_kills(options.kills, work)


if __name__ == "__main__":
    main()
