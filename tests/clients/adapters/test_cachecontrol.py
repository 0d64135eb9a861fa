"""The storage of CacheControl, with requests and a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
import requests
from cachecontrol import CacheControl

from support.ports import pick_port
from volcache_client import Client
from volcache_client.adapters.cachecontrol import VolcacheStorage

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BODY = bytes(range(256)) * 8


class Site(BaseHTTPRequestHandler):
    """A site whose pages may be kept."""

    asked: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a page."""
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Cache-Control", "max-age=1000")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
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
    """By all sessions, of all processes, until it is removed."""
    for _ in range(3):
        assert fetch(client, f"{site}/page") == BODY
    assert Site.asked == ["/page"]
    VolcacheStorage(client).delete(f"{site}/page")
    assert fetch(client, f"{site}/page") == BODY
    assert len(Site.asked) == 2


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
    head = client.stat(storage._key("http://host/a/../b"))
    assert head is not None
    assert seconds - 40 <= (head.ttl or 0) <= seconds


def test_an_outage_is_a_miss_if_the_client_says_so(site: str) -> None:
    """Pages are then asked for each time."""
    url = f"http://127.0.0.1:{pick_port()}"
    with Client(url, on_error="miss") as client:
        for _ in range(2):
            assert fetch(client, f"{site}/page") == BODY
    assert len(Site.asked) == 2


@pytest.mark.parametrize("library", ["CacheControl", "Django"])
def test_a_module_says_what_to_install(library: str) -> None:
    """If its library is not there."""
    name = library.lower()
    program = (
        f"import sys; sys.modules['{name}'] = None\n"
        f"import volcache_client.adapters.{name}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"pip install {library}" in done.stderr
