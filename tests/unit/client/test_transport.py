"""Requests on connections of their own, to any URL."""

from __future__ import annotations

from functools import partial

import pytest

from support.scripted_server import Peer, ScriptedServer, sending, value
from support.tables import each_row
from volcache_client.errors import (
    InvalidArgumentError,
    NodeConnectionError,
)
from volcache_client.transport import fetch


def test_fetch_of_any_status_returns_the_answer() -> None:
    """With its path, query, headers and body; the connection is closed."""
    answer = b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno"
    with ScriptedServer(answer) as server:
        url = f"http://{server.name}/disk/-/purge?prefix=a%20b"
        found = fetch(url, method="POST", headers={"A": "b"}, body=b"")
        assert (found.status, found.headers["retry-after"], found.body) == (
            503, "1", b"no",
        )  # fmt: skip
        fetch(f"http://{server.name}")
    post, get = (request.split(b"\r\n") for request in server.requests)
    assert post[0] == b"POST /disk/-/purge?prefix=a%20b HTTP/1.1"
    assert {b"A: b", b"Content-Length: 0", b"Connection: close"} <= {*post}
    assert get[0] == b"GET / HTTP/1.1"


def test_fetch_of_a_body_above_the_limit_is_an_error() -> None:
    """Whether its length is announced or not. One that is no value is a line of text."""

    def endless(head: bytes, peer: Peer) -> None:
        peer.request()
        peer.send(head)
        while True:  # Until the client has enough.
            peer.send(bytes(1 << 16))

    with sending(value(bytes(1000))) as (name, _):
        assert len(fetch(f"http://{name}", limit_bytes=1000).body) == 1000
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"
    for head in (long, b"HTTP/1.1 200 OK\r\n\r\n"):
        with (
            ScriptedServer(partial(endless, head)) as server,
            pytest.raises(NodeConnectionError, match=f"{server.name}: .* 1000 bytes"),
        ):
            fetch(f"http://{server.name}", limit_bytes=1000)
    with ScriptedServer(partial(endless, b"HTTP/1.1 503 x\r\n\r\n")) as server:
        found = fetch(f"http://{server.name}")
    assert found.status == 503
    assert len(found.body) < 1_000_000


@each_row("url", ["127.0.0.1:1/", "ftp://h/", "http://h:x/", "http://h/a b", "http://"])
def test_fetch_of_a_wrong_url_is_an_error(url: str) -> None:
    """Nothing is sent."""
    with pytest.raises(InvalidArgumentError):
        fetch(url)
