"""
How long a store with very many keys takes to open, and what a key costs in memory.

Fills a store with keys of one length and tiny values, then opens it in fresh processes:
with the files in the page cache, without, and with the index files gone, so that they
are rebuilt from the volumes.

    .venv/bin/python bench/boot.py --keys 1000000 --key-size 100
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from machine import ROOT, describe, warnings
from page_cache import forget_files
from report import Spread, bullets, table

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 1 << 20
WORKER: Final = ROOT / "bench" / "boot_worker.py"
RECORD_OVERHEAD_BYTES_MAX: Final = 256  # More than a record's header takes.


class Options(argparse.Namespace):
    """The command line."""

    keys: int
    key_size: int
    value_size: int
    volume_size: int
    rounds: int
    directory: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of opening: what is done to the mount point before."""

    name: str
    prepare: Callable[[Path], None]


class WorkerError(RuntimeError):
    """A process of the benchmark failed; the text holds what it wrote."""


def nothing(_: Path) -> None:
    """Leave the mount point as it is: its files are in the page cache."""


def remove_index_files(mount_point: Path) -> None:
    """Leave the volumes alone to say what there is."""
    shutil.rmtree(mount_point / "index")


WAYS: Final = (
    Way(name="index files", prepare=nothing),
    Way(name="index files, not in the page cache", prepare=forget_files),
    Way(name="index files gone, rebuilt", prepare=remove_index_files),
)


def job_of(options: Options) -> dict[str, int]:
    """Describe the store to the worker; see `boot_worker.Job`."""
    record = RECORD_OVERHEAD_BYTES_MAX + options.key_size + options.value_size
    return {
        "keys": options.keys,
        "key_bytes": options.key_size,
        "value_bytes": options.value_size,
        "volume_size": options.volume_size,
        "volume_num": max(2, record * options.keys // options.volume_size + 2),
    }


def run_worker(verb: str, mount_point: Path, job: dict[str, int]) -> str:
    """
    Run a process of the benchmark and return what it prints.

    Raises:
        WorkerError: It failed.
    """
    done = subprocess.run(
        [sys.executable, str(WORKER), verb, str(mount_point), json.dumps(job)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkerError(f"{verb} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def open_rounds(way: Way, mount_point: Path, options: Options) -> list[str]:
    """Open the store several times in one way and return a row of the table."""
    opened = []
    for _ in range(options.rounds):
        way.prepare(mount_point)
        opened.append(json.loads(run_worker("open", mount_point, job_of(options))))
    keys = options.keys

    def per_key(name: str) -> str:
        return f"{Spread.of([one[name] / keys for one in opened]).median:.0f}"

    seconds = Spread.of([one["seconds"] for one in opened])
    return [
        way.name,
        seconds.text(2),
        f"{keys / seconds.median:.0f}",
        per_key("resident"),
        per_key("resident_peak"),
        per_key("objects"),
    ]


def parse_options() -> Options:
    """Read the command line."""
    description = (__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--keys", type=int, default=1_000_000, help="to store (1000000)")
    add("--key-size", type=int, default=100, help="bytes of a key (100)")
    add("--value-size", type=int, default=10, help="bytes of a value (10)")
    add("--volume-size", type=int, default=64 * MIB, help="bytes (64 MiB)")
    add("--rounds", type=int, default=3, help="times it is opened in each way (3)")
    add("--directory", type=Path, help="make the mount point here (a temporary one)")
    return parser.parse_args(namespace=Options())


def main() -> int:
    """Fill, open and report; 1 if anything went wrong."""
    options = parse_options()
    with tempfile.TemporaryDirectory(dir=options.directory) as work:
        mount_point = Path(work) / "store"
        print(bullets(describe(Path(work)), warnings(Path(work))))
        try:
            begin = time.perf_counter()
            run_worker("fill", mount_point, job_of(options))
            seconds = time.perf_counter() - begin
            rows = [open_rounds(way, mount_point, options) for way in WAYS]
        except WorkerError as error:
            print(f"no figures: {error}", file=sys.stderr)
            return 1
    print(
        f"\n{options.keys} keys of {options.key_size} bytes, values of "
        f"{options.value_size} bytes, put in {seconds:.1f} s; bytes are per key, "
        f"of {options.rounds} rounds:\n"
    )
    head = ["opened from", "seconds", "keys/s", "RSS", "RSS at most", "objects"]
    print(table(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
