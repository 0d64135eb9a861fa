"""Requests as raw bytes, for what HTTP libraries would not send."""

from __future__ import annotations

import http.client
import socket
import struct
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

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


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


def exchange(
    port: int, method: str, path: str, body: bytes | None = None, headers: str = ""
) -> Reply:
    """Send one request on a new connection and read its response."""
    with sending(port, request_bytes(method, path, body, headers)) as connection:
        return read_reply(connection, method)


def connect(port: int, *, buffer: int = 0, source: str = "") -> socket.socket:
    """Open a connection from an address; its buffer for answers may be small."""
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(ANSWER_SECONDS)
    try:
        if source:
            connection.bind((source, 0))
        connection.connect(("127.0.0.1", port))
    except OSError:
        connection.close()
        raise
    return connection


def sending(port: int, data: bytes, *, buffer: int = 0) -> socket.socket:
    """Open a connection and send bytes."""
    connection = connect(port, buffer=buffer)
    connection.sendall(data)
    return connection


def read_to_the_end(connection: socket.socket) -> bytes:
    """Read until the connection is closed in order; a reset is an error."""
    return b"".join(iter(lambda: connection.recv(1 << 18), b""))


def reset(connection: socket.socket) -> None:
    """Close a connection with a reset."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


class Talk:
    """One connection; answers are read one by one, also those of requests sent ahead."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = connect(port)
        # So that each piece is sent at once.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._answers.close()
        self.socket.close()

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
