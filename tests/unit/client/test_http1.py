"""Exchanges of HTTP/1.1 without I/O; broken answers are in `test_exchanges.py`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scripted_server import OK
from support.tables import each_row
from volcache_client.http1 import BadAnswerError, Host, HttpExchange
from volcache_client.messages import Request


def ask(*pieces: bytes, method: str = "GET") -> HttpExchange:
    """Receive what a server sends before it closes."""
    exchange = HttpExchange(Host("h:1"), [Request(method, "/key", {})], is_whole=False)
    exchange.is_sent = True
    for piece in (*filter(None, pieces), b""):
        if not exchange.is_complete:
            exchange.receive(piece)
    return exchange


def test_headers_in_any_case_are_found_and_joined() -> None:
    """Servers and proxies write them as they like."""
    found = ask(OK + b'etag: "1"\r\nA: b\r\na:\t c \r\nContent-Length: 0\r\n\r\n')
    assert found.headers["ETag"] == found.headers.get("ETAG") == '"1"'
    assert found.headers["A"] == "b, c"
    assert "Etag" in found.headers
    assert found.headers.get("X-Cache", "none") == "none"
    assert [*found.headers] == ["etag", "a", "content-length"]
    assert len(found.headers) == 3


@given(
    cuts=st.lists(st.integers(0, 200), max_size=8),
    body=st.binary(max_size=80),
    is_chunked=st.booleans(),
    interim=st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]),
)
def test_receive_in_pieces_of_any_size_returns_the_same_answer(
    cuts: list[int], body: bytes, *, is_chunked: bool, interim: bytes
) -> None:
    """TCP keeps no boundaries; a proxy may send an interim answer."""
    if is_chunked:
        parts = [body[at : at + 7] for at in range(0, len(body), 7)]
        chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
        whole = (
            OK + b"Transfer-Encoding: Chunked\r\n\r\n" + chunks + b"0\r\nT: 1\r\n\r\n"
        )
    else:
        whole = OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    whole = interim + whole
    pieces = [whole[a:b] for a, b in pairwise([0, *sorted(cuts), len(whole)])]
    found = ask(*pieces)
    assert (found.status, found.buffered) == (200, len(body))
    assert found.is_reusable
    assert found.read(3) + found.read(0) + found.read() == body
    assert (found.read(1), found.buffered) == (b"", 0)
    with pytest.raises(BadAnswerError):
        ask(whole[:-1])


@each_row(
    ("method", "whole", "body", "is_reusable"),
    [
        ("GET", b"HTTP/1.1 204 Nothing\r\n\r\n", b"", True),
        ("GET", b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", b"", True),
        ("HEAD", OK + b"Content-Length: 1024\r\n\r\n", b"", True),
        ("GET", OK + b"Content-Length: 1\r\nConnection: close\r\n\r\nx", b"x", False),
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", False),
        ("GET", OK + b"Content-Length: 1\r\n\r\nxy", b"x", False),
        ("GET", OK + b"\r\n|x", b"x", False),
    ],
)
def test_connection_is_reusable_only_if_it_is_in_step(
    method: str, whole: bytes, body: bytes, *, is_reusable: bool
) -> None:
    """The next answer could be that to this request. The pieces are split at `|`."""
    found = ask(*whole.split(b"|"), method=method)
    assert (found.read(), found.is_reusable) == (body, is_reusable)
    found.is_sent = False
    assert not found.is_reusable
