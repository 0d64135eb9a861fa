"""Instances that serve numbers which a test sets, and remember what they were told."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from support.background import in_background
from support.ports import pick_port
from support.stats_server import empty_stats, now_seconds
from volcache.fleet.targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Handler(BaseHTTPRequestHandler):
    server: FakeInstance

    def do_GET(self) -> None:
        """Send the numbers."""
        if self.path.partition("?")[0] == "/-/stats":
            self._send(200, json.dumps(self.server.now()).encode())
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        """Remember the request, and answer as the test wants."""
        token = self.headers.get("Authorization", "")
        self.server.told.append(f"{self.path} {token}")
        status, text = self.server.reply
        self._send(status, f"{text}\n".encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class FakeInstance(ThreadingHTTPServer):
    """Listens at a port of its own, and answers within `serving` only."""

    daemon_threads = True

    def __init__(self) -> None:
        """Choose a port."""
        super().__init__(("127.0.0.1", pick_port()), _Handler)
        self.stats: dict[str, Any] = empty_stats()
        self.stats["process"]["pid"] = self.server_port
        self.told: list[str] = []
        self.reply = (200, "done")
        self.clock_ahead = 0.0

    @property
    def name(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.server_port}"

    def now(self) -> dict[str, Any]:
        """Return the numbers at this moment."""
        now = now_seconds()
        uptime = now - self.stats["started"]
        times = {"now": now + self.clock_ahead, "uptime_seconds": uptime}
        return {**self.stats, **times}


@contextmanager
def fake_fleet(count: int) -> Iterator[list[FakeInstance]]:
    """Run instances until the context ends."""
    with ExitStack() as stack:
        fleet = [stack.enter_context(FakeInstance()) for _ in range(count)]
        for one in fleet:

            def serve(_: object, one: FakeInstance = one) -> None:
                one.serve_forever(0.01)

            stack.enter_context(in_background(serve))
            stack.callback(one.shutdown)
        yield fleet


def targets_of(fleet: list[FakeInstance], **more: Any) -> list[Target]:
    """Return the targets of instances."""
    return [Target(one.name, f"http://{one.name}", **more) for one in fleet]


def free_address() -> str:
    """Return a HOST:PORT where nothing listens."""
    return f"127.0.0.1:{pick_port()}"
