"""
The hot tier in memcached.

Nothing is ever deleted from memcached. Instead, the id under which a copy is stored
includes the version of its key (`front/copies.h`): after a put or a delete no call looks up
the old id, so a lost or late call cannot bring an old value back. Each item begins with
its own id, so that an item returned for another lookup is rejected. Connections, time-outs
and back-off are in `servers.py`.

Threads: all methods may be called by any thread. A copy is stored under the id that its key
had when it was registered as promoted. A put in another thread, at whatever time, either
was over before the copy was compared with the store, and then the copy is not stored; or
it finds the key registered, and then that id is never looked up again.
"""

from __future__ import annotations

import threading
from itertools import cycle
from typing import TYPE_CHECKING, Final

from volcache.background import Background
from volcache.hot.servers import PROBE_SECONDS_MIN, Server
from volcache.hot.tier import HotStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from volcache.hot.tier import HotCalls, HotKeys

# memcached takes an expiry above 30 days for seconds since the epoch, and a lower one for
# seconds from now. Ours are since the epoch; this is the highest it accepts.
_EXPIRE_MAX: Final = 2**31 - 1


class MemcachedTier:
    """Volatile copies of records on memcached servers, faster to read than the disk."""

    def __init__(
        self,
        servers: Sequence[str],
        keys: HotKeys,
        client: HotCalls,
        *,
        timeout: float,
        item_size_max: int,
    ) -> None:
        """
        Connect; a server that is down is connected to later, by another thread.

        Args:
            servers: `host:port`, `[IPv6]:port` or the path of a unix socket, each.
            keys: Which of them are promoted.
            client: Made for these servers.
            timeout: Of one call, in seconds.
            item_size_max: Of a record that is promoted, in bytes.
        """
        self.stats = HotStats()
        self.keys = keys
        self._item_size_max = item_size_max
        self.client = client
        # A key belongs to one of them, also while that one is down.
        self._servers = [
            Server(address, number, client, timeout, self.stats)
            for number, address in enumerate(servers)
        ]
        for server in self._servers:
            server.probe()
        self._to_probe = cycle(self._servers)
        self._is_closed = threading.Event()
        self._prober = Background("hot", self._probe, self._is_closed.is_set)
        self._prober.start()

    @property
    def up(self) -> dict[str, bool]:
        """Whether each server is up, by its address."""
        return {server.address: server.is_up for server in self._servers}

    def _probe(self) -> None:
        """Wait, then look at the next server: one that raises does not keep others down."""
        if not self._is_closed.wait(PROBE_SECONDS_MIN / 5 / len(self._servers)):
            next(self._to_probe).probe()

    def _server_of(self, name: bytes) -> Server:
        return self._servers[self.client.server_of(name)]

    def get(self, key: bytes) -> bytes | None:
        """Return the copy of a key; None if there is none or its server is down."""
        name = self.keys.name(key)
        server = self._server_of(name)
        if not server.is_up:
            return None
        self.stats.gets += 1
        item = server.get(name)
        if item is None:
            return None
        self.stats.hits += 1
        if not item.startswith(name):
            self.stats.stale += 1
            return None
        return item[len(name) :]

    def promote(
        self,
        key: bytes,
        copy: bytes,
        expires_ms: int,
        is_current: Callable[[], bool] = lambda: True,
    ) -> bool:
        """
        Store a copy.

        Args:
            key: Of the record.
            copy: The record as it is on the disk.
            expires_ms: Milliseconds since the epoch; 0 = never.
            is_current: Returns whether the copy is still that of the record. Called when
                the key is registered and before the copy can be read: a change
                of the record that it does not see yet will invalidate the copy.

        Returns:
            Whether it was stored.
        """
        is_up = self._server_of(self.keys.name(key)).is_up
        if len(copy) > self._item_size_max or not is_up:
            return False
        name = self.keys.promote(key)
        if not is_current():
            self.keys.invalidate(key)
            return False
        expire = min(_EXPIRE_MAX, -(-expires_ms // 1000))
        is_stored = self._server_of(name).set(name, name + copy, expire)
        self.stats.promotions += is_stored
        return is_stored

    def close(self) -> None:
        """Close the connections; memcached keeps its items."""
        self._is_closed.set()
        self._prober.join()
        for server in self._servers:
            server.close()
