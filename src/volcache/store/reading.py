"""
Reading from a store: values, headers, and copies of records that are elsewhere.

A get is one read of a whole record, by the core, which is checked before it is returned.
What the core does not return is read again in Python, which finds out why.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c

from volcache.errors import DamagedRecordError, UnreadableRecordError
from volcache.store.format import (
    HEADER_BYTES_MAX,
    Record,
    RecordHeader,
    decode_header,
    decode_record,
    explain,
    identity_of,
    new_record,
    prefix_length,
    record_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.clock import Clock
    from volcache.store.files import FileSystem
    from volcache.store.format import RecordIdentity
    from volcache.store.index import Position
    from volcache.store.log import CircularLog
    from volcache.store.purges import PurgeList
    from volcache.store.recovery import Recovered
    from volcache.store.volume import Volume


class _OutdatedError(Exception):
    """What was to be read is elsewhere by now, or gone."""


class RecordReader:
    """
    The part of a store that reads; see `Store`.

    Invariant: a position is valid only if its volume is in `_volumes`; `reclaim.py`
    explains why an older record of a key never becomes current again.
    """

    def __init__(
        self, fs: FileSystem, log: CircularLog, recovered: Recovered, clock: Clock
    ) -> None:
        """Use `Store.open`."""
        self.index = recovered.index
        self.lock = self.index.lock
        self.stats = recovered.stats
        self.clock = clock
        self._log = log
        self._volumes = log.volumes
        self._find = self.index.find
        self._pread = fs.pread

    # --- Values --------------------------------------------------------------------

    def get(self, key: bytes) -> Record | None:
        """
        Return the current record of a key, read from disk and checked.

        Returns:
            None for a miss: never stored, deleted, expired, reclaimed or damaged. Misses
            are counted by reason. A damaged record leaves the index.

        Raises:
            UnreadableRecordError: The disk refused; it is counted.
        """
        started_ns = perf_counter_ns()
        fields = self.index.read(key)
        if fields is None:
            return self.peek(key)
        self.stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        self.stats.read_errors_in_row = 0
        return self._current(key, new_record(Record, fields), self._log.purges)

    def peek(self, key: bytes) -> Record | None:
        """
        Return what `get` returns; the eviction policy does not count it as a read.

        It is read in Python, also for `get` when the core has found nothing: this finds
        out why.
        """
        return self._look_up(key, self._read)

    def stat(self, key: bytes) -> Record | None:
        """
        Return what `get` returns, with an empty `value`, which is not read.

        A damaged value is therefore not detected.

        Raises:
            UnreadableRecordError: The disk refused; it is counted.
        """
        if self._find(key) is None:
            self.index.miss(key)
        return self._look_up(key, self._read_without_value)

    def __contains__(self, key: bytes) -> bool:
        """
        Return whether the index has a key that is not purged.

        A record is only read if there are purges; one that cannot be read counts.
        """
        purges = self._log.purges
        found = self._locate(key)
        if found is None or not purges:
            return found is not None
        header = self._try_read_header(found, key)
        return header is None or not purges.covers(key, header.stored_us)

    def _look_up(
        self, key: bytes, read: Callable[[Volume, int, int, bytes], Record | None]
    ) -> Record | None:
        """Look a key up and read its record, until no other thread moves it meanwhile."""
        while True:
            with suppress(_OutdatedError):
                return self._try_look_up(key, read)

    def _try_look_up(
        self, key: bytes, read: Callable[[Volume, int, int, bytes], Record | None]
    ) -> Record | None:
        purges = self._log.purges
        position = self._find(key)
        if position is None:
            if self.index.is_stale(key):
                self.stats.evicted_reads += 1
            else:
                self.stats.absent_reads += 1
            return None
        volume = self._volumes.get(position[0])
        if volume is None:
            self._refuse_outdated(key, position)
            self.stats.evicted_reads += 1
            return None
        try:
            record = read(volume, position[1], position[2], key)
        except (DamagedRecordError, OSError) as error:
            self._count_failed_read(key, position, error)
            return None
        if record is None:
            self.stats.absent_reads += 1  # The position is that of another key.
            return None
        return self._current(key, record, purges)

    def _refuse_outdated(self, key: bytes, position: Position) -> None:
        """
        Check that the position of a key has not changed since it was looked up.

        Raises:
            _OutdatedError: It has.
        """
        found = self._find(key)
        if found is None or found[:2] != position[:2]:
            raise _OutdatedError

    def _count_failed_read(
        self, key: bytes, position: Position, error: DamagedRecordError | OSError
    ) -> None:
        """
        Count a failed read; a damaged record leaves the index.

        Raises:
            UnreadableRecordError: The disk refused.
            _OutdatedError: Another thread has moved or reclaimed the record meanwhile.
        """
        if isinstance(error, OSError):
            self.stats.count_read_error(error)
            message = f"the disk cannot be read: {error.strerror or error}"
            raise UnreadableRecordError(message) from error
        with self.lock:
            if position[0] not in self._volumes:
                raise _OutdatedError
            self._refuse_outdated(key, position)
            # Its entry stays: a value that is put later belongs into the same ring.
            self.index.forget(key, position[0], position[1])
        self.stats.count_damaged(error)

    def _read(
        self, volume: Volume, offset: int, size: int, key: bytes
    ) -> Record | None:
        """
        Read a record: the header, then the value, which is not copied.

        Returns:
            None if it is the record of another key.

        Raises:
            DamagedRecordError: A check of either part failed.
            OSError: The disk refused.
        """
        started_ns = perf_counter_ns()
        header = self._read_header(volume, offset, size, key)
        if header.key != key:
            self.stats.read_errors_in_row = 0
            return None
        value = self._pread(volume.fd, header.length, offset + header.value_start)
        self.stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        if len(value) != header.length or crc32c(value) != header.checksum:
            raise DamagedRecordError("value checksum mismatch", volume.id, offset)
        self.stats.read_errors_in_row = 0
        return _make_record(volume, header, value)

    def _read_without_value(
        self, volume: Volume, offset: int, size: int, key: bytes
    ) -> Record | None:
        """Read the header of a record; as `_read` otherwise."""
        started_ns = perf_counter_ns()
        header = self._read_header(volume, offset, size, key)
        self.stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        return _make_record(volume, header, b"") if header.key == key else None

    def _read_header(
        self, volume: Volume, offset: int, size: int, key: bytes
    ) -> RecordHeader:
        """
        Read the header part of a record, which may be of another key.

        Args:
            volume: The volume.
            offset: Of the record.
            size: A hint for the size of the record, see `Index.find`.
            key: The key that was looked up, a hint for the length of the header.

        Raises:
            DamagedRecordError: No intact header of a value is there.
            OSError: The disk refused.
        """
        data = self._pread(volume.fd, min(size, HEADER_BYTES_MAX + len(key)), offset)
        length = prefix_length(data)
        if length > len(data):
            data = self._pread(volume.fd, length, offset)
        header = decode_header(data, volume.identity_at(offset), offset)
        if header is None or header.tombstone:
            why = explain(data, volume.identity_at(offset))
            raise DamagedRecordError(why, volume.id, offset)
        return header

    def _try_read_header(
        self, place: tuple[Volume, int, int], key: bytes
    ) -> RecordHeader | None:
        """Read the header part of a record; None: it is damaged, or cannot be read."""
        with suppress(DamagedRecordError, OSError):
            return self._read_header(*place, key)
        return None

    def _current(self, key: bytes, record: Record, purges: PurgeList) -> Record | None:
        """
        Return the record, or count it as purged or expired.

        `purges` are those from before the look-up: a purge that covers the record may have
        been dropped with its volume since.
        """
        if purges.covers(key, record.stored_us):
            self.stats.purged_reads += 1
            return None
        if self._is_expired(record):
            self.stats.expired_reads += 1
            self._log.syncs.record_expiry(record.expires_ms)
            return None
        return record

    def _is_expired(self, header: RecordHeader | Record) -> bool:
        return bool(header.expires_ms) and header.expires_ms <= self.clock.now_ms()

    def _is_over(self, key: bytes, header: RecordHeader | Record) -> bool:
        """Return whether an intact record has expired or is purged."""
        return self._is_expired(header) or self._log.purges.covers(
            key, header.stored_us
        )

    def _locate(self, key: bytes) -> tuple[Volume, int, int] | None:
        """Return volume, offset and size of a key's record."""
        position = self._find(key)
        if position is None:
            return None
        volume = self._volumes.get(position[0])
        return None if volume is None else (volume, position[1], position[2])

    # --- Copies --------------------------------------------------------------------

    def read_raw(self, key: bytes) -> bytes | None:
        """Return the bytes of the record of a key, not checked; None: a miss."""
        found = self._locate(key)
        if found is None:
            return None
        volume, offset, size = found
        try:
            data = self._pread(volume.fd, size, offset)
            needed = record_size(data)
            if needed > len(data):
                data = self._pread(volume.fd, needed, offset)
            return data[:needed]
        except OSError as error:
            self.stats.count_read_error(error)
            return None

    def validate(self, key: bytes, copy: bytes) -> Record | None:
        """
        Return the record in a copy if a get may return it.

        It may if the index has this record, or a copy of it that a reclaim has made, or if
        the record was reclaimed and the index has none for the key. Whether such a key was
        put or deleted since is not known here: the caller has to discard all copies of a
        key that is put or deleted, and copies that another store has made.

        Args:
            key: The key that the copy was stored under.
            copy: What `read_raw` returned at some time, or any other bytes.
        """
        named = identity_of(copy)
        if named is None:
            return None
        try:
            record = decode_record(copy, *named, key)
        except DamagedRecordError:
            return None
        if record is None or record.size != len(copy) or self._is_over(key, record):
            return None
        found = self._locate(key)
        if found is None:
            # A purge that was dropped may have covered it: its prefix is not known now.
            is_doubtful = record.stored_us <= self._log.kept_purges.dropped_us
            was_lost = is_doubtful or self._was_deleted(key, *named)
            return None if was_lost else record
        volume, offset, _ = found
        if (volume.identity_at(offset), offset) != named:
            header = self._try_read_header(found, key)
            if header is None or not _is_copy(header, key, record):
                return None
            record = record._replace(volume=volume.id, offset=offset)
        if self.index.hit(key):
            self.index.count_older_hit(record.stored_us)
        return record

    def is_current(self, key: bytes, copy: bytes) -> bool:
        """Return whether what `read_raw` has returned is still the record of a key."""
        named, found = identity_of(copy), self._locate(key)
        if named is None or found is None:
            return False
        volume, offset, _ = found
        # A position is used for one record only: another use of it has another salt.
        return (volume.identity_at(offset), offset) == named

    def is_moved(self, copy: bytes, record: Record) -> bool:
        """Return whether a record that `validate` has returned is elsewhere now."""
        named = identity_of(copy)
        return named is None or (named[0].volume, named[1]) != (
            record.volume,
            record.offset,
        )

    def _was_deleted(self, key: bytes, identity: RecordIdentity, offset: int) -> bool:
        """Return whether a record without an entry was deleted, not reclaimed."""
        volumes = self._volumes.copy().values()  # Another thread may rotate.
        return self.index.is_deleted(key) or any(
            identity == volume.identity_at(offset) for volume in volumes
        )


def _is_copy(header: RecordHeader, key: bytes, record: Record) -> bool:
    """Return whether a record is a copy that a reclaim has made of another one."""
    # `touch` keeps the time stored, and changes the expiry.
    return (
        header.key == key
        and header.stored_us == record.stored_us
        and header.expires_ms == record.expires_ms
        and header.length == record.length
        and header.checksum == record.checksum
    )


def _make_record(volume: Volume, header: RecordHeader, value: bytes) -> Record:
    return Record(
        value,
        header.content_type,
        header.content_encoding,
        header.cache_control,
        header.stored_us,
        header.expires_ms,
        header.flags,
        volume.id,
        header.offset,
        header.size,
        header.length,
        header.checksum,
    )
