"""
Take docs/page.png: the operator's page of an instance under load.

    make screenshot

An instance with small volumes and a memcached serve random thumbnails and tiles, and the
load of the benchmarks reads and replaces small values as fast as it can on a few
connections; after a minute, a browser takes a screenshot.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import requests

if not __package__:  # Run as a script: helpers and package are in folders beside it.
    tests = Path(__file__).resolve().parent
    sys.path[:0] = [str(tests), str(tests.parent / "src"), str(tests.parent)]

import threading

from bench.load import SOURCE
from bench.machine import compiled
from support.background import in_background
from support.browser import Tab, a_browser
from support.memcached import MemcachedProcess
from support.process import ServerProcess

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "page.png"
HEIGHT: Final = 1030
CLIENTS: Final = 2
CONNECTIONS: Final = 4
PAUSE_SECONDS: Final = 0.004
SETTINGS: Final = {
    "volume_size": 4 << 20,
    "volume_num": 32,
    "memc_on": True,
    "memc_timeout": 1,  # So that a busy machine causes no errors.
}


def ask(url: str, seed: int, is_ended: threading.Event) -> None:
    """Read by popularity, store what is missing and replace some values."""
    dice = random.Random(seed)  # noqa: S311 - Only popularity.
    with requests.Session() as session:
        while not is_ended.wait(PAUSE_SECONDS):
            # A few of 4,000 keys get most of the reads.
            number = int(dice.paretovariate(0.6)) % 4000
            folder, kind = ("tiles", "png") if number % 3 else ("thumbs", "jpg")
            address = f"{url}/{folder}/{number}.{kind}"
            answer = session.get(address, timeout=5)
            if answer.status_code == requests.codes.not_found or number % 40 == 7:
                size = dice.randrange(20_000, 120_000)
                session.put(address, data=dice.randbytes(size), timeout=5)


def load(port: int, seconds: float, puts: int = 2) -> subprocess.Popen[bytes]:
    """Start a load with values of 4 KiB; some are stored, in percent of requests."""
    options = ["keys=20000", "size=4096", "missing=2", f"connections={CONNECTIONS}"]
    options += [f"port={port}", f"seconds={seconds}", f"puts={puts}"]
    return subprocess.Popen([compiled(SOURCE), *options], stdout=subprocess.DEVNULL)


def photograph(url: str, seconds: float, picture: Path) -> list[str]:
    """Show the page for a while; return the errors and warnings of the browser."""
    with a_browser() as browser:
        tab = Tab(browser)
        tab.page.set_viewport_size({"width": 1280, "height": HEIGHT})
        tab.page.goto(f"{url}/-/")
        tab.wait_for("link", "Live")
        tab.page.wait_for_timeout(seconds * 1000)
        tab.page.screenshot(path=picture)
        return tab.complaints


def main() -> int:
    """Run the instance, the load and the browser; 1 if the browser had errors."""
    parser = argparse.ArgumentParser(description="Take docs/page.png.")
    parser.add_argument("--seconds", type=float, default=56.0)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="volcache-"))
        memcached = stack.enter_context(MemcachedProcess())
        settings = {**SETTINGS, "memc_servers": memcached.address}
        server = ServerProcess(folder, settings=settings)
        stack.enter_context(server)
        clients = [partial(ask, server.url, seed) for seed in range(CLIENTS)]
        stack.enter_context(in_background(*clients))
        load(server.port, 3, puts=100).wait()
        replacing = load(server.port, arguments.seconds + 5)
        complaints = photograph(server.url, arguments.seconds, arguments.picture)
        replacing.wait()
    size = arguments.picture.stat().st_size
    sys.stdout.write(f"{arguments.picture}: {size} bytes\n")
    sys.stderr.writelines(f"browser: {text}\n" for text in complaints)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
