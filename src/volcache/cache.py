"""
The cache: get, stat, put, delete and flush over both tiers. Read this module first.

The store on disk holds every record and is the source of truth. The hot tier in memcached
is optional and holds copies of records that are read often: it answers faster, and it
answers for records that the log has overwritten by age. A copy never exposes a value that
a put, a delete or a flush has replaced:

- A copy is used only if the store accepts it: it is the record the index names, or the
  index has no record of the key and the volume of the copy was reclaimed.
- A purge is an entry in the store that covers records and their copies alike.
- A put or a delete changes the store, then invalidates the copies of its key, before it
  returns. If the store refuses, the copies stay valid. Invalidation is a change in memory:
  it cannot fail, be lost or delayed, and after a crash no copy is valid.

Threads: all methods may be called by any thread. A decision that depends on the record
there is, such as a conditional put, is made within `exclusive`, which is the lock of the
store. So no put, delete, flush or purge of another thread comes between. A change of the
store and the invalidation that belongs to it are made under that lock, too: who holds it
never sees the one without the other.

Promotion holds no lock. It reads the record, registers the key as promoted, looks whether
the store still has what it read, and only then sends the copy. A change by another thread
comes before that look, and is seen by it; or after, and finds the key registered when it
looks for copies to invalidate, which is why that is done after the change.

Order of locks: that of the store; then one of the hot tier (key versions, counters, a
server), inside of which no other is taken. A thread that holds the lock of the store reads
from the disk what memcached may have as well. It waits for memcached, for the time-out at
most, only if the disk has no record of the key, and copies may be valid.

The cache depends neither on HTTP nor on the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from volcache.errors import UnreadableRecordError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from volcache.hot.memcached import MemcachedTier
    from volcache.hot.tier import HotStats
    from volcache.store import Record, Store


class HotState(NamedTuple):
    """The hot tier as monitoring shows it."""

    stats: HotStats
    up: dict[str, bool]  # by server address
    promoted: int  # keys looked up in the hot tier first
    invalidations: int  # promoted keys that were put or deleted


class Cache:
    """A store with a hot tier in front of it."""

    def __init__(
        self,
        store: Store,
        hot: MemcachedTier | None = None,
        *,
        memory_first: bool = False,
    ) -> None:
        """
        Serve from both tiers; the caller closes them.

        Args:
            store: The source of truth.
            hot: Holds the copies, and knows when a key is hot; None for no hot tier.
            memory_first: Hot keys are read from the disk first, too, as their records
                are in memory most of the time.
        """
        self.store = store
        self._hot = hot
        # After a restart a key is read from the disk until it is promoted again.
        self.hot_keys = hot.keys if hot is not None else None
        self.memory_first = memory_first
        self.hot_client = hot.client if hot is not None else None

    def exclusive(self) -> AbstractContextManager[object]:
        """Return what to hold while what is read decides on what is written."""
        return self.store.lock

    def get(self, key: bytes) -> Record | None:
        """
        Return the record of a key; None for a miss.

        `source` of the record names the tier: "DISK" or "MEMC". See `Store.get` for
        what is a miss.

        Raises:
            UnreadableRecordError: The disk refused, and the hot tier has no copy.
        """
        keys = self.hot_keys
        if keys is None:
            return self.store.get(key)
        # Other threads wait for whoever has the lock, who therefore does not wait for
        # memcached if the disk has the record, and promotes nothing.
        is_exclusive = self.store.lock.is_mine
        is_promoted = keys.is_first(key)
        was_promoted = is_promoted and not is_exclusive and not self.memory_first
        if was_promoted:
            record = self._get_hot(key)
            if record is not None:
                return record
            # memcached dropped the copy or is down; the key must be promoted again.
            keys.ask_first(key, is_first=False)
        try:
            record = self.store.get(key)
        except UnreadableRecordError:
            record = None if was_promoted else self._get_hot(key)
            if record is None:
                raise
            return record
        if record is None:
            return None if was_promoted else self._get_hot(key)
        is_counted = not is_exclusive and not (is_promoted and self.memory_first)
        if is_counted and keys.count_read(key):
            self.promote(key, record.expires_ms)
        return record

    def promote(self, key: bytes, expires_ms: int) -> None:
        """Copy the record of a key that is hot now to memcached."""
        copy = self.store.read_raw(key)
        if self._hot is None or copy is None:
            return

        def is_current() -> bool:
            return self.store.is_current(key, copy)

        if self._hot.promote(key, copy, expires_ms, is_current):
            self._hot.keys.ask_first(key, is_first=True)

    def stat(self, key: bytes) -> Record | None:
        """Return the record of a key with an empty `value`; see `get`."""
        try:
            record = self.store.stat(key)
            if record is not None:
                return record
            record = self._get_hot(key)
        except UnreadableRecordError:
            record = self._get_hot(key)
            if record is None:
                raise
        return None if record is None else record._replace(value=b"")

    def put(  # noqa: PLR0913 - By keyword.
        self,
        key: bytes,
        value: bytes,
        *,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        cache_control: bytes = b"",
        expires_ms: int = 0,
        flags: int = 0,
    ) -> Record:
        """
        Store a value and invalidate the copies of its key; see `Store.put`.

        Raises:
            StoreError: The disk refused; the old value stays, in both tiers.
        """
        with self.store.lock:
            record = self.store.put(
                key,
                value,
                content_type=content_type,
                content_encoding=content_encoding,
                cache_control=cache_control,
                expires_ms=expires_ms,
                flags=flags,
            )
            self.drop_copies(key)
        return record

    def touch(self, key: bytes, record: Record, expires_ms: int) -> Record:
        """
        Set when a record expires; within `exclusive`, since `get` returned the record.

        The record is written again, as durably as by a put. It stays the same version:
        `stored_us`, and with it entity tag and date, do not change.

        Raises:
            StoreError: The disk refused; the old time stays.
        """
        with self.store.lock:
            touched = self.store.touch(key, record, expires_ms)
            self.drop_copies(key)
        return touched

    def delete(self, key: bytes) -> bool:
        """
        Delete a key and invalidate its copies; see `Store.delete`.

        Returns:
            Whether either tier had the key.

        Raises:
            StoreError: The disk refused; the old value stays, in both tiers.
        """
        was_hot = (
            self.hot_keys is not None
            and self.hot_keys.may_hold(key)
            and key not in self.store
            and self._get_hot(key) is not None
        )
        with self.store.lock:
            was_on_disk = self.store.delete(key)
            had_copies = self.drop_copies(key)
        return was_on_disk or (was_hot and had_copies)

    def drop_copies(self, key: bytes) -> bool:
        """
        Invalidate the copies of a key, after it was changed in the store.

        Returns:
            Whether there may have been one.
        """
        # A thread that promotes the key now either sees the change or is seen.
        return self.hot_keys is not None and self.hot_keys.invalidate(key)

    def flush(self) -> None:
        """
        Delete every key in both tiers, in constant time; see `Store.flush`.

        Raises:
            StoreError: The disk refused; both tiers are unchanged.
        """
        with self.store.lock:
            self.store.flush()
            if self._hot is not None:
                self._hot.keys.begin_epoch()
                self._hot.stats.flushes += 1

    def purge(self, prefix: bytes) -> None:
        """
        Delete every key that begins with a prefix in both tiers; see `Store.purge`.

        Copies of what is purged stay in memcached, and the store accepts none of them.

        Raises:
            TooManyPurgesError: The list of purges is full.
            StoreError: The disk refused.
        """
        self.store.purge(prefix)

    def expiry_of(self, machine_ms: int) -> int:
        """Return a time of the machine's clock, in milliseconds, as `put` takes it."""
        return self.store.clock.from_machine_ms(machine_ms)

    def remaining_ms(self, expires_ms: int) -> int:
        """Return how long a record still lives that expires at a time, at least 0."""
        return max(0, expires_ms - self.store.clock.now_ms())

    def is_ready(self) -> bool:
        """Whether the disk can be read; see `Store.is_ready`."""
        return self.store.is_ready()

    def waited_since(self, since_ns: int) -> tuple[int, int]:
        """
        Return how many nanoseconds were spent on the disk and on memcached since a time.

        Only operations of a millisecond or more are included.

        Args:
            since_ns: By `time.perf_counter_ns`.
        """
        stats = self.store.stats
        disk = (stats.reads, stats.writes, stats.rotating)
        return (
            sum(histogram.since(since_ns) for histogram in disk),
            self._hot.stats.calls.since(since_ns) if self._hot is not None else 0,
        )

    def hot_state(self) -> HotState | None:
        """Return the state of the hot tier; None without one."""
        if self._hot is None:
            return None
        keys = self._hot.keys
        return HotState(self._hot.stats, self._hot.up, keys.first, keys.invalidations)

    def _get_hot(self, key: bytes) -> Record | None:
        """Return the copy of a key if the store accepts it."""
        if self._hot is None or not self._hot.keys.may_hold(key):
            return None
        copy = self._hot.get(key)
        if copy is None:
            return None
        record = self.store.validate(key, copy)
        if record is None:
            self._hot.stats.stale += 1
            return None
        if self.store.is_moved(copy, record) and not self.store.lock.is_mine:
            # The next comparison with the index then needs no read.
            self.promote(key, record.expires_ms)
        return record._replace(source="MEMC")
