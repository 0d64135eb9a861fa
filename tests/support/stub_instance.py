"""
An instance that only says what it received: every answer is chosen by the path.

A path whose last segment is 413 is answered with 413 and `HEADERS`. Every request is
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from support.background import in_background

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request as it arrived."""

    line: str
    headers: Message
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubInstance

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        self.server.received.append(
            Received(line=self.requestline, headers=self.headers, body=body)
        )
        status = int(self.path.rpartition("/")[2])
        text = instance_text(status)
        self.send_response(status)
        for header in HEADERS.items():
            self.send_header(*header)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class StubInstance(ThreadingHTTPServer):
    """Listens at a free port."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        """Listen."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []

    @property
    def name(self) -> str:
        """`host:port`, as in `instances.conf`."""
        return f"127.0.0.1:{self.server_port}"


def instance_text(status: int) -> bytes:
    """Return the body of an answer."""
    return f"the instance answers {status}\n".encode()


@contextmanager
def stub_instance() -> Iterator[StubInstance]:
    """Run an instance until the context ends."""
    with StubInstance() as server, in_background(lambda _: server.serve_forever(0.01)):
        try:
            yield server
        finally:
            server.shutdown()
