"""
Reading from a store: values, headers, and copies of records that are elsewhere.

A get is one read of a whole record, by the core, which is checked before it is returned.
What the core does not return is read again in Python, which finds out why.
"""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING

from volcache.errors import DamagedRecordError, UnreadableRecordError
from volcache.store.format import (
    HEADER_BYTES_MAX,
    Record,
    RecordHeader,
    new_record,
    place_of,
    prefix_length,
    record_size,
)
from volcache.store.native import decode_header, decode_record, explain

if TYPE_CHECKING:
    from volcache.store.format import Place
    from volcache.store.index import Position
    from volcache.store.rings import KeptPurges, Rings
    from volcache.store.syncs import Syncs
    from volcache.store.volume import Volume


class RecordReader:
    """
    The part of a store that reads.

    Invariant: a position is valid only if its volume is in `_volumes`; `reclaim.py`
    explains why an older record of a key never becomes current again.
    """

    def __init__(self, rings: Rings, purges: KeptPurges, syncs: Syncs) -> None:
        """Read what these have; `syncs` notes that a record has expired."""
        self._index, self._stats, self._clock = rings.index, rings.stats, rings.clock
        self._syncs, self._kept_purges, self._volumes = syncs, purges, rings.volumes
        self._find, self._fs = self._index.find, rings.directory.fs
        # With a volume, purges are dropped that cover records in it.
        self._is_valid = rings.has
        self._pread = self._fs.pread

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
        fields = self._index.read(key)
        if fields is None:
            return self._look_up(key, with_value=True)
        self._stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        self._stats.read_errors_in_row = 0
        record: Record = new_record(Record, fields)  # Not a purged one.
        return self._unexpired(record) if record.expires_ms else record

    def peek(self, key: bytes) -> Record | None:
        """Return what `get` returns; the eviction policy does not count it as a read."""
        return self._look_up(key, with_value=True)

    def stat(self, key: bytes) -> Record | None:
        """
        Return what `get` returns, with an empty `value`, which is not read.

        A damaged value is therefore not detected.

        Raises:
            UnreadableRecordError: The disk refused; it is counted.
        """
        if self._find(key) is None:
            self._index.miss(key)
        return self._look_up(key, with_value=False)

    def __contains__(self, key: bytes) -> bool:
        """
        Return whether the index has a key that is not purged.

        A record is only read if there are purges; one that cannot be read counts.
        """
        found = self._locate(key)
        if found is None:
            return False
        header = self._try_read_header(found, key) if self._kept_purges.count else None
        if header is not None and self._index.is_purged(key, header.stored_us):
            return False
        return self._is_valid(found[0]) or key in self

    def _look_up(self, key: bytes, *, with_value: bool) -> Record | None:
        """Look a key up and read its record; again if another thread moves it meanwhile."""
        position = self._find(key)
        if position is None:
            if self._index.is_stale(key):
                self._stats.evicted_reads += 1
            else:
                self._stats.absent_reads += 1
            return None
        seq, offset, size = position
        volume = self._volumes.get(seq)
        if volume is None:
            if self._is_outdated(key, position):
                return self._look_up(key, with_value=with_value)
            self._stats.evicted_reads += 1
            return None
        try:
            record = self._read(volume, offset, size, key, with_value=with_value)
        except (DamagedRecordError, OSError) as error:
            is_miss = self._count_failed_read(key, position, error)
            return None if is_miss else self._look_up(key, with_value=with_value)
        found = self._unhidden(key, record)
        if found is None or self._is_valid(volume):
            return found
        return self._look_up(key, with_value=with_value)

    def _unhidden(self, key: bytes, record: Record | None) -> Record | None:
        """Return a record unless it is purged or expired; count why there is none."""
        if record is None:
            self._stats.absent_reads += 1  # The position is that of another key.
        elif self._index.is_purged(key, record.stored_us):
            self._stats.purged_reads += 1
        else:
            return self._unexpired(record) if record.expires_ms else record
        return None

    def _is_outdated(self, key: bytes, position: Position) -> bool:
        """Return whether the position of a key has changed since it was looked up."""
        found = self._find(key)
        return found is None or found[:2] != position[:2]

    def _count_failed_read(
        self, key: bytes, position: Position, error: DamagedRecordError | OSError
    ) -> bool:
        """
        Count a failed read; a damaged record leaves the index.

        Returns:
            False if another thread has moved or reclaimed the record meanwhile.

        Raises:
            UnreadableRecordError: The disk refused.
        """
        if isinstance(error, OSError):
            self._stats.count_read_error(error)
            message = f"the disk cannot be read: {error.strerror or error}"
            raise UnreadableRecordError(message) from error
        with self._index.lock:
            if position[0] not in self._volumes or self._is_outdated(key, position):
                return False
            # Its entry stays: a value that is put later belongs into the same ring.
            self._index.forget(key, position[0], position[1])
        self._stats.count_damaged(error)
        return True

    def _read(
        self, volume: Volume, offset: int, size: int, key: bytes, *, with_value: bool
    ) -> Record | None:
        """
        Read a record: the header, then the value, which is not copied.

        Args:
            volume: The volume.
            offset: Of the record.
            size: A hint, see `Index.find`.
            key: Of the record.
            with_value: Else the record gets an empty one, and the disk does not count as
                one that reads again.

        Returns:
            None if it is the record of another key.

        Raises:
            DamagedRecordError: A check of a part that is read failed.
            OSError: The disk refused.
        """
        started_ns = perf_counter_ns()
        header = self._read_header(volume, offset, size, key)
        if header.size > size and not self._is_inside(volume, offset, header.size):
            why = f"record of {header.size} bytes ends behind its file"
            raise DamagedRecordError(why, volume.id, offset)
        value, is_mine = b"", header.key == key
        if with_value and is_mine:
            value = self._pread(volume.fd, header.length, offset + header.value_start)
        self._stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        if not with_value:
            return header.without_value(volume.id) if is_mine else None
        record = header.record(value, volume.id) if is_mine else None
        self._stats.read_errors_in_row = 0
        return record

    def _is_inside(self, volume: Volume, offset: int, size: int) -> bool:
        """Return whether so many bytes can be read, before there is memory for them."""
        return offset + size <= self._fs.stat(volume.fd).st_size

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
        place = volume.place_at(offset)
        header = decode_header(data, *place)
        if header is None and prefix_length(data) > len(data):
            data = self._pread(volume.fd, prefix_length(data), offset)
            header = decode_header(data, *place)
        if header is None or header.tombstone:
            raise DamagedRecordError(explain(data, place), volume.id, offset)
        return header

    def _try_read_header(
        self, place: tuple[Volume, int, int], key: bytes
    ) -> RecordHeader | None:
        """Read the header part of a record; None: it is damaged, or cannot be read."""
        with suppress(DamagedRecordError, OSError):
            return self._read_header(*place, key)
        return None

    def _unexpired(self, record: Record) -> Record | None:
        """Return a record that may expire, or count it as expired."""
        if record.expires_ms > self._clock.now_ms():
            return record
        self._stats.expired_reads += 1
        self._syncs.record_expiry(record.expires_ms)
        return None

    def is_over(self, key: bytes, header: RecordHeader | Record) -> bool:
        """Return whether an intact record has expired or is purged."""
        is_expired = 0 < header.expires_ms <= self._clock.now_ms()
        return is_expired or self._index.is_purged(key, header.stored_us)

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
            if needed > len(data) and self._is_inside(volume, offset, needed):
                data = self._pread(volume.fd, needed, offset)
            return data[:needed]
        except OSError as error:
            self._stats.count_read_error(error)
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
        named = place_of(copy)
        if named is None:
            return None
        try:
            record = decode_record(copy, named, key)
        except DamagedRecordError:
            return None
        if record is None or record.size != len(copy) or self.is_over(key, record):
            return None
        found = self._locate(key)
        if found is None:
            # A purge that was dropped may have covered it: its prefix is not known now.
            is_doubtful = record.stored_us <= self._kept_purges.dropped_us
            was_lost = is_doubtful or self._was_deleted(key, named)
            return None if was_lost else record
        volume, offset, _ = found
        if volume.place_at(offset) != named:
            header = self._try_read_header(found, key)
            if (
                header is None
                or header.key != key
                or not header.is_relocated_from(record)
            ):
                return None
            record = record._replace(volume=volume.id, offset=offset)
        self._index.hit(key, record.stored_us)
        return record

    def is_current(self, key: bytes, copy: bytes) -> bool:
        """Return whether what `read_raw` has returned is still the record of a key."""
        named, found = place_of(copy), self._locate(key)
        if named is None or found is None:
            return False
        volume, offset, _ = found
        # A position is used for one record only: another use of it has another salt.
        return volume.place_at(offset) == named

    def is_moved(self, copy: bytes, record: Record) -> bool:
        """Return whether a record that `validate` has returned is elsewhere now."""
        named = place_of(copy)
        return named is None or named[1:] != (record.volume, record.offset)

    def _was_deleted(self, key: bytes, place: Place) -> bool:
        """Return whether a record without an entry was deleted, not reclaimed."""
        volumes = self._volumes.copy().values()  # Another thread may rotate.
        return self._index.is_deleted(key) or any(
            place == volume.place_at(place.offset) for volume in volumes
        )
