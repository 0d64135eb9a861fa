"""The storage of CacheControl, with requests and a server."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

import pytest
import requests
from cachecontrol import CacheControl
from cachecontrol.heuristics import ExpiresAfter

from support.ports import pick_port
from volcache_client import Client
from volcache_client.adapters.cachecontrol import VolcacheStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BODY = bytes(range(256)) * 8


class Site(BaseHTTPRequestHandler):
    """A site whose pages name what of them may be kept."""

    asked: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the directives that the path names."""
        self.asked.append(self.path)
        has_it = self.headers.get("If-None-Match") == '"1"'
        self.send_response(304 if has_it else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Cache-Control", self.path.rpartition("/")[2])
        self.send_header("Content-Length", "0" if has_it else str(len(BODY)))
        self.end_headers()
        if not has_it:
            self.wfile.write(BODY)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    """Return the URL of a site that was not asked yet."""
    Site.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def fetch(client: Client[bytes], url: str) -> bytes:
    """Return a page, by a session of its own."""
    with CacheControl(requests.Session(), cache=VolcacheStorage(client)) as session:
        return session.get(url, timeout=30).content


def test_a_page_is_asked_for_once(client: Client[bytes], site: str) -> None:
    """By all sessions, of all processes."""
    for _ in range(3):
        assert fetch(client, f"{site}/max-age=1000") == BODY
    assert Site.asked == ["/max-age=1000"]


def test_a_page_is_validated_by_its_etag(client: Client[bytes], site: str) -> None:
    """It is received once."""
    for _ in range(3):
        assert fetch(client, f"{site}/no-cache") == BODY
    assert Site.asked == ["/no-cache"] * 3


def test_a_page_that_must_not_be_kept_is_not(client: Client[bytes], site: str) -> None:
    """As its directive says."""
    for _ in range(2):
        assert fetch(client, f"{site}/no-store") == BODY
    storage = VolcacheStorage(client)
    assert Site.asked == ["/no-store"] * 2
    assert storage.get(f"{site}/no-store") is None


def test_a_post_removes_the_page(client: Client[bytes], site: str) -> None:
    """As CacheControl does after what may change it."""
    fetch(client, f"{site}/max-age=1000")
    storage = VolcacheStorage(client)
    storage.delete(f"{site}/max-age=1000")
    fetch(client, f"{site}/max-age=1000")
    assert len(Site.asked) == 2


def test_heuristics_of_cachecontrol_apply(client: Client[bytes], site: str) -> None:
    """Here a time for pages that name none."""
    cache = VolcacheStorage(client)
    heuristic = ExpiresAfter(hours=1)
    with CacheControl(requests.Session(), cache=cache, heuristic=heuristic) as session:
        for _ in range(2):
            assert session.get(f"{site}/public", timeout=30).content == BODY
    assert Site.asked == ["/public"]


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [
        (90, 90),
        (NOW + timedelta(seconds=90), 90),
        ((NOW + timedelta(seconds=90)).replace(tzinfo=None), 90),
        (None, 200),
        (0, None),
        (-5, None),
        (NOW, None),
        (NOW - timedelta(days=1), None),
    ],
)
def test_an_answer_is_kept_until_it_expires(
    client: Client[bytes], expires: int | datetime | None, seconds: int | None
) -> None:
    """What has expired replaces what was there before."""
    storage = VolcacheStorage(client, ttl=200, now=lambda: NOW)
    storage.set("http://host/a/../b", b"before")
    storage.set("http://host/a/../b", b"answer", expires)
    if seconds is None:
        assert storage.get("http://host/a/../b") is None
        return
    assert storage.get("http://host/a/../b") == b"answer"
    head = client.head(storage._key("http://host/a/../b"))
    assert head is not None
    assert seconds - 40 <= (head.max_age or 0) <= seconds


def test_an_outage_is_a_miss_if_the_client_says_so(site: str) -> None:
    """Pages are then asked for each time."""
    url = f"http://127.0.0.1:{pick_port()}"
    with Client(url, on_error="miss") as client:
        for _ in range(2):
            assert fetch(client, f"{site}/max-age=1000") == BODY
    assert len(Site.asked) == 2


def test_the_module_says_what_to_install() -> None:
    """If CacheControl is not there."""
    program = """
import sys
sys.modules["cachecontrol"] = None
try:
    import volcache_client.adapters.cachecontrol
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install CacheControl" in done.stdout
