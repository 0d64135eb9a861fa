"""Requests as raw bytes, for what HTTP libraries would not send."""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPMessage

ANSWER_SECONDS: Final = 30.0


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
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers.splitlines()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def send(port: int, data: bytes, method: str = "GET") -> Reply:
    """Send bytes on a new connection and read one response."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall(data)
        return read_reply(connection, method)


def exchange(
    port: int, method: str, path: str, body: bytes | None = None, headers: str = ""
) -> Reply:
    """Send one request on a new connection and read its response."""
    return send(port, request_bytes(method, path, body, headers), method)


class Wire:
    """One connection, for requests sent one by one or pipelined."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)

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
