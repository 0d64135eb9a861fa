"""Requests on connections of their own, to any URL."""

from __future__ import annotations

import pytest

from support.scripted_server import Peer, ScriptedServer, always, sending, value
from support.tables import each_row
from volcache_client.errors import (
    InvalidArgumentError,
    NodeConnectionError,
    NodeTimeoutError,
)
from volcache_client.transport import fetch


def test_a_url_is_fetched_whatever_its_status() -> None:
    """With its path, query, headers and body; the connection is closed."""
    answer = b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno"
    with always(answer) as server:
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


def test_a_body_has_a_limit() -> None:
    """Whether its length is announced or not. One that is no value is a line of text."""
    status = 200

    def endless(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 %d x\r\n\r\n" % status)
        while True:  # Until the client has enough.
            peer.send(bytes(1 << 16))

    for size, is_allowed in ((1000, True), (1001, False), (5_000_000, False)):
        with sending(value(bytes(size))) as (name, _):
            if is_allowed:
                assert len(fetch(f"http://{name}", limit_bytes=1000).body) == size
            else:
                with pytest.raises(NodeConnectionError, match=f"{name}: .* 1000 bytes"):
                    fetch(f"http://{name}", limit_bytes=1000)
    with (
        ScriptedServer(endless) as server,
        pytest.raises(NodeConnectionError, match="longer than 1000 bytes"),
    ):
        fetch(f"http://{server.name}", limit_bytes=1000)
    status = 503
    with ScriptedServer(endless) as server:
        found = fetch(f"http://{server.name}")
    assert found.status == status
    assert len(found.body) < 1_000_000


@pytest.mark.slow
def test_the_time_is_that_of_all_of_it() -> None:
    """A server that sends bytes slowly does not extend it."""

    def trickle(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            peer.send(b"x")

    with (
        ScriptedServer(trickle) as server,
        pytest.raises(NodeTimeoutError, match=f"{server.name}: no answer in time"),
    ):
        fetch(f"http://{server.name}", timeout=0.2)


@each_row("url", ["127.0.0.1:1/", "ftp://h/", "http://h:x/", "http://h/a b", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    """Nothing is sent."""
    with pytest.raises(InvalidArgumentError):
        fetch(url)
