"""Answers of HTTP/1.1 as servers send them; broken ones are in `test_client.py`."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.answers import OK
from support.tables import each_row
from volcache_client.http1 import BadAnswerError, Exchanged, exchange, receive
from volcache_client.messages import Request


def ask(*pieces: bytes, method: str = "GET") -> Exchanged:
    """Receive what a server sends before it closes."""
    receiving = receive(method)
    next(receiving)
    try:
        for piece in (*filter(None, pieces), b""):
            receiving.send(piece)
    except StopIteration as stop:
        exchanged: Exchanged = stop.value
        return exchanged
    raise AssertionError("no answer")


def test_headers_are_found_in_any_case_and_joined() -> None:
    """Servers and proxies write them as they like."""
    answer, _ = ask(OK + b'etag: "1"\r\nA: b\r\na:\t c \r\nContent-Length: 0\r\n\r\n')
    assert answer.headers["ETag"] == answer.headers.get("ETAG") == '"1"'
    assert answer.headers["A"] == "b, c"
    assert "Etag" in answer.headers
    assert answer.headers.get("X-Cache", "none") == "none"


@given(
    cuts=st.lists(st.integers(0, 200), max_size=8),
    body=st.binary(max_size=80),
    is_chunked=st.booleans(),
    interim=st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]),
)
def test_pieces_of_any_size_are_the_same_answer(
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
    assert (found.answer.status, found.answer.body) == (200, body)
    assert found.is_reusable
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
def test_a_connection_is_used_again_only_if_it_is_known_to_be_in_step(
    method: str, whole: bytes, body: bytes, *, is_reusable: bool
) -> None:
    """The next answer could be that to this request. The pieces are split at `|`."""
    found = ask(*whole.split(b"|"), method=method)
    assert (found.answer.body, found.is_reusable) == (body, is_reusable)


def test_an_answer_that_comes_slowly_is_too_late() -> None:
    """The time is that of the whole exchange."""
    near, far = socket.socketpair()
    with near, far:
        far.sendall(OK)
        times = iter((0.0, 1.0, 3.0))
        with pytest.raises(TimeoutError):
            exchange(near, Request("GET", "/key", {}), "h:1", 2, times.__next__)
