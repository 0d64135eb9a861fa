"""
How much memory an instance has: idle, after small files, with large ones, for each key.

Each row is a new process. `at most` is its peak since it was idle, `after` what it keeps
a second later; both as the kernel tells them in /proc/PID/status (VmHWM, VmRSS). Pages of
libraries, which processes share, are in all three; /proc/PID/smaps_rollup says how many.

    .venv/bin/python bench/memory.py
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from boot_worker import key_of
from machine import describe, warnings
from report import bullets, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 1 << 20
KEYS: Final = 100_000
KEY_BYTES: Final = 100
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is done to an instance, by so many clients at once."""

    name: str
    run: Callable[[http.client.HTTPConnection, int], None]
    clients: int = 1
    keys: int = 0


def ask(
    connection: http.client.HTTPConnection, method: str, key: str, body: bytes = b""
) -> None:
    """Send one request, which must be answered with 200."""
    connection.request(method, f"/{key}", body or None)
    answer = connection.getresponse()
    answer.read()
    if answer.status != http.client.OK:
        raise SystemExit(f"{method} {key}: {answer.status}")


def small_files(connection: http.client.HTTPConnection, number: int) -> None:
    """Store and read 64 KiB 500 times; twenty clients make 10,000 of it."""
    for turn in range(500):
        key = f"small/{number}/{turn % 50}"
        ask(connection, "PUT", key, SMALL)
        ask(connection, "GET", key)


def medium_files(connection: http.client.HTTPConnection, number: int) -> None:
    """Store and read 1 MiB 50 times; twenty clients make 1,000 of it."""
    for _ in range(50):
        ask(connection, "PUT", f"medium/{number}", MEDIUM)
        ask(connection, "GET", f"medium/{number}")


def large_put(connection: http.client.HTTPConnection, number: int) -> None:
    """Store one file of 60 MiB."""
    ask(connection, "PUT", f"large/{number}", LARGE)


def large_get(connection: http.client.HTTPConnection, number: int) -> None:
    """Store it, and read it twice."""
    large_put(connection, number)
    ask(connection, "GET", f"large/{number}")
    ask(connection, "GET", f"large/{number}")


def many_keys(connection: http.client.HTTPConnection, _number: int) -> None:
    """Store a byte under each of very many keys."""
    for number in range(KEYS):
        ask(connection, "PUT", key_of(number, KEY_BYTES).decode(), b"x")


LOADS: Final = (
    Load(name="10,000 files of 64 KiB stored and read", run=small_files, clients=20),
    Load(name="1,000 files of 1 MiB stored and read", run=medium_files, clients=20),
    Load(name="one file of 60 MiB stored", run=large_put),
    Load(name="the same, then read twice", run=large_get),
    Load(name="four of them stored at once", run=large_put, clients=4),
    Load(name=f"{KEYS:,} keys of {KEY_BYTES} bytes", run=many_keys, keys=KEYS),
)


def memory(server: ServerProcess, name: str) -> int:
    """Return a line of the process's status, such as VmRSS, in bytes."""
    text = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def put_under(server: ServerProcess, load: Load) -> None:
    """Run all clients of a load to their end."""

    def run(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        load.run(connection, number)
        connection.close()

    threads = [threading.Thread(target=run, args=[n]) for n in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(load: Load) -> list[str]:
    """Return a row of the table."""
    with (
        tempfile.TemporaryDirectory(prefix="volcache-") as work,
        ServerProcess(work, settings=SETTINGS) as server,
    ):
        idle = memory(server, "VmRSS")
        # The peak begins anew: at the start it was something else that took it.
        Path(f"/proc/{server.pid}/clear_refs").write_text("5", encoding="ascii")
        put_under(server, load)
        time.sleep(1)
        most, after = memory(server, "VmHWM"), memory(server, "VmRSS")
    per_key = f"{(after - idle) / load.keys:.0f} bytes" if load.keys else "-"
    return [load.name, *(f"{n / MIB:.0f}" for n in (idle, most, after)), per_key]


def main() -> None:
    """Measure and print."""
    work = Path(tempfile.gettempdir())
    print(bullets(describe(work), warnings(work)))
    rows = [measure(load) for load in LOADS]
    print(table(["MiB", "idle", "at most", "after", "for each key"], rows))


if __name__ == "__main__":
    main()
