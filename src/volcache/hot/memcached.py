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

    from volcache.hot.servers import Server
    from volcache.hot.tier import HotKeys

_PREFIX: Final = b"volcache:"
# memcached takes an expiry above 30 days for seconds since the epoch, and a lower one for
# seconds from now. Ours are since the epoch; this is the highest it accepts.
_EXPIRE_MAX: Final = 2**31 - 1


class MemcachedTier:
    """A hot tier on one or more memcached servers; see `HotTier` for the contract."""

    def __init__(
        self,
        servers: Sequence[str],
        keys: HotKeys,
        *,
        timeout: float,
        item_size_max: int,
    ) -> None:
        """
        Connect; a server that is down is connected to later, by another thread.

        Args:
            servers: `host:port`, `[IPv6]:port` or the path of a unix socket, each.
            keys: Which of them are promoted.
            timeout: Of one call, in seconds.
            item_size_max: Of a record that is promoted, in bytes.
        """
        self.stats = HotStats()
        self.keys = keys
        self._item_size_max = item_size_max
        self._servers = Servers(servers, timeout, self.stats)

    @property
    def up(self) -> dict[str, bool]:
        """Whether each server is up, by its address."""
        return self._servers.up

    def _locate(self, item_id: bytes) -> tuple[Server, bytes]:
        """Return the server of an item, and its id as memcached's key."""
        name = _PREFIX + item_id.hex().encode()
        return self._servers.of(name), name

    def get(self, key: bytes) -> bytes | None:
        """Return the copy of a key; None if there is none or its server is down."""
        item_id = self.keys.name(key)
        server, name = self._locate(item_id)
        if not server.is_up:
            return None
        self.stats.gets += 1
        try:
            item = server.get(name)
        except RefusedError:
            self.stats.failures["refused"] += 1
            return None
        except ServerDownError:
            return None
        if item is None:
            return None
        self.stats.hits += 1
        if not item.startswith(item_id):
            self.stats.stale += 1
            return None
        return item[len(item_id) :]

    def promote(
        self,
        key: bytes,
        copy: bytes,
        expires_ms: int,
        is_current: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Store a copy; see `HotTier.promote`."""
        server, _ = self._locate(self.keys.name(key))
        if len(copy) > self._item_size_max or not server.is_up:
            return False
        item_id = self.keys.promote(key)
        if not is_current():
            self.keys.invalidate(key)
            return False
        server, name = self._locate(item_id)
        expire = min(_EXPIRE_MAX, -(-expires_ms // 1000))
        try:
            is_stored = server.set(name, item_id + copy, expire)
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
