"""The memcached protocol over a small store, in this process, at times that a test sets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from support.memcache import RawClient
from support.stores import FakeClock, open_store
from volcache.cache import Cache
from volcache.memcache.command_log import CommandLog
from volcache.memcache.executor import Executor
from volcache.memcache.executor import Limits as ExecutorLimits
from volcache.memcache.listener import Limits, Listener
from volcache.memcache.protocol import Connection, WireLimits
from volcache.memcache.service import Facts, Service
from volcache.memcache.sockets import ListeningSocket
from volcache.monitoring.commands import CommandStats
from volcache.tokens import Refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALUE_SIZE: Final = 1 << 20
_VOLUME_SIZE: Final = 8 << 20


class Served(NamedTuple):
    """What serves, and its clock."""

    address: tuple[str, int]
    clock: FakeClock  # of the store, the commands and delayed flushes
    stats: CommandStats

    def client(self) -> RawClient:
        """Connect."""
        return RawClient(self.address)


@contextmanager
def served(folder: Path, held_bytes: int = 64 << 20) -> Iterator[Served]:
    """Serve a store in a folder, to everyone, with `flush_all`."""
    clock, stats = FakeClock(), CommandStats()
    store = open_store(folder, clock=clock, volume_size=_VOLUME_SIZE)
    cache = Cache(store)
    service = Service(
        cache,
        Executor(
            cache,
            ExecutorLimits(250, VALUE_SIZE),
            clock=lambda: clock.now_ms * 1_000_000,
        ),
        stats,
        Refusals({}),
        Facts("127.0.0.1:0", 1000, VALUE_SIZE),
        may_flush=True,
        clock=lambda: clock.now_ms / 1000,
    )
    listening = ListeningSocket("127.0.0.1:0")
    address = listening.socket.getsockname()
    listener = Listener(
        listening,
        service,
        lambda wants: Connection(WireLimits(250, VALUE_SIZE), wants),
        limits=Limits(connections=1000, held_bytes=held_bytes),
        stats=stats,
        log=CommandLog(0, lambda _: (0, 0)),
    )
    listener.start()
    try:
        yield Served(address, clock, stats)
    finally:
        listener.drain(0)
        listener.close()
        store.close()
