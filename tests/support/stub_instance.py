"""
An instance that only says what it received: every answer is chosen by the path.

A path whose last segment is 413 is answered with 413 and `HEADERS`. Every request is
recorded.
"""

from __future__ import annotations

from email.message import Message
from email.parser import Parser
from typing import Final, NamedTuple

from support.scripted_server import ScriptedServer, answering

# What nginx must not remove or change.
HEADERS: Final = {
    "Access-Control-Allow-Headers": "Authorization, Range",
    "Access-Control-Allow-Methods": "GET, PUT",
    "Access-Control-Allow-Origin": "https://page.example",
    "Access-Control-Expose-Headers": "ETag, X-Cache, X-Position",
    "Access-Control-Max-Age": "7200",
    "Allow": "GET, HEAD, PUT",
    "Cache-Control": "public, immutable, max-age=60",
    "Content-Security-Policy": "sandbox",
    "Content-Type": "text/plain; charset=utf-8",
    "ETag": '"1"',
    "Location": "http://elsewhere.example/",
    "Retry-After": "7",
    "Vary": "Origin",
    "WWW-Authenticate": 'Basic realm="instance"',
    "X-Cache": "DISK",
    "X-Content-Type-Options": "nosniff",
    "X-Position": "0,64,66",
}


class Received(NamedTuple):
    """A request as it arrived."""

    line: str
    headers: Message
    body: bytes


class StubInstance(ScriptedServer):
    """Listens at a free port."""

    def __init__(self) -> None:
        """Listen."""
        super().__init__(answering(self._answer))
        self.received: list[Received] = []

    def _answer(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        line, _, fields = head.decode("latin-1").partition("\r\n")
        self.received.append(Received(line, Parser().parsestr(fields), body))
        method, path, _ = line.split(" ")
        status = int(path.rpartition("/")[2])
        text = instance_text(status)
        lines = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        head = f"HTTP/1.1 {status} x\r\n{lines}Content-Length: {len(text)}\r\n\r\n".encode()
        return head + (b"" if method == "HEAD" else text)


def instance_text(status: int) -> bytes:
    """Return the body of an answer."""
    return f"the instance answers {status}\n".encode()
