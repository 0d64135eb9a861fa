"""
Latency of GETs at a fixed rate, beside requests that Python answers or that take long.

In each turn, GETs of 1 KiB are sent at a rate, alone or beside one kind of other requests;
`ratio` is the 99th percentile of their latency divided by that of the turn alone.

    .venv/bin/python -m bench.extra.beside [--rate 10000] [--others 100]
"""

from __future__ import annotations

import http.client
import os
import random
import subprocess
import threading
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.extra.script import make_parser, measuring
from bench.load import SOURCE, Run, Running
from bench.machine import ROOT, compiled, drop_pages, pin
from bench.report import table
from support.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

KEYS: Final = 20_000
LARGE_BYTES: Final = 64 << 20
TOKEN: Final = "bench"  # noqa: S105 - Of this server only.
CONNECTIONS: Final = 20
# A larger piece keeps the processor in the kernel for longer.
_CHUNK_BYTES: Final = 1 << 16


class Other(NamedTuple):
    """Requests beside the GETs."""

    method: str
    path: str  # "{}": a random number
    headers: Mapping[str, str] = {}
    body: bytes = b""
    connections: int = 4
    is_paced: bool = True
    has_cold_keys: bool = False
    has_slow_syncs: bool = False


OTHERS: Final = {
    "alone": None,
    "metrics": Other("GET", "/-/metrics"),
    "stats": Other("GET", "/-/stats"),
    "key list": Other("GET", "/-/keys"),
    "purge": Other(
        "POST", "/-/purge", {"Authorization": f"Bearer {TOKEN}"}, b"/none\n"
    ),
    "PROPFIND of a cold key": Other(
        "PROPFIND", "/cold{}", {"Depth": "0"}, has_cold_keys=True
    ),
    "conditional PUT, syncs take 200 ms": Other(
        *("PUT", "/put{}", {"If-None-Match": '"x"'}, bytes(1000)),
        connections=32,
        has_slow_syncs=True,
    ),
    "downloads of 64 MiB": Other("GET", "/large", connections=2, is_paced=False),
}


def send_others(port: int, other: Other, rate: float, is_over: threading.Event) -> None:
    """
    Send requests on one connection until it is over.

    The thread has a processor only while neither the server nor the GETs need it.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    due = time.monotonic()
    while not is_over.wait(max(0.0, due - time.monotonic()) if other.is_paced else 0):
        due += other.connections / rate
        path = other.path.format(random.randrange(KEYS))  # noqa: S311
        connection.request(other.method, path, other.body, dict(other.headers))
        answer = connection.getresponse()
        while answer.read(_CHUNK_BYTES) and not is_over.is_set():
            continue
        if answer.status >= http.client.INTERNAL_SERVER_ERROR:
            raise RuntimeError(f"{other.method} {path}: {answer.status}")
    connection.close()


@contextmanager
def sending(port: int, other: Other | None, rate: float, slow: Path) -> Iterator[None]:
    """Send other requests meanwhile."""
    is_over = threading.Event()
    threads = []
    if other is not None:
        if other.has_slow_syncs:
            slow.touch()
        threads = [
            threading.Thread(target=send_others, args=(port, other, rate, is_over))
            for _ in range(other.connections)
        ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        slow.unlink(missing_ok=True)
        for thread in threads:
            thread.join()


def slow_sync_library(work: Path) -> Path:
    """Compile what makes syncs slow."""
    library = work / "slow_sync.so"
    source = ROOT / "bench" / "extra" / "slow_sync.c"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def send(port: int, options: list[str], core: int | None) -> Run:
    """Send requests by bench/load.c."""
    command = [str(compiled(SOURCE)), f"port={port}", "protocol=http"]
    return Running([*command, *options], core).result()


def send_each(port: int, *options: str) -> None:
    """Send a request for each key."""
    each = [f"keys={KEYS}", f"requests={KEYS}", "order=rising", "connections=16"]
    send(port, [*each, *options], None)


def fill(server: ServerProcess) -> None:
    """Store the values."""
    send_each(server.port, "puts=100")
    send_each(server.port, "puts=100", "prefix=cold")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("PUT", "/large", bytes(LARGE_BYTES))
    if connection.getresponse().status != http.client.OK:
        raise RuntimeError("the large value was not stored")
    connection.close()


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--rate", type=int, default=10_000, help="GETs per second (10000)")
    add("--others", type=int, default=100, help="other requests per second (100)")
    add("--rounds", type=int, default=5, help="for each (5)")
    add("--seconds", type=float, default=3, help="of each turn (3)")
    add("--core", type=int, default=0, help="of the server (0); GETs come from 1")
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in OTHERS}
    with measuring(options.directory) as (stack, work):
        slow = work / "slow"
        server = ServerProcess(
            work / "data",
            settings={
                "volume_size": 256 << 20,
                "volume_num": 2,
                "sync_mode": "always",
                "admin_token": TOKEN,
                "log_slow": 0,
            },
            environment={
                "LD_PRELOAD": str(slow_sync_library(work)),
                "SLOW_SYNC": str(slow),
            },
        )
        stack.enter_context(server)
        fill(server)
        pin([server.pid], options.core)
        load = [f"rate={options.rate}", f"connections={CONNECTIONS}", f"keys={KEYS}"]
        for number in range(options.rounds):
            for name, other in OTHERS.items():
                if other is not None and other.has_cold_keys:
                    drop_pages(work / "data")
                    send_each(server.port)
                with sending(server.port, other, options.others, slow):
                    more = [f"seconds={options.seconds}", f"seed={number + 1}"]
                    run = send(server.port, [*load, *more], 1)
                found[name].append(run.p99)
                print(f"{name}: p99 {run.p99:.3f} ms, {run.rate:.0f}/s", flush=True)
    alone = found["alone"]
    rows = [
        [
            name,
            f"{median(times):.3f} ({min(times):.3f}-{max(times):.3f})",
            f"{median(t / a for t, a in zip(times, alone, strict=True)):.2f}",
        ]
        for name, times in found.items()
    ]
    print()
    print(table(["GETs beside", "p99 in ms: median (all)", "ratio"], rows))


if __name__ == "__main__":
    main()
