"""
Makes docs/page.png: the operator's page of an instance that has been under load.

    make screenshot

A real instance with small volumes and a real memcached serve a mixed load of made-up
thumbnails and tiles for a minute; then the page is photographed in a browser.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import requests

if not __package__:  # Run as a script: helpers and package are in folders beside it.
    tests = Path(__file__).resolve().parent
    sys.path[:0] = [str(tests), str(tests.parent / "src")]

from support.browser import Tab, a_browser
from support.memcached import MemcachedProcess
from support.process import ServerProcess

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "page.png"
HEIGHT: Final = 870
CLIENTS: Final = 2
PAUSE_SECONDS: Final = 0.004
SETTINGS: Final = {
    "volume_size": 4 << 20,
    "volume_num": 12,
    "memc_on": True,
    "memc_timeout": 1,  # A busy machine is no matter of this picture.
}


class Client(threading.Thread):
    """Reads by popularity, stores what is missing, and stores some anew."""

    def __init__(self, url: str, seed: int, is_ended: threading.Event) -> None:
        """Know where, and what ends it."""
        super().__init__(daemon=True)
        self._url = url
        self._random = random.Random(seed)  # noqa: S311 - Only popularity.
        self._is_ended = is_ended

    def run(self) -> None:
        """Ask until the end, with a pause after each request."""
        with requests.Session() as session:
            while not self._is_ended.wait(PAUSE_SECONDS):
                # Few of a few thousand keys are read most of the time.
                number = int(self._random.paretovariate(0.6)) % 4000
                folder, kind = ("tiles", "png") if number % 3 else ("thumbs", "jpg")
                address = f"{self._url}/{folder}/{number}.{kind}"
                answer = session.get(address, timeout=5)
                if answer.status_code == requests.codes.not_found or number % 40 == 7:
                    size = self._random.randrange(20_000, 120_000)
                    session.put(address, data=self._random.randbytes(size), timeout=5)


def photograph(url: str, seconds: float, picture: Path) -> list[str]:
    """Watch the page for a while; return what the browser complained of."""
    with a_browser() as browser:
        tab = Tab(browser)
        tab.page.set_viewport_size({"width": 1280, "height": HEIGHT})
        tab.page.goto(f"{url}/-/")
        tab.wait_for("link", "Live")
        tab.page.wait_for_timeout(seconds * 1000)
        tab.page.screenshot(path=picture)
        return tab.complaints


def main() -> int:
    """Run the instance, the load and the browser; 1 when the page is not in order."""
    parser = argparse.ArgumentParser(description="Makes docs/page.png.")
    parser.add_argument("--seconds", type=float, default=56.0)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    is_ended = threading.Event()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="volcache-"))
        memcached = stack.enter_context(MemcachedProcess())
        settings = {**SETTINGS, "memc_servers": memcached.address}
        server = ServerProcess(folder, settings=settings)
        stack.enter_context(server)
        clients = [Client(server.url, seed, is_ended) for seed in range(CLIENTS)]
        for client in clients:
            client.start()
        complaints = photograph(server.url, arguments.seconds, arguments.picture)
        is_ended.set()
        for client in clients:
            client.join()
    size = arguments.picture.stat().st_size
    sys.stdout.write(f"{arguments.picture}: {size} bytes\n")
    sys.stderr.writelines(f"the browser says: {text}\n" for text in complaints)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
