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

from typing import TYPE_CHECKING, Final

from volcache.hot.servers import RefusedError, ServerDownError, Servers
from volcache.hot.tier import HotStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from volcache.hot.tier import HotCalls, HotKeys

# memcached takes an expiry above 30 days for seconds since the epoch, and a lower one for
# seconds from now. Ours are since the epoch; this is the highest it accepts.
_EXPIRE_MAX: Final = 2**31 - 1


class MemcachedTier:
    """A hot tier on one or more memcached servers; see `HotTier` for the contract."""

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
        self._servers = Servers(servers, client, timeout, self.stats)

    @property
    def up(self) -> dict[str, bool]:
        """Whether each server is up, by its address."""
        return self._servers.up

    def get(self, key: bytes) -> bytes | None:
        """Return the copy of a key; None if there is none or its server is down."""
        name = self.keys.name(key)
        item = self._ask(name)
        if item is None:
            return None
        self.stats.hits += 1
        if not item.startswith(name):
            self.stats.stale += 1
            return None
        return item[len(name) :]

    def _ask(self, name: bytes) -> bytes | None:
        """Return an item, after a call that waits for it; None if there is none."""
        server = self._servers.of(name)
        if not server.is_up:
            return None
        self.stats.gets += 1
        try:
            return server.get(name)
        except RefusedError:
            self.stats.failures["refused"] += 1
        except ServerDownError:
            pass
        return None

    def promote(
        self,
        key: bytes,
        copy: bytes,
        expires_ms: int,
        is_current: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Store a copy; see `HotTier.promote`."""
        server = self._servers.of(self.keys.name(key))
        if len(copy) > self._item_size_max or not server.is_up:
            return False
        name = self.keys.promote(key)
        if not is_current():
            self.keys.invalidate(key)
            return False
        server = self._servers.of(name)
        expire = min(_EXPIRE_MAX, -(-expires_ms // 1000))
        try:
            is_stored = server.set(name, name + copy, expire)
        except RefusedError:
            self.stats.refused += 1
            return False
        except ServerDownError:
            return False
        self.stats.promotions += is_stored
        return is_stored

    def close(self) -> None:
        """Close the connections; memcached keeps its items."""
        self._servers.close()
