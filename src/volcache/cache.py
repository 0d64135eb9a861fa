"""
The cache: what a get, a put and a delete do. The page to read first.

There are two tiers. The store on disk has everything; the hot tier, which may be absent,
has copies of what was read from the disk often. It may make an answer faster, and may
give an answer where the cycle has overwritten the record on the disk. It never gives one
that a put or a delete has replaced:

- A copy counts only if the store confirms it: it is the record the index names, or the
  index has none and the record's volume was reclaimed.
- Before a key that may have a copy is put or deleted, its copies are made unfindable. That
  asks nobody, so it cannot be lost or late. Only then is the store changed, so that a
  crash between the two leaves no copy of what is no longer true.

Knows neither HTTP nor settings, nor how either tier works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from volcache.hot.promotion import MissCounters
    from volcache.hot.tier import HotStats, HotTier
    from volcache.store import Record, Store

# Keys asked for in the hot tier first. More could be hot, but not much hotter.
_PROMOTED_MAX: Final = 65_536


class HotState(NamedTuple):
    """What is to be seen of a hot tier."""

    stats: HotStats
    up: dict[str, bool]  # which servers are asked at present, by their addresses
    promoted: int  # keys asked for in it first


class FileCache:
    """The cache with one tier, the store."""

    def __init__(self, store: Store) -> None:
        """Serve from `store`, which stays the caller's to close."""
        self.store = store
        # What one tier does is what the tier does: no call is spent on passing it on.
        self.get = store.get
        self.stat = store.stat
        self.put = store.put
        self.delete = store.delete
        self.flush = store.flush

    def waited_since(self, since_ns: int) -> tuple[int, int]:
        """
        Return the nanoseconds a request has waited for the disk and for memcached.

        Args:
            since_ns: When the request began, by `time.perf_counter_ns`. What took less
                than a millisecond is not among it.
        """
        stats = self.store.stats
        disk = (stats.reads, stats.writes, stats.rotating)
        return sum(histogram.since(since_ns) for histogram in disk), 0

    def hot_state(self) -> HotState | None:
        """Return how the hot tier is; None without one."""
        return None


class TieredCache(FileCache):
    """The cache with a hot tier before the store."""

    def __init__(self, store: Store, hot: HotTier, counters: MissCounters) -> None:
        """
        Serve from both; they stay the caller's to close.

        Args:
            store: The truth.
            hot: Asked first for what was promoted.
            counters: Say when a key is hot.
        """
        super().__init__(store)
        self.hot = hot
        self._counters = counters
        # Promoted since the start, those promoted longest ago first. After a restart
        # a key has to earn it again; until then it is read from the disk.
        self._promoted: dict[bytes, None] = {}
        self.get = self._get
        self.stat = self._stat
        self.put = self._put
        self.delete = self._delete
        self.flush = self._flush

    def _get(self, key: bytes) -> Record | None:
        is_promoted = key in self._promoted
        if is_promoted:
            record = self._get_hot(key)
            if record is not None:
                return record
            # memcached has dropped it, or cannot say: it is counted anew.
            del self._promoted[key]
        record = self.store.get(key)
        if record is None:
            if is_promoted or not self.hot.may_hold(key):
                return None
            return self._get_hot(key)
        if self._counters.is_hot_now(key):
            self._promote(key, record)
        return record

    def _stat(self, key: bytes) -> Record | None:
        record = self.store.stat(key)
        if record is not None or not self.hot.may_hold(key):
            return record
        record = self._get_hot(key)
        return None if record is None else record._replace(value=b"")

    def _get_hot(self, key: bytes) -> Record | None:
        item = self.hot.get(key)
        if item is None:
            return None
        record = self.store.validate(key, item)
        if record is None:
            self.hot.stats.stale += 1
            return None
        return record._replace(source="MEMC")

    def _promote(self, key: bytes, record: Record) -> None:
        item = self.store.read_raw(key)
        if item is None or not self.hot.promote(key, item, record.expires_ms):
            return
        self._promoted[key] = None
        if len(self._promoted) > _PROMOTED_MAX:
            del self._promoted[next(iter(self._promoted))]

    def _put(
        self,
        key: bytes,
        value: bytes,
        *,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        expires_ms: int = 0,
    ) -> Record:
        """
        Invalidate the copy, if there may be one, and store a value; see `Store.put`.

        Raises:
            OSError: The copy could not be invalidated; the value stays.
        """
        self._invalidate(key)
        return self.store.put(
            key,
            value,
            content_type=content_type,
            content_encoding=content_encoding,
            expires_ms=expires_ms,
        )

    def _delete(self, key: bytes) -> bool:
        """
        Invalidate the copy, if there may be one, and forget the key.

        Returns:
            Whether it was in one of the tiers; see `Store.delete`.

        Raises:
            OSError: The copy could not be invalidated; the value stays.
        """
        was_hot = (
            key not in self.store
            and self.hot.may_hold(key)
            and self._get_hot(key) is not None
        )
        self._invalidate(key)
        return self.store.delete(key) or was_hot

    def _invalidate(self, key: bytes) -> None:
        if self.hot.may_hold(key):
            self._promoted.pop(key, None)
            self.hot.invalidate(key)

    def _flush(self) -> None:
        """Forget everything in both tiers, in constant time; see `Store.flush`."""
        self.hot.flush()
        self._promoted = {}
        self._counters.clear()
        self.store.flush()

    def waited_since(self, since_ns: int) -> tuple[int, int]:
        """Return the nanoseconds waited for the disk and for memcached."""
        disk, _ = super().waited_since(since_ns)
        return disk, self.hot.stats.calls.since(since_ns)

    def hot_state(self) -> HotState:
        """Return how the hot tier is."""
        return HotState(self.hot.stats, self.hot.up, len(self._promoted))
