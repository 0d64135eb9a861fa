"""The WSGI application on bjoern alone: the readable definition of every HTTP answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ports import pick_port
from support.waiting import wait_until
from support.wire import exchange

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = """
import sys
import bjoern
from volcache.cache import Cache
from volcache.http.app import App, RequestLimits
from volcache.store import Store

store = Store.open(sys.argv[1], volume_size=16 << 20, volume_num=4, sync_mode="none")
app = App(Cache(store), RequestLimits(key_size=1024, value_size=1 << 20))
bjoern.run(app, "127.0.0.1", int(sys.argv[2]))
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Run the application; return its port."""
    port = pick_port()
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "data"), str(port)]
    with subprocess.Popen(words) as process:
        try:
            wait_until(lambda: is_served(port), "the application")
            yield port
        finally:
            process.terminate()


def is_served(port: int) -> bool:
    """Return whether a request is answered."""
    try:
        return exchange(port, "GET", "/none").status == 404
    except OSError:
        return False


def test_application_on_bjoern_alone_stores_and_returns_values(port: int) -> None:
    """Each PUT is one append: the position is that of the record; a miss says so."""
    first = exchange(port, "PUT", "/a", b"value")
    second = exchange(port, "PUT", "/b", b"another")
    assert (first.status, second.status) == (200, 200)
    volume, offset, size = map(int, first.headers["X-Position"].split(","))
    assert second.headers["X-Position"].startswith(f"{volume},{offset + size},")
    got = exchange(port, "GET", "/a")
    assert (got.status, got.body) == (200, b"value")
    assert got.headers["X-Cache"] == "DISK"
    assert got.headers["X-Position"] == first.headers["X-Position"]
    head = exchange(port, "HEAD", "/a")
    assert (head.status, head.headers["Content-Length"]) == (200, "5")
    assert exchange(port, "DELETE", "/a").status == 200
    missing = exchange(port, "GET", "/a")
    assert (missing.status, missing.headers["X-Cache"]) == (404, "MISS")
    assert exchange(port, "GET", "/b").body == b"another"
