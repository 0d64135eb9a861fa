"""
Take docs/page.png: the operator's page of an instance under load.

    make screenshot

An instance is filled with more values than its volumes hold. Then the load of the
benchmarks reads them as fast as it can, most often a part of them, and stores others. Two
clients in Python read by popularity and store what is missing. After a minute, a browser
takes a screenshot.
"""

from __future__ import annotations

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
from support.process import ServerProcess

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "page.png"
HEIGHT: Final = 1030
SECONDS: Final = 56.0  # Under load, before the picture.
CLIENTS: Final = 2
PAUSE_SECONDS: Final = 0.004
SETTINGS: Final = {"volume_size": 16 << 20, "volume_num": 32}
# Of 4 KiB each: a sixth more than the volumes hold, and those that are read most.
KEYS: Final = 150_000
HOT_KEYS: Final = 20_000


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


def load(port: int, **options: object) -> subprocess.Popen[bytes]:
    """Start a load with values of 4 KiB, some of which may have been evicted."""
    given = {"port": port, "size": 4096, "missing": 2, **options}
    words = [f"{name}={value}" for name, value in given.items()]
    return subprocess.Popen([compiled(SOURCE), *words], stdout=subprocess.DEVNULL)


def photograph(url: str) -> list[str]:
    """Show the page for a while; return the errors and warnings of the browser."""
    with a_browser() as browser:
        tab = Tab(browser)
        tab.page.set_viewport_size({"width": 1280, "height": HEIGHT})
        tab.page.goto(f"{url}/-/")
        tab.wait_for("link", "Live")
        tab.page.wait_for_timeout(SECONDS * 1000)
        tab.page.screenshot(path=PICTURE)
        return tab.complaints


def main() -> int:
    """Run the instance, the load and the browser; 1 if the browser had errors."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="volcache-"))
        server = stack.enter_context(ServerProcess(folder, settings=SETTINGS))
        for keys in (KEYS, HOT_KEYS):
            every = {"keys": keys, "order": "shuffled", "requests": keys, "seconds": 60}
            load(server.port, puts=100, **every).wait()
        clients = [partial(ask, server.url, seed) for seed in range(CLIENTS)]
        stack.enter_context(in_background(*clients))
        loads = [
            load(server.port, keys=HOT_KEYS, connections=6, seconds=SECONDS + 5),
            load(server.port, keys=KEYS, connections=1, puts=5, seconds=SECONDS + 5),
        ]
        complaints = photograph(server.url)
        for one in loads:
            one.wait()
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size} bytes\n")
    sys.stderr.writelines(f"browser: {text}\n" for text in complaints)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
