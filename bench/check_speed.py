"""
How fast `volcache check` is, beside a plain loop that reads the same volumes.

Fills a store with small values and one with larger ones. Then both ways take turns, with
nothing of the volumes in the page cache and with all of it there.

    .venv/bin/python bench/check_speed.py --megabytes 512
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from boot import MIB, Options, WorkerError, job_of, run_worker
from machine import ROOT, describe, warnings
from page_cache import forget_files
from report import Spread, bullets, table

sys.path.insert(0, str(ROOT / "src"))

from volcache.cli.check import check

if TYPE_CHECKING:
    from collections.abc import Callable

KEY_BYTES: Final = 50
STEP_BYTES: Final = 8 * MIB  # What a check reads at a time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """GB/s of one round."""

    plain: float
    check: float

    @property
    def ratio(self) -> float:
        """How many times as fast as a check the plain loop is."""
        return self.plain / self.check


def read_plainly(mount_point: Path) -> None:
    """Read all volumes from the beginning to the end."""
    for path in sorted((mount_point / "data").iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        offset = 0
        while part := os.pread(descriptor, STEP_BYTES, offset):
            offset += len(part)
        os.close(descriptor)


def check_all(mount_point: Path) -> None:
    """
    Check the mount point, which must be without damage.

    Raises:
        WorkerError: It is not.
    """
    said: list[str] = []
    if not check(str(mount_point), said.append):
        raise WorkerError("\n".join(said))


def speed(way: Callable[[Path], None], mount_point: Path, *, cold: bool) -> float:
    """Go through the volumes in one way and return GB/s."""
    if cold:
        forget_files(mount_point)
    else:
        read_plainly(mount_point)
    length = sum(path.stat().st_size for path in (mount_point / "data").iterdir())
    began = time.perf_counter()
    way(mount_point)
    return length / (time.perf_counter() - began) / 1e9


def measure(mount_point: Path, rounds: int, *, cold: bool) -> list[Speeds]:
    """Let both ways take turns; the first round, which loads modules, does not count."""
    found = [
        Speeds(
            plain=speed(read_plainly, mount_point, cold=cold),
            check=speed(check_all, mount_point, cold=cold),
        )
        for _ in range(rounds + 1)
    ]
    return found[1:]


def row(value_bytes: int, state: str, found: list[Speeds]) -> list[str]:
    """Return a row of the table."""
    return [
        f"{value_bytes} bytes, {state}",
        Spread.of([one.plain for one in found]).text(2),
        Spread.of([one.check for one in found]).text(2),
        Spread.of([one.ratio for one in found]).text(1),
    ]


def measure_size(
    work: Path, value_bytes: int, options: argparse.Namespace
) -> list[list[str]]:
    """Fill a store with values of one size and return its rows."""
    mount_point = work / str(value_bytes)
    stored = Options(
        keys=options.megabytes * 10**6 // value_bytes,
        key_size=KEY_BYTES,
        value_size=value_bytes,
        volume_size=64 * MIB,
    )
    run_worker("fill", mount_point, job_of(stored))
    return [
        row(value_bytes, state, measure(mount_point, options.rounds, cold=cold))
        for state, cold in (("from the disk", True), ("in memory", False))
    ]


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    description = (__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--megabytes", type=int, default=512, help="of values, for each size (512)")
    add("--sizes", type=int, nargs="+", default=[1024, 65536], help="of values, bytes")
    add("--rounds", type=int, default=5, help="times each way is taken (5)")
    add("--directory", type=Path, help="make the mount points here (a temporary one)")
    return parser.parse_args()


def main() -> int:
    """Fill, read, check and report; 1 if anything went wrong."""
    options = parse_options()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as work:
        print(bullets(describe(Path(work)), warnings(Path(work))))
        try:
            for value_bytes in options.sizes:
                rows += measure_size(Path(work), value_bytes, options)
        except WorkerError as error:
            print(f"no figures: {error}", file=sys.stderr)
            return 1
    print(
        f"\nGB/s of {options.megabytes} MB of values; median, lowest and highest of"
        f" {options.rounds} rounds:\n"
    )
    print(table(["values of", "plain read", "check", "plain ÷ check"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
