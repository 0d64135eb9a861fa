"""
Writing to a store: a put is one write at the end of a volume, then the index changes.

The core does both, in one call; what it cannot do, such as a rotation, is done here.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from volcache.errors import StoreIOError
from volcache.store.format import (
    RECORD_OVERHEAD_BYTES,
    Record,
    new_record,
)
from volcache.store.index_format import encode_key
from volcache.store.rings import refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.format import NewRecord
    from volcache.store.log import CircularLog
    from volcache.store.volume import Volume

_T = TypeVar("_T")
_logger = logging.getLogger("volcache.store")


class RecordWriter:
    """The part of a store that changes keys."""

    def __init__(self, log: CircularLog) -> None:
        """Let the core put records."""
        self._log, self._index, self._stats = log, log.rings.index, log.rings.stats
        self._clock, self._lock = log.rings.clock, self._index.lock
        syncs = log.syncs.mode == "always"
        step_bytes = log.evictor.step_bytes
        self._index.set_putting(self._clock, step_bytes, syncs, self._stats.writes)
        for volume in log.rings.written:
            self._index.set_volume(volume)

    def put(  # noqa: PLR0913 - One argument for one field.
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
        Store a value.

        When this returns, reads return it and it survives a process crash; it survives
        a power loss as `sync_mode` says.

        Args:
            key: 1 to 65,535 bytes of any kind.
            value: 0 bytes to what fits a volume; not copied.
            content_type: At most 255 bytes, returned unchanged. With a control byte in
                one of these three, the record is damaged.
            content_encoding: Likewise.
            cache_control: Likewise.
            expires_ms: By `clock`, milliseconds since the epoch; 0 = never.
            flags: 32 bits of any kind, returned unchanged.

        Raises:
            ValueTooLargeError: The record does not fit an empty volume.
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In all cases the old value stays.
        """
        headers = content_type, content_encoding, cache_control
        return self.put_record((key, value, *headers, 0, expires_ms, flags))

    def touch(self, key: bytes, record: Record, expires_ms: int) -> Record:
        """
        Write a record again with another expiry; it stays the same version of the key.

        As durable as a put. The caller holds the lock since `get` or `validate` returned
        the record: a copy of a record that was replaced, deleted or purged would bring it
        back. Like the copies of a reclaim, the record has an earlier time stored than
        those before it in its volume; purges cover it, since none was made since `get`.

        Args:
            key: Of the record.
            record: With its value; it may come from a copy that `validate` has accepted.
            expires_ms: By `clock`, milliseconds since the epoch; 0 = never.

        Returns:
            The record as it is now.

        Raises:
            ValueError: The record is without its value.
            ValueTooLargeError: As by `put`; and the others, likewise.
        """
        if len(record.value) != record.length:
            message = f"the value has {record.length} bytes, not {len(record.value)}"
            raise ValueError(message)
        new = record._replace(expires_ms=expires_ms)
        return self.put_record((key, *new[:7]))

    def _volume_for(self, key: bytes, size: int, length: int) -> Volume:
        """
        Return the volume that the next record of a key belongs to, with room for it.

        See `CircularLog.with_room` for the arguments and errors.
        """
        while True:
            ring = self._index.ring_for(key)
            if ring is None:
                self._log.evictor.record_displaced()
                continue
            volume = self._log.with_room(ring, size, length)
            # A rotation may have copied the record of the key to the other ring.
            if self._index.ring_for(key) is ring:
                return volume

    def put_record(self, record: NewRecord) -> Record:
        """
        Append a record.

        Raises:
            StoreError: As by `put`.
        """
        length, size = len(record[1]), RECORD_OVERHEAD_BYTES + sum(map(len, record[:5]))
        written = self._change(
            partial(self._index.put, *record), record[0], size, length
        )
        return new_record(Record, written)

    def _change(
        self, append: Callable[..., _T | None], key: bytes, size: int, length: int
    ) -> _T:
        """
        Append a record: by the core alone, or after what it leaves to Python.

        Args:
            append: Calls the core; it gets the volume, if there is one.
            key: Of the record.
            size: Of the record, bytes.
            length: Of its value, bytes.

        Returns:
            What the core returns.

        Raises:
            StoreError: As by `put`.
        """
        with self._lock:
            done = self._attempt(append)
            if done is None:
                self.run_deferred()
                volume = self._volume_for(key, size, length)
                done = self._attempt(partial(append, volume))
                if done is None:
                    raise StoreIOError("a volume has no room for the record")
            if self._index.has_deferred:
                self.run_deferred()
        return done

    def _attempt(self, append: Callable[[], _T | None]) -> _T | None:
        """
        Let the core append a record; if the disk is full, again after space was made.

        Raises:
            OutOfMemoryError: There is none; nothing was written.
            StoreIOError: The disk refused; a start does not find the record.
        """
        may_make_space = True
        while True:
            try:
                return append()
            except OSError as error:
                _, _, (volume,), _ = self._index.take_deferred()
                if not (may_make_space and self._log.make_space(error)):
                    raise self._log.syncs.refused(volume, error) from error
                may_make_space = False
            except MemoryError as error:
                self._stats.count_write_error(error)
                raise refusal_of(error, "store the record") from error

    def run_deferred(self) -> None:
        """Do what is due after a put. This does not fail."""
        with self._lock:
            appended, unwritten, refused, unsynced = self._index.take_deferred()
            for volume in refused:
                self._log.rings.block_writes_of(volume)
            for volume, error in unsynced:
                self._log.syncs.retire(volume, error)
            for volume in unwritten:
                if volume.is_index_due or not volume.has_index_backlog:
                    self._log.rings.write_index(volume)
            if appended:
                self._log.evictor.continue_reclaim(appended)

    def delete(self, key: bytes) -> bool:
        """
        Delete a key.

        A tombstone and its index entry are written before this returns, so that a
        deletion is as durable as a put.

        Returns:
            Whether there was a value; an expired or purged one does not count. A record
            that cannot be read counts and is deleted.

        Raises:
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In both cases the value stays.
        """
        delete = partial(self._index.delete, key, self._clock.now_ms())
        return self._change(delete, key, RECORD_OVERHEAD_BYTES + len(key), 0)

    def flush(self) -> None:
        """
        Drop every key, in constant time.

        Raises:
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused, or there is no memory. In both cases nothing
                was dropped; but after the second, it may be at the next start.
        """
        with self._lock:
            self._log.flush()

    def purge(self, prefix: bytes) -> None:
        """
        Drop every key stored so far that begins with a prefix, in constant time.

        Survives a power loss when this returns. The space is freed when the volumes are
        reclaimed; until then `count` includes these keys.

        Args:
            prefix: 1 to 65,535 bytes of any kind.

        Raises:
            TooManyPurgesError: The list of purges is full.
            MemoryError: There is no memory for it.
            StoreIOError: The disk refused. In all cases nothing was dropped; but after
                the last, the purge may take effect at the next start.
        """
        with self._lock:
            self._log.kept_purges.add(prefix)
            self._stats.purges += 1
        _logger.warning(
            "store.purged prefix=%r entries=%d",
            encode_key(prefix),
            self._log.kept_purges.count,
        )
