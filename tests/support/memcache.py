"""A server that speaks the memcached protocol, and a client for raw bytes."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from support.ports import pick_port
from support.process import SHARED, ServerProcess

SECONDS: Final = 20.0  # For each operation of a client.


class RawClient:
    """One connection; what is received and was not asked for is kept."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        """Connect to a host and port, or to the path of a unix socket."""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(SECONDS)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise
        self._received = b""

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def line(self) -> bytes:
        """Return the next line without its end; fail if the connection is closed."""
        while b"\r\n" not in self._received:
            self._receive()
        line, _, self._received = self._received.partition(b"\r\n")
        return line

    def read(self, count: int) -> bytes:
        """Return the next bytes; fail if the connection is closed."""
        while len(self._received) < count:
            self._receive()
        found, self._received = self._received[:count], self._received[count:]
        return found

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"closed after {self._received!r}"
        self._received += data

    def ask(self, data: bytes) -> bytes:
        """Send a command and return the first line of its reply."""
        self.send(data)
        return self.line()

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        head = self.ask(b"get %s\r\n" % key.encode())
        if head == b"END":
            return None
        size = int(head.split()[3])
        value = self.read(size)
        assert self.read(7) == b"\r\nEND\r\n"
        return value

    def set(self, key: str, value: bytes) -> bytes:
        """Store a value; return the reply."""
        return self.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value))

    def stats(self, argument: str = "") -> dict[str, str]:
        """Return statistics."""
        self.send(f"stats {argument}".strip().encode() + b"\r\n")
        found = {}
        while (line := self.line().decode()) != "END":
            _, name, value = line.split(" ", 2)
            found[name] = value
        return found

    def rest(self) -> bytes:
        """Return all that is received until the connection is closed."""
        with suppress(ConnectionError):
            while data := self.socket.recv(1 << 16):
                self._received += data
        return self._received

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()


class MemcacheServer(ServerProcess):
    """`python src/` with `memcache_listen`, by default on a free port of 127.0.0.1."""

    def __init__(
        self,
        mount_point: Path | str,
        settings: Mapping[str, object] | None = None,
        *,
        has_http: bool = True,
        **more: Any,
    ) -> None:
        """Start nothing yet; settings are added to `SHARED`. Without HTTP, `port` is 0."""
        listen = f"127.0.0.1:{pick_port()}"
        own = {"sync_mode": "periodic", "memcache_listen": listen}
        given = {**SHARED, **own, **(settings or {})}
        super().__init__(mount_point, settings=given, **more)
        self.port *= has_http

    @property
    def memcache_address(self) -> str:
        """The setting `memcache_listen`."""
        return str(self.settings["memcache_listen"])

    @property
    def memcache_port(self) -> int:
        """Its port."""
        return int(self.memcache_address.rpartition(":")[2])

    def client(self) -> RawClient:
        """Connect."""
        address = self.memcache_address
        if address.startswith("/"):
            return RawClient(address)
        host = address.rpartition(":")[0] if address.startswith("127.") else "127.0.0.1"
        return RawClient((host, self.memcache_port))

    def answers(self) -> bool:
        """Whether it answers in all protocols that it speaks."""
        if self.port and not super().answers():
            return False
        try:
            with self.client() as client:
                return client.ask(b"version\r\n").startswith(b"VERSION ")
        except (OSError, AssertionError):
            return False
