"""
What a memcached that hangs costs the GETs of an instance.

Two instances serve the same hot files, one without a hot tier and one whose memcached is
stopped in the middle of the load: it accepts, and never answers. After the first second of
that, which holds the one request that waits, both are loaded in turns, a second each, and
the percentiles of their latencies are compared.

    .venv/bin/python bench/hot_hang.py [--seconds 10]
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from latency import percentile
from machine import ROOT, commit

sys.path.append(str(ROOT / "tests"))

from support.memcached import MemcachedProcess
from support.process import ServerProcess

CONNECTIONS: Final = 20
KEYS: Final = 50
VALUE: Final = b"x" * 1024


class Reader(threading.Thread):
    """Reads hot files over one connection and notes how long each took."""

    def __init__(self, port: int, seconds: float) -> None:
        """Read for so long."""
        super().__init__()
        self._port = port
        self._seconds = seconds
        self.took: list[float] = []

    def run(self) -> None:
        """Read one file after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        end = time.perf_counter() + self._seconds
        number = 0
        while (began := time.perf_counter()) < end:
            number += 1
            connection.request("GET", f"/k{number % KEYS}")
            answer = connection.getresponse()
            if answer.read() != VALUE:
                raise SystemExit(f"wrong answer {answer.status}")
            self.took.append(time.perf_counter() - began)
            # A pause, so that the client's threads do not measure each other.
            time.sleep(0.002)
        connection.close()


def load(port: int, seconds: float) -> list[float]:
    """Read over all connections and return the seconds each request took."""
    readers = [Reader(port, seconds) for _ in range(CONNECTIONS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return [took for reader in readers for took in reader.took]


def fill(port: int) -> None:
    """Store the files and read each often enough to be hot."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    source = None
    for number in range(KEYS):
        connection.request("PUT", f"/k{number}", VALUE)
        connection.getresponse().read()
        for _ in range(5):
            connection.request("GET", f"/k{number}")
            answer = connection.getresponse()
            answer.read()
            source = answer.getheader("X-Cache")
    print(f"port {port}: the last file came from {source}")
    connection.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--seconds", type=int, default=10, help="of load each (10)")
    seconds = parser.parse_args().seconds
    work = tempfile.mkdtemp()
    common = {"volume_size": 16 << 20, "volume_num": 2}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, work)
        memcached = stack.enter_context(MemcachedProcess())
        plain = stack.enter_context(ServerProcess(Path(work, "a"), settings=common))
        hot_settings = common | {"memc_on": "true", "memc_servers": memcached.address}
        hot = stack.enter_context(ServerProcess(Path(work, "b"), settings=hot_settings))
        fill(plain.port)
        fill(hot.port)
        memcached.send_signal(signal.SIGSTOP)
        first = load(hot.port, 1)
        took: dict[str, list[float]] = {"no hot tier": [], "memcached hangs": []}
        for _ in range(seconds):
            took["no hot tier"] += load(plain.port, 1)
            took["memcached hangs"] += load(hot.port, 1)
        memcached.send_signal(signal.SIGCONT)
    print(f"{os.cpu_count()} cores, {CONNECTIONS} connections, commit {commit()}")
    print(f"first second of the hang: slowest {max(first) * 1000:.1f} ms")
    for name, values in took.items():
        values.sort()
        figures = ", ".join(
            f"p{p:g} {percentile(values, p) * 1000:.2f} ms" for p in (50, 99, 99.9)
        )
        print(
            f"{name}: {len(values)} requests, {figures}, max {values[-1] * 1000:.2f} ms"
        )


if __name__ == "__main__":
    main()
