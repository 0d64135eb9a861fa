"""Requests as raw bytes, for what HTTP libraries would not send."""

from __future__ import annotations

import http.client
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPMessage
from typing import Final, NamedTuple, Self

ANSWER_SECONDS: Final = 30.0
# With it, `App` answers a GET: C compares no two tokens, and without a setting none counts.
BY_APP: Final = "Authorization: x\nAuthorization: x"
# Descriptors of the connections to bjoern that a loop keeps: both ends of 16.
KEPT: Final = 33


class Reply(NamedTuple):
    """One response."""

    status: int
    headers: HTTPMessage
    body: bytes


def read_reply(connection: socket.socket, method: str = "GET") -> Reply:
    """Read one response, and nothing after it."""
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        return Reply(response.status, response.headers, response.read())
    finally:
        response.close()


def request_bytes(
    method: str, path: str, body: bytes | None = None, headers: str = ""
) -> bytes:
    """Return a request; `headers` has one header a line; Content-Length if a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers.splitlines()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def send(port: int, data: bytes, method: str = "GET") -> Reply:
    """Send bytes on a new connection and read one response."""
    with connect(port) as connection:
        connection.sendall(data)
        return read_reply(connection, method)


def exchange(
    port: int, method: str, path: str, body: bytes | None = None, headers: str = ""
) -> Reply:
    """Send one request on a new connection and read its response."""
    return send(port, request_bytes(method, path, body, headers), method)


def connect(port: int, *, buffer: int = 0) -> socket.socket:
    """Open a connection, whose buffer for answers may be small."""
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(ANSWER_SECONDS)
    try:
        connection.connect(("127.0.0.1", port))
    except OSError:
        connection.close()
        raise
    return connection


def read_to_the_end(connection: socket.socket) -> bytes:
    """Read until the connection is closed in order; a reset is an error."""
    return b"".join(iter(lambda: connection.recv(1 << 18), b""))


def answer_to(port: int, data: bytes) -> bytes:
    """Send bytes on a new connection; return all that is received until its end."""
    with connect(port) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read_to_the_end(connection)


def reset(connection: socket.socket) -> None:
    """Close a connection with a reset."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


class Wire:
    """One connection, for requests sent one by one or pipelined."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = connect(port)

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.socket.close()

    def ask(self, data: bytes) -> bytes:
        """Send bytes and return all that is received until the server closes."""
        with suppress(ConnectionError):  # Closed before all was sent.
            self.socket.sendall(data)
        return b"".join(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        with suppress(ConnectionResetError):
            while piece := self.socket.recv(1 << 16):
                yield piece


class Talk(Wire):
    """One connection whose answers are read one by one, also those sent ahead of time."""

    def __init__(self, port: int) -> None:
        """Connect."""
        super().__init__(port)
        # So that each piece is sent at once.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self.socket.makefile("rb")

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._answers.close()
        super().__exit__()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def shut(self) -> None:
        """Send nothing more."""
        self.socket.shutdown(socket.SHUT_WR)

    def read(self, method: str = "GET") -> Reply:
        """Read one answer, which may be a `100 Continue`."""
        line = self._answers.readline(1000)
        assert line.startswith(b"HTTP/1.1 "), f"no answer: {line!r}"
        headers = http.client.parse_headers(self._answers)
        status = int(line[9:12])
        has_body = method != "HEAD" and status not in {100, 304}
        length = int(headers["Content-Length"]) if has_body else 0
        body = self._answers.read(length)
        assert len(body) == length, f"{len(body)} bytes of {length}"
        return Reply(status, headers, body)

    def exchange(
        self, method: str, path: str, body: bytes | None = None, headers: str = ""
    ) -> Reply:
        """Send a request and read its answer."""
        self.send(request_bytes(method, path, body, headers))
        return self.read(method)

    def has_ended(self) -> bool:
        """Wait for more; return whether the server closed the connection instead."""
        return self._answers.read(1) == b""
