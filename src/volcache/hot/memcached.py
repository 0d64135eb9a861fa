"""
The hot tier in memcached: which item is a key's, and whether it may be believed.

Nothing is ever removed from memcached: a value that changes gets a new name (`names.py`),
so no lost or late call can bring an old one back. Each item begins with its name, so that
an item that is not the one that was asked for does not count either. How servers are
asked, and left alone, is in `servers.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from volcache.hot.servers import RefusedError, ServerDownError, Servers
from volcache.hot.tier import HotStats
from volcache.hot.versions import NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from volcache.hot.servers import Server
    from volcache.hot.versions import KeyVersions

_logger = logging.getLogger("volcache.hot")

_PREFIX: Final = b"volcache:"
# memcached takes larger numbers for points in time and smaller ones for seconds from
# now; ours are always points in time.
_EXPIRE_MAX: Final = 2**31 - 1


class MemcachedTier:
    """A hot tier over one or several servers; see `tier.HotTier` for the contract."""

    def __init__(
        self,
        servers: Sequence[str],
        names: KeyVersions,
        *,
        timeout: float,
        item_size_max: int,
    ) -> None:
        """
        Connect, or begin to try.

        Args:
            servers: `host:port`, `[IPv6]:port` or the path of a unix socket, each.
            names: Of the items; closed with this.
            timeout: Seconds that one call may take.
            item_size_max: The largest item, in bytes, that is promoted.
        """
        self.stats = HotStats()
        self._names = names
        self.may_hold = names.may_hold
        self._item_size_max = item_size_max
        self._servers = Servers(servers, timeout, self.stats)

    @property
    def up(self) -> dict[str, bool]:
        """Which servers are asked at present."""
        return self._servers.up

    def _locate(self, key: bytes) -> tuple[Server, bytes, bytes]:
        """Return the server a key belongs to, and its item's name in bytes and there."""
        name = self._names.name(key)
        text = _PREFIX + name.hex().encode()
        return self._servers.of(text), name, text

    def get(self, key: bytes) -> bytes | None:
        """Return the item under a key, None when there is none or nobody can say."""
        server, name, text = self._locate(key)
        if not server.is_up:
            return None
        self.stats.gets += 1
        try:
            item = server.get(text)
        except RefusedError:
            self.stats.failures["refused"] += 1
            return None
        except ServerDownError:
            return None
        if item is None:
            return None
        self.stats.hits += 1
        if not item.startswith(name):
            self.stats.stale += 1
            return None
        return item[NAME_BYTES:]

    def promote(self, key: bytes, item: bytes, expires_ms: int) -> bool:
        """Keep a copy; see `HotTier.promote`."""
        if len(item) > self._item_size_max or not self._locate(key)[0].is_up:
            return False
        try:
            self._names.record_promotion(key)
        except OSError as error:
            # Not written down, so not sent: nothing has happened.
            self.stats.failures["journal"] += 1
            _logger.error("hot.journal_failed error=%r", str(error))
            return False
        server, name, text = self._locate(key)
        expire = min(_EXPIRE_MAX, -(-expires_ms // 1000))
        try:
            is_stored = server.set(text, name + item, expire)
        except RefusedError:
            self.stats.refused += 1
            return False
        except ServerDownError:
            return False
        self.stats.promotions += is_stored
        return is_stored

    def invalidate(self, key: bytes) -> None:
        """Make sure that no item of a key is found; see `HotTier.invalidate`."""
        self._names.invalidate(key)
        self.stats.invalidations += 1

    def flush(self) -> None:
        """Make sure that nothing promoted before is found; see `HotTier.flush`."""
        self._names.begin()
        self.stats.flushes += 1

    def close(self) -> None:
        """End the connections; the items stay."""
        self._servers.close()
        self._names.close()
