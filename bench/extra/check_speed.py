"""
The speed of `volcache check`, next to a plain loop that reads the same volumes.

Both read in turns: with the volumes dropped from the page cache, and with all of them in
memory. The plain loop reads as many bytes at a time as a check, into one buffer. The ratios
are taken within each round: of the time that passed, and of the CPU time.

    .venv/bin/python -m bench.extra.check_speed --megabytes 512
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from bench.extra.boot import Job, in_new_process
from bench.extra.script import ScriptError, make_parser, measuring
from bench.machine import MIB, drop_pages
from bench.report import Spread, table
from volcache.cli.check import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.load import Figures

KEY_BYTES: Final = 50
READ_BYTES: Final = MIB // 4  # What a check reads at a time.


def read_plainly(mount_point: Path) -> None:
    """Read all volumes from beginning to end."""
    buffers = [bytearray(READ_BYTES)]
    for path in sorted((mount_point / "data").iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        offset = 0
        while length := os.preadv(descriptor, buffers, offset):
            offset += length
        os.close(descriptor)


def check_all(mount_point: Path) -> None:
    """
    Check the mount point.

    Raises:
        ScriptError: It is damaged.
    """
    lines: list[str] = []
    if not check(str(mount_point), lines.append):
        raise ScriptError("\n".join(lines))


def speed(read: Callable[[Path], None], mount_point: Path, *, cold: bool) -> Figures:
    """Read the volumes in one way; GB/s, by the time that passed and by CPU time."""
    if cold:
        drop_pages(mount_point)
    else:
        read_plainly(mount_point)
    length = sum(path.stat().st_size for path in (mount_point / "data").iterdir())
    began, cpu_began = time.perf_counter(), time.process_time()
    read(mount_point)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return {"wall": length / wall / 1e9, "cpu": length / cpu / 1e9}


def measure(
    work: Path, value_bytes: int, megabytes: int, rounds: int
) -> Iterator[list[str]]:
    """Measure a store with values of one size; yield its rows of the table."""
    mount_point = work / str(value_bytes)
    count = megabytes * 10**6 // value_bytes
    job = Job(keys=count, key_size=KEY_BYTES, value_size=value_bytes)
    in_new_process("fill", mount_point, job)
    for state, cold in (("from the disk", True), ("in memory", False)):
        speeds = [
            [speed(read, mount_point, cold=cold) for read in (read_plainly, check_all)]
            for _ in range(rounds + 1)
        ][1:]  # Modules are loaded in the first round.
        columns = (
            [plain["wall"] for plain, _ in speeds],
            [checked["wall"] for _, checked in speeds],
            [checked["wall"] / plain["wall"] for plain, checked in speeds],
            [checked["cpu"] / plain["cpu"] for plain, checked in speeds],
        )
        texts = [Spread.of(column).text(2) for column in columns]
        yield [f"{value_bytes} bytes, {state}", *texts]


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--megabytes", type=int, default=512, help="of values of each size (512)")
    add("--sizes", type=int, nargs="+", default=[1024, 65536], help="of values, bytes")
    add("--rounds", type=int, default=5, help="of each kind (5)")
    options = parser.parse_args()
    rows: list[list[str]] = []
    with measuring(options.directory) as (_, work):
        for value_bytes in options.sizes:
            rows += measure(work, value_bytes, options.megabytes, options.rounds)
    print(f"\nGB/s, medians and ranges of {options.rounds} rounds:\n")
    head = ["values of", "plain read", "check", "check ÷ plain", "by CPU time"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
