"""Real memcached processes, and servers that a test scripts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pymemcache.client.base import Client  # noqa: TID251 - To read the items.

from support.ports import pick_port
from support.program import Program
from support.scripted_server import Peer, ScriptedServer
from support.waiting import wait_until


class MemcachedProcess(Program):
    """One memcached, on a port or a unix socket of its own; empty at each start."""

    is_asked_to_end = False  # It has nothing to lose, and may be suspended.

    def __init__(self, *options: str, path: Path | None = None) -> None:
        """Start nothing yet."""
        super().__init__()
        self._options = options
        self.path = path
        self.is_disturbed = False  # Whether it was suspended or killed.
        self.port = 0 if path else pick_port()

    @property
    def address(self) -> str:
        """The address, as in `memc_servers`."""
        return str(self.path) if self.path else f"127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        """Return memcached with 64 MiB and the options."""
        program = shutil.which("memcached", path=f"{os.environ['PATH']}:/usr/bin")
        assert program is not None, "memcached is not installed"
        where = ["-s", str(self.path)] if self.path else ["-p", str(self.port), "-U0"]
        user = ["-u", "nobody"] if os.getuid() == 0 and not self.path else []
        user = ["-u", "root"] if os.getuid() == 0 and self.path else user
        return [program, "-l", "127.0.0.1", "-m", "64", *where, *user, *self._options]

    def answers(self) -> bool:
        """Whether it returns its version."""
        with suppress(OSError), self.client() as client:
            client.version()
            return True
        return False

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Open a connection of its own."""
        server = str(self.path) if self.path else ("127.0.0.1", self.port)
        client = Client(server, timeout=5, connect_timeout=5)
        try:
            yield client
        finally:
            client.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.is_disturbed = True
        super().send_signal(number)

    def kill(self) -> None:
        """Kill it."""
        self.is_disturbed = True
        super().kill()

    def forget(self) -> None:
        """Drop all items."""
        with self.client() as client:
            client.flush_all(noreply=False)

            def is_empty() -> bool:
                # Otherwise it counts them until they are asked for.
                client.raw_command("lru_crawler crawl all")
                return not self.items()

            wait_until(is_empty, "no items")

    def _stats(self) -> dict[bytes, Any]:
        with self.client() as client:
            stats: dict[bytes, Any] = client.stats()
            return stats

    def items(self) -> int:
        """Return the number of items."""
        return int(self._stats()[b"curr_items"])

    def calls(self) -> int:
        """Return the number of gets, sets and deletes so far."""
        stats = self._stats()
        names = (b"cmd_get", b"cmd_set", b"delete_hits", b"delete_misses")
        return sum(int(stats[name]) for name in names)


class FakeMemcached(ScriptedServer):
    """A TCP server that passes what it receives to a function, which answers."""

    def __init__(
        self, answer: Callable[[bytes, socket.socket], None], port: int = 0
    ) -> None:
        """Listen; `answer` is called with the received bytes and the connection."""

        def serve(peer: Peer) -> None:
            while data := peer.socket.recv(1 << 20):
                answer(data, peer.socket)

        listener = socket.create_server(("127.0.0.1", port))
        super().__init__(serve, listener=listener)
        self.address = self.name
