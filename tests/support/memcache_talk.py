"""A client of the memcached protocol, and its commands and store, without a socket."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from support.simulated import SimulatedFileSystem
from support.stores import VOLUME_SIZE, FakeClock, open_store
from volcache.access import Access, Limits
from volcache.cache import Cache
from volcache.front import AccessLog, CommandFacts, Commands
from volcache.hot.memcached import MemcachedTier
from volcache.memcache.service import Service
from volcache.memcache.statistics import ServerFacts, ServerStatistics
from volcache.monitoring.commands import CommandStats
from volcache.slow_log import CommandLog
from volcache.store.eviction import Eviction
from volcache.tokens import Refusals

VALUE_SIZE_MAX = 1000


class Talk:
    """A client and its server: what is sent is executed at once."""

    # Of replies: little, so that they are often full.
    OUT_BYTES = 16384

    def __init__(
        self,
        directory: Path,
        access: Access | None = None,
        *,
        value_size_max: int = VALUE_SIZE_MAX,
        keys: Iterable[bytes] = (b"a", b"b"),
        hot: MemcachedTier | None = None,
        eviction: Eviction = "frequency",
        **limits: Any,
    ) -> None:
        """
        Open the store, and connect.

        Args:
            directory: Of the store.
            access: As of the service.
            value_size_max: The limit of a value.
            keys: That a connection finds deleted. A flush would take a volume each time.
            hot: A tier in front of the store.
            eviction: As of the store.
            limits: As of the service, where not the same.
        """
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
        self.stats = CommandStats()
        self.refused = {"read": 0, "write": 0, "admin": 0}
        cache = Cache(self.store, hot)
        facts = ServerFacts("127.0.0.1:11211", 100, value_size_max)
        self.service = Service(
            cache,
            Limits(250, value_size_max)._replace(**limits),
            ServerStatistics(cache, self.stats, facts),
            Refusals(self.refused, clock=self._seconds),
            access=access,
            may_flush=True,
            clock=lambda: self.clock.now_ms * 1_000_000,
            timer=self._seconds,
        )
        self.sampled: list[bytes] = []
        self.called = 0
        log = CommandLog(0, lambda _: (0, 0))
        self._log = AccessLog(as_json=False)
        native = CommandFacts(
            self.service, self.stats, log, self.sampled.append, self._log
        )
        self._commands = Commands(native, self.OUT_BYTES)
        self.connect()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _seconds(self) -> float:
        return self.clock.now_ms / 1000

    def connect(self, remote: str = "1.1.1.1") -> Self:
        """Begin a connection, to an empty store a second later."""
        for key in self._keys:
            self.store.delete(key)
        self.clock.advance(1)
        self._unread = b""
        self.is_closed = False  # The server has closed the connection.
        self._commands.connect(remote)
        return self

    def lines(self) -> list[str]:
        """Return the lines of the access log since the last call."""
        return self._log.take().decode("ascii").splitlines()

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        return len(self._unread)

    def ask(self, *pieces: bytes) -> bytes:
        """Send pieces; return the replies."""
        replies = b""
        for piece in filter(None, pieces):
            self._unread += piece
            found, used, self.is_closed, calls = self._commands.run(self._unread)
            replies += found
            self.called += calls
            self._unread = b"" if self.is_closed else self._unread[used:]
        self._commands.take()
        return replies

    def say(self, lines: str) -> str:
        """Send lines of text, separated by ";"; return the replies in the same form."""
        replies = self.ask(f"{lines};".replace(";", "\r\n").encode("latin-1"))
        return replies.decode("latin-1").replace("\r\n", ";").removesuffix(";")
