"""A front for memcached clients, by the clock of a test, and a client of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any, Final, Self

from support import binary_protocol as wire
from support.memcache import RawClient
from support.simulated import SimulatedFileSystem
from support.stores import VOLUME_SIZE, FakeClock, open_store
from support.waiting import wait_until
from support.wsgi_client import make_app
from volcache.access import Access, Limits
from volcache.cache import Cache
from volcache.front import AccessLog, CommandFacts, Readers
from volcache.hot.memcached import MemcachedTier
from volcache.http.cors import CorsHeaders
from volcache.memcache.service import Service
from volcache.memcache.sockets import ListeningSocket
from volcache.memcache.statistics import ServerFacts, ServerStatistics
from volcache.monitoring.commands import CommandStats
from volcache.server.addresses import Addresses
from volcache.server.front import Front, Timeouts
from volcache.slow_log import CommandLog
from volcache.store.eviction import Eviction
from volcache.tokens import Refusals

VALUE_SIZE_MAX = 1000

# What is sent last, and how the reply to it ends. Everyone may use these commands.
END: Final = (b"mn\r\nversion\r\nmn\r\n", b"MN\r\nVERSION 1.6.18\r\nMN\r\n")
END_IN_BINARY: Final = (
    wire.request(wire.NOOP, opaque=b"\xfe\xed\xbe\xef"),
    b"\xfe\xed\xbe\xef" + bytes(8),
)


class Talk:
    """A front of a store, and a client of it, which gets all replies to what it sends."""

    def __init__(
        self,
        directory: Path,
        *,
        value_size_max: int = VALUE_SIZE_MAX,
        keys: Iterable[bytes] = (b"a", b"b"),
        hot: MemcachedTier | None = None,
        eviction: Eviction = "frequency",
        front: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        """
        Open the store, serve it, and connect.

        Args:
            directory: Of the store.
            value_size_max: The limit of a value.
            keys: That a connection finds deleted. A flush would take a volume each time.
            hot: A tier in front of the store.
            eviction: As of the store.
            front: How it is served, where not as usual; see `_serve`.
            limits: As of the service, where not the same.
        """
        self._client: socket.socket | None = None
        self.clock = FakeClock()
        self.disk = SimulatedFileSystem()
        self.store = open_store(
            directory,
            clock=self.clock,
            fs=self.disk,
            eviction=eviction,
            volume_size=max(VOLUME_SIZE, 16 * value_size_max),
        )
        self._keys = list(keys)
        self._stats = CommandStats()
        self.refused = {"read": 0, "write": 0, "admin": 0}
        self.sampled: list[bytes] = []
        self.reports: list[bytes] = []  # what `stats` was asked for
        self.hook: Callable[[bytes], object] = lambda _: None  # before each of them
        cache = Cache(self.store, hot)
        facts = ServerFacts("127.0.0.1:11211", 100, value_size_max)
        self.service = Service(
            cache,
            Limits(250, value_size_max)._replace(**limits),
            ServerStatistics(cache, self._stats, facts),
            Refusals(self.refused, clock=self._seconds),
            clock=lambda: self.clock.now_ms * 1_000_000,
            timer=self._seconds,
        )
        self._opened = ExitStack()
        self._opened.callback(self.store.close)
        self._hook_reports()
        self._serve(**front or {})

    def _hook_reports(self) -> None:
        report = self.service.report

        def hooked(argument: bytes) -> bytes | None:
            self.reports.append(argument)
            self.hook(argument)
            return report(argument)

        self.service.report = hooked  # type: ignore[method-assign]

    def _serve(
        self,
        *,
        threads: int = 1,
        connections: int = 100,
        memory: int = 40 << 20,
        pulse: Callable[[], None] = lambda: None,
        **times: float,
    ) -> None:
        self._log = AccessLog(as_json=False)
        log = CommandLog(0, lambda _: (0, 0))
        listening = ListeningSocket("127.0.0.1:0", "memcache_listen")
        self._opened.enter_context(closing(listening))
        self.address = listening.socket.getsockname()
        readers = Readers(self.store.index, threads=1)
        self._opened.enter_context(closing(readers))
        self.front = Front(
            make_app(self.service.cache, self.service.limits),
            addresses=Addresses(
                http=None, is_inherited=False, admin=None, memcache=listening
            ),
            threads=threads,
            timeouts=Timeouts(**{"head": 0, "idle": 0, "transfer": 60} | times),
            readers=readers,
            connections=connections,
            memory=memory,
            commands=CommandFacts(
                self.service, self._stats, log, self.sampled.append, self._log
            ),
        )
        self._opened.enter_context(closing(self.front))
        self.change(Access())
        self.front.start(lambda _environ, _start: [], pulse, 0.01)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect, and end the front."""
        self.disconnect()
        self._opened.close()

    def _seconds(self) -> float:
        return self.clock.now_ms / 1000

    def change(self, access: Access, *, may_flush: bool = True) -> None:
        """Let these tokens be in effect."""
        self.service.change(access, may_flush=may_flush)
        self.front.change(access, CorsHeaders(()))

    @property
    def stats(self) -> CommandStats:
        """What was counted so far."""
        self._stats.flush()
        return self._stats

    def held(self) -> int:
        """Return how many bytes of memory a loop holds for clients, after its turn."""
        with self.client() as other:
            assert other.ask(b"mn\r\n") == b"MN"
        return self.front.loops.figures("memcache")["held"]

    def client(self) -> RawClient:
        """Return another client."""
        return RawClient(self.address)

    @contextmanager
    def held_calls(self) -> Iterator[None]:
        """Let no command that may take long be executed."""
        gate = threading.Event()
        self.hook = lambda _: gate.wait(60)  # Longer than a client waits.
        asked = len(self.reports)
        with self.client() as other:
            other.send(b"stats none\r\n")
            wait_until(lambda: len(self.reports) > asked, "the call")
            try:
                yield
            finally:
                gate.set()
                assert other.line() == b"ERROR"

    # --- The client ---

    def connect(self, remote: str = "127.0.0.1") -> Self:
        """Begin a connection from an address, to an empty store a second later."""
        self.disconnect()
        for key in self._keys:
            self.store.delete(key)
        self.clock.advance(1)
        self._client = client = socket.create_connection(
            self.address, timeout=20, source_address=(remote, 0)
        )
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_binary: bool | None = None
        self._received = b""
        self.is_closed = False  # The server has closed the connection.
        return self

    def disconnect(self) -> None:
        """End the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def lines(self) -> list[str]:
        """Return the lines of the access log since the last call."""
        return self._log.take().decode("ascii").splitlines()

    def _connected(self, first: bytes) -> socket.socket:
        """Return the connection; its first byte decides on the protocol."""
        if self._client is None:
            self.connect()
        assert self._client is not None
        if self._is_binary is None:
            self._is_binary = first[:1] == bytes([wire.MAGIC])
        return self._client

    def _send(self, client: socket.socket, data: bytes) -> None:
        with suppress(ConnectionError):
            client.sendall(data)

    def _receive(self, client: socket.socket) -> None:
        data = b""
        with suppress(ConnectionError):
            data = client.recv(1 << 20)
        self._received += data
        self.is_closed = not data

    def deliver(self, piece: bytes) -> None:
        """Send a piece; return when the server has received it, or has closed."""
        figures = self.front.loops.figures
        expected = figures("memcache")["bytes_in"] + len(piece)
        client = self._connected(piece)
        self._send(client, piece)
        while not self.is_closed and figures("memcache")["bytes_in"] < expected:
            # A server that waits for room for replies receives nothing.
            if select([client], [], [], 0)[0]:
                self._receive(client)

    def ask(self, *pieces: bytes) -> bytes:
        """Send pieces, one after the other; return the replies since the last call."""
        *first, last = filter(None, pieces)
        for piece in first:
            self.deliver(piece)
        client = self._connected(last)
        end, reply = END_IN_BINARY if self._is_binary else END
        self._send(client, last + end)
        while not self.is_closed and not self._received.endswith(reply):
            self._receive(client)
        self._stats.flush()
        found, self._received = self._received, b""
        if self.is_closed:
            return found
        return found[: -24 if self._is_binary else -len(reply)]

    def say(self, lines: str) -> str:
        """Send lines of text, separated by ";"; return the replies in the same form."""
        replies = self.ask(f"{lines};".replace(";", "\r\n").encode("latin-1"))
        return replies.decode("latin-1").replace("\r\n", ";").removesuffix(";")
