"""Exchanges of HTTP/1.1: answers as servers and broken servers send them."""

from __future__ import annotations

import socket
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.answers import BROKEN, OK
from support.tables import each_row
from volcache_client.http1 import (
    BadAnswerError,
    Exchanged,
    Headers,
    NotAnsweredError,
    exchange,
)
from volcache_client.messages import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

GET = Request("GET", "/key", {"Accept-Encoding": "identity"})


class Script:
    """A socket that receives pieces, and notes what is sent."""

    def __init__(self, pieces: Iterable[bytes], *, accepts: bool = True) -> None:
        self.sent = b""
        self._pieces = [piece for piece in pieces if piece]
        self._accepts = accepts

    def settimeout(self, seconds: float) -> None:
        """Accept what a socket accepts."""
        assert seconds > 0

    def sendall(self, data: bytes) -> None:
        """Note it, or fail as a socket whose other end has closed."""
        if not self._accepts:
            raise BrokenPipeError
        self.sent += data

    def recv(self, count: int) -> bytes:
        """Return a piece, or its beginning."""
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if piece[count:]:
            self._pieces.insert(0, piece[count:])
        return piece[:count]


def ask(*pieces: bytes, request: Request = GET) -> Exchanged:
    """Exchange with a server that answers so, and closes."""
    return exchange(Script(pieces), request, "h:1", 5)


def test_a_request_is_sent_with_its_host_and_headers() -> None:
    """And nothing else."""
    script = Script([OK + b"Content-Length: 0\r\n\r\n"])
    exchange(script, GET, "h:1", 5)
    assert script.sent == (
        b"GET /key HTTP/1.1\r\nHost: h:1\r\nAccept-Encoding: identity\r\n\r\n"
    )


@each_row("size", [0, 1, 70_000])
def test_a_body_is_sent_with_its_length(size: int) -> None:
    """Also an empty one."""
    script = Script([OK + b"Content-Length: 0\r\n\r\n"])
    exchange(script, Request("PUT", "/key", {}, bytes(size)), "h:1", 5)
    head = f"PUT /key HTTP/1.1\r\nHost: h:1\r\nContent-Length: {size}\r\n\r\n"
    assert script.sent == head.encode() + bytes(size)


def test_headers_are_found_in_any_case_and_joined() -> None:
    """Servers and proxies write them as they like."""
    answer, _ = ask(OK + b'etag: "1"\r\nA: b\r\na:\t c \r\nContent-Length: 0\r\n\r\n')
    assert isinstance(answer.headers, Headers)
    assert answer.headers["ETag"] == answer.headers.get("ETAG") == '"1"'
    assert answer.headers["A"] == "b, c"
    assert "Etag" in answer.headers
    assert answer.headers.get("X-Cache", "none") == "none"


@given(
    cuts=st.lists(st.integers(0, 200), max_size=8),
    body=st.binary(max_size=80),
    is_chunked=st.booleans(),
)
def test_pieces_of_any_size_are_the_same_answer(
    cuts: list[int], body: bytes, *, is_chunked: bool
) -> None:
    """TCP keeps no boundaries."""
    if is_chunked:
        parts = [body[at : at + 7] for at in range(0, len(body), 7)]
        chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
        whole = (
            OK + b"Transfer-Encoding: Chunked\r\n\r\n" + chunks + b"0\r\nT: 1\r\n\r\n"
        )
    else:
        whole = OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    found = ask(*pieces)
    assert (found.answer.status, found.answer.body) == (200, body)
    assert found.is_reusable


def test_an_interim_answer_is_skipped() -> None:
    """A proxy may send one that was not asked for."""
    found = ask(b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 1\r\n\r\nx")
    assert found.answer.body == b"x"


@each_row("status", [204, 304])
def test_answers_without_a_body_are_complete(status: int) -> None:
    """Whatever their headers say."""
    found = ask(b"HTTP/1.1 %d Nothing\r\n\r\n" % status)
    assert (found.answer.status, found.is_reusable) == (status, True)


def test_the_answer_to_head_has_no_body() -> None:
    """Its length is that of GET."""
    head = Request("HEAD", "/key", {})
    found = ask(OK + b"Content-Length: 1024\r\n\r\n", request=head)
    assert (found.answer.body, found.is_reusable) == (b"", True)


@each_row(
    "answer",
    [
        OK + b"Content-Length: 1\r\nConnection: close\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        OK + b"Content-Length: 1\r\n\r\nxy",
        OK + b"\r\nx",
    ],
)
def test_a_connection_that_is_not_known_to_be_in_step_is_not_used_again(
    answer: bytes,
) -> None:
    """The next answer could be that to this request."""
    found = ask(answer)
    assert (found.answer.body, found.is_reusable) == (b"x", False)


def test_an_answer_before_the_body_was_sent_is_returned() -> None:
    """As a server does with a body that is too large."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
    script = Script([refusal], accepts=False)
    found = exchange(script, Request("PUT", "/key", {}, bytes(100_000)), "h:1", 5)
    assert (found.answer.status, found.is_reusable) == (413, False)


@each_row("accepts", [True, False])
def test_a_connection_closed_before_the_answer_is_told_apart(*, accepts: bool) -> None:
    """A repeatable request may be sent again."""
    with pytest.raises(NotAnsweredError):
        exchange(Script([], accepts=accepts), GET, "h:1", 5)


@pytest.mark.parametrize("answer", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_answer_is_an_error(answer: bytes) -> None:
    """It is never a shorter value."""
    with pytest.raises(BadAnswerError):
        ask(answer)


def test_a_server_that_sends_a_byte_now_and_then_is_too_late() -> None:
    """The time is that of the whole exchange."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.1
        return now

    slow = [bytes([byte]) for byte in OK + b"Content-Length: 99\r\n\r\n"]
    with pytest.raises(TimeoutError):
        exchange(Script(slow), GET, "h:1", 2, clock)


def test_a_server_that_is_silent_is_too_late() -> None:
    """With a real socket."""
    near, far = socket.socketpair()
    with near, far, pytest.raises(TimeoutError):
        exchange(near, GET, "h:1", 0.05)


def test_a_reset_before_the_answer_is_told_apart() -> None:
    """With a real socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + bytes(7))
        far.close()
        with near, pytest.raises(NotAnsweredError):
            exchange(near, GET, "h:1", 5)


def test_a_large_body_is_received_whole() -> None:
    """With a real socket."""
    near, far = socket.socketpair()
    body = bytes(range(256)) * 4096
    whole = OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    sender = Thread(target=far.sendall, args=[whole])
    with near, far:
        sender.start()
        found = exchange(near, GET, "h:1", 30)
        sender.join()
    assert found.answer.body == body
