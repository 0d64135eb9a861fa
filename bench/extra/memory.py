"""
The memory of an instance: idle, after small files, with large ones, and for each key.

Each row is a new process. *at most* is its peak after it was idle, *after* what it keeps
one second after the load (VmHWM and VmRSS of /proc/PID/status). Pages of libraries, which
processes share, are included.

    .venv/bin/python -m bench.extra.memory
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.extra.boot import Job
from bench.extra.script import make_parser, measuring
from bench.machine import MIB, memory_bytes
from bench.report import table
from bench.servers import IP, volcache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Request = tuple[str, str, bytes | None]  # Verb, path and body.
KEYS: Final = Job(keys=100_000)
SMALL: Final = bytes(64 << 10)
MEDIUM: Final = bytes(MIB)
LARGE: Final = bytes(60 * MIB)
SETTINGS: Final = {
    "volume_size": 256 * MIB,
    "volume_num": 3,
    "max_value_size": 64 * MIB,
    "sync_mode": "none",
    "log_slow": 0,
}


def put_and_get(name: str, count: int, value: bytes) -> Iterator[Request]:
    """Store and read a value many times, under 50 keys."""
    for number in range(count):
        yield "PUT", f"/{name}/{number % 50}", value
        yield "GET", f"/{name}/{number % 50}", None


def put_large(number: int, reads: int = 0) -> Iterator[Request]:
    """Store one large file, and read it some times."""
    yield "PUT", f"/large/{number}", LARGE
    yield from [("GET", f"/large/{number}", None)] * reads


def many_keys(_number: int) -> Iterator[Request]:
    """Store a byte under each of many keys."""
    return (("PUT", f"/{KEYS.key(n).decode()}", b"x") for n in range(KEYS.keys))


PER_KEY: Final = f"{KEYS.keys:,} keys of {KEYS.key_size} bytes"
# How many clients there are, and the requests of each, by its number.
CASES: Final[dict[str, tuple[int, Callable[[int], Iterator[Request]]]]] = {
    "10,000 files of 64 KiB stored and read": (
        20,
        lambda number: put_and_get(f"small/{number}", 500, SMALL),
    ),
    "1,000 files of 1 MiB stored and read": (
        20,
        lambda number: put_and_get(f"medium/{number}", 50, MEDIUM),
    ),
    "one file of 60 MiB stored": (1, put_large),
    "the same, then read twice": (1, lambda number: put_large(number, 2)),
    "four of them at once": (4, put_large),
    PER_KEY: (1, many_keys),
}


def measure(name: str, mount_point: Path) -> list[str]:
    """Return a row of the table."""
    clients, requests = CASES[name]
    with volcache({"mount_point": mount_point, **SETTINGS}) as server:
        idle = memory_bytes(server.pid)
        # Resets the peak, which the start of the process has reached.
        Path(f"/proc/{server.pid}/clear_refs").write_text("5", encoding="ascii")

        def run(number: int) -> None:
            with closing(HTTPConnection(IP, server.port)) as connection:
                for verb, path, body in requests(number):
                    connection.request(verb, path, body)
                    connection.getresponse().read()

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(run, range(clients)))  # Raises what a thread raised.
        time.sleep(1)
        highest, after = memory_bytes(server.pid, "VmHWM"), memory_bytes(server.pid)
    shutil.rmtree(mount_point)
    per_key = f"{(after - idle) / KEYS.keys:.0f} bytes" if name == PER_KEY else "-"
    return [name, *(f"{n / MIB:.0f}" for n in (idle, highest, after)), per_key]


def main() -> None:
    """Measure and print."""
    options = make_parser(__doc__).parse_args()
    with measuring(options.directory) as (_, work):
        rows = [measure(name, work / "store") for name in CASES]
    print(table(["MiB", "idle", "at most", "after", "for each key"], rows))


if __name__ == "__main__":
    main()
