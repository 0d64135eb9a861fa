"""Requests as bytes on a connection, so that each can be as odd as real clients are."""

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
    """What came back."""

    status: int
    headers: HTTPMessage
    body: bytes


def read_reply(connection: socket.socket, method: str = "GET") -> Reply:
    """Read one answer, without what may follow it."""
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        return Reply(response.status, response.headers, response.read())
    finally:
        response.close()


def request_bytes(
    method: str, path: str, body: bytes | None = None, headers: str = ""
) -> bytes:
    """Write a request; `headers` has one on each line, length only if there is a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers.splitlines()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def send(port: int, data: bytes, method: str = "GET") -> Reply:
    """Send bytes on a connection of their own and read one answer."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall(data)
        return read_reply(connection, method)


def exchange(
    port: int, method: str, path: str, body: bytes | None = None, headers: str = ""
) -> Reply:
    """Send one request on a connection of its own and read its answer."""
    return send(port, request_bytes(method, path, body, headers), method)


class Wire:
    """One connection; requests may be sent many at once."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)

    def __enter__(self) -> Self:
        """Give the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.socket.close()

    def ask(self, data: bytes) -> bytes:
        """Send something, and return all that comes until the other side closes."""
        with suppress(ConnectionError):  # Refused before it was all sent.
            self.socket.sendall(data)
        return b"".join(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        with suppress(ConnectionResetError):
            while piece := self.socket.recv(1 << 16):
                yield piece
