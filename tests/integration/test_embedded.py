"""A directory that is used by the server and from Python, also at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

import volcache
from support.embedded import open_small
from support.process import ServerProcess

pytestmark = pytest.mark.integration


def test_server_and_python_read_what_the_other_has_stored(tmp_path: Path) -> None:
    """While the other is stopped, or both at once."""
    settings = {"volume_size": 2 << 20, "volume_num": 16}
    with ServerProcess(tmp_path, settings=settings) as server:
        for key, body in (("a/b c.txt", b"1"), ("%C3%A9", b"2"), ("gone", b"3")):
            assert requests.put(f"{server.url}/{key}", body, timeout=30).ok
        with open_small(tmp_path) as guest:
            assert guest["a/b c.txt"] == b"1"
            guest.set("guest", b"4", ttl=1000)
            found = guest.stat("é")
            assert found is not None
            assert guest.cas("é", b"5", found.etag)
        assert requests.get(f"{server.url}/guest", timeout=30).content == b"4"
        assert requests.delete(f"{server.url}/guest", timeout=30).ok
        assert requests.put(f"{server.url}/%C3%A9", b"2", timeout=30).ok
        assert server.terminate() == 0
        with volcache.open(tmp_path, capacity="32MiB", serializer="json") as cache:
            assert cache.volume_size == 2 << 20
            assert cache["a/b c.txt"] == 1
            assert cache["é"] == 2
            assert set(cache.keys()) == {b"a/b c.txt", "é".encode(), b"gone"}
            cache.set("list", [1, 2], ttl=1000)
            del cache["gone"]
        server.restart()
        answer = requests.get(f"{server.url}/list", timeout=30)
        assert answer.content == b"[1,2]"
        assert answer.headers["Content-Type"] == "application/json"
        assert "max-age" in answer.headers["Cache-Control"]
        assert requests.get(f"{server.url}/gone", timeout=30).status_code == 404
        assert requests.get(f"{server.url}/a/b%20c.txt", timeout=30).content == b"1"
