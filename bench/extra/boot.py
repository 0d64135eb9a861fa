"""
Time to fill and to open a store with very many keys, and the memory of each key.

Fills a store with keys of one length, then opens it in new processes: with its files in
the page cache, without, and with the index files removed, so that they are rebuilt.
RSS is what the process grew by when the store was open, *RSS at most* what it grew by
until then. CPU is that of the process, in seconds.

    .venv/bin/python -m bench.extra.boot --keys 1000000 --key-size 100
    .venv/bin/python -m bench.extra.boot --keys 50000000 --volume-size 167772160 --rounds 1
    .venv/bin/python -m bench.extra.boot --keys 10000000 --delete
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from bench.extra.script import ScriptError, make_parser, measuring
from bench.machine import MIB, drop_pages, memory_bytes
from bench.report import Spread, table
from bench.servers import PYTHON_PATH
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.load import Figures

MODULE: Final = "bench.extra.boot"
RECORD_OVERHEAD_BYTES_MAX: Final = 256  # More than the header of a record takes.
CHECKED_KEYS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the store holds; sizes are in bytes."""

    keys: int
    key_size: int = 100
    value_size: int = 10
    volume_size: int = 64 * MIB
    delete: bool = False  # each key after its put

    @property
    def volume_num(self) -> int:
        """Enough volumes for all records."""
        record = RECORD_OVERHEAD_BYTES_MAX + self.key_size + self.value_size
        records = self.keys * (1 + self.delete)
        return max(2, record * records // self.volume_size + 2)

    def key(self, number: int) -> bytes:
        """Return the key of a number, in the length asked for."""
        return b"bench/%0*d" % (self.key_size - len(b"bench/"), number)

    def open(self, mount_point: str) -> Store:
        """Open the store, without a sync before it is closed."""
        return Store.open(
            mount_point,
            volume_size=self.volume_size,
            volume_num=self.volume_num,
            sync_mode="none",
        )


def fill(mount_point: str, job: Job) -> Figures:
    """Put each key, delete it if asked, close the store; memory in bytes, of all keys."""
    before = memory_bytes(os.getpid())
    store = job.open(mount_point)
    value = b"v" * job.value_size
    began, cpu_began, slowest = time.perf_counter(), time.process_time(), 0
    last = time.thread_time_ns()
    for number in range(job.keys):
        store.put(job.key(number), value)
        if job.delete:
            store.delete(job.key(number))
        now = time.thread_time_ns()
        slowest = max(slowest, now - last)
        last = now
    filled = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
        "resident": memory_bytes(os.getpid()) - before,
        "slowest_ms": slowest / 1e6,  # CPU of one put.
    }
    store.close()
    return filled


def open_once(mount_point: str, job: Job) -> Figures:
    """
    Open the store in this process, which must be a new one; memory as in `fill`.

    Raises:
        ScriptError: A key is missing, or one that was deleted is not.
    """
    gc.collect()
    before = memory_bytes(os.getpid())
    began, cpu_began = time.perf_counter(), time.process_time()
    store = job.open(mount_point)
    seconds = time.perf_counter() - began
    cpu_seconds = time.process_time() - cpu_began
    highest = memory_bytes(os.getpid(), "VmHWM")
    gc.collect()
    resident = memory_bytes(os.getpid())
    for number in range(0, job.keys, max(1, job.keys // CHECKED_KEYS)):
        if (store.get(job.key(number)) is None) != job.delete:
            raise ScriptError(f"key {number} is {'there' if job.delete else 'missing'}")
    store.close()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "resident": resident - before,
        "resident_max": highest - before,
    }


def in_new_process(action: str, mount_point: Path, job: Job) -> Figures:
    """
    Run `fill` or `open` in a new process, and return its figures.

    Raises:
        ScriptError: It failed.
    """
    done = subprocess.run(
        (sys.executable, "-m", MODULE, action, mount_point, json.dumps(asdict(job))),
        env=os.environ | PYTHON_PATH,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ScriptError(f"{action} ended with {done.returncode}:\n{done.stderr}")
    found: Figures = json.loads(done.stdout)
    return found


STATES: Final[dict[str, Callable[[Path], None]]] = {
    "index files in the page cache": lambda _: None,
    "index files on the disk": drop_pages,
    "volumes only, index files rebuilt": lambda path: shutil.rmtree(path / "index"),
}


def measure(name: str, mount_point: Path, job: Job, rounds: int) -> list[str]:
    """Open the store several times in one state, and return a row of the table."""
    opened = []
    for _ in range(rounds):
        STATES[name](mount_point)
        opened.append(in_new_process("open", mount_point, job))
    seconds = Spread.of([one["seconds"] for one in opened])
    cpu = Spread.of([one["cpu_seconds"] for one in opened])
    memory = [
        f"{Spread.of([one[field] / job.keys for one in opened]).median:.1f}"
        for field in ("resident", "resident_max")
    ]
    speed = f"{job.keys / seconds.median:.0f}"
    return [name, seconds.text(2), speed, cpu.text(2), *memory]


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    for name, default in (
        ("keys", 1_000_000),
        ("key_size", 100),
        ("value_size", 10),
        ("volume_size", 64 * MIB),
    ):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=default, help=f"({default})")
    parser.add_argument("--delete", action="store_true", help="delete each key after")
    parser.add_argument("--rounds", type=int, default=3, help="for each state (3)")
    options = vars(parser.parse_args())
    directory, rounds = options.pop("directory"), options.pop("rounds")
    job = Job(**options)
    with measuring(directory) as (_, work):
        filled = in_new_process("fill", work / "store", job)
        print(
            f"\nfilled with {job.keys} keys{', each deleted,' * job.delete} in"
            f" {filled['seconds']:.0f} s (CPU"
            f" {filled['cpu_seconds']:.0f} s, slowest put {filled['slowest_ms']:.1f} ms"
            f" CPU); {filled['resident'] / job.keys:.1f} bytes of memory for each key",
            flush=True,
        )
        rows = [measure(name, work / "store", job, rounds) for name in STATES]
    print(
        f"\n{job.keys} keys of {job.key_size} bytes in volumes of {job.volume_size};"
        " memory in bytes for each key:\n"
    )
    head = ["opened from", "seconds", "keys/s", "CPU s", "RSS", "RSS at most"]
    print(table(head, rows))


if __name__ == "__main__":
    if sys.argv[1:2] in (["fill"], ["open"]):
        act = fill if sys.argv[1] == "fill" else open_once
        print(json.dumps(act(sys.argv[2], Job(**json.loads(sys.argv[3])))))
    else:
        main()
