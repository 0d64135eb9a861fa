"""
The store: keys and values on one mount point.

A put is one write at the end of the active volume, then the index changes; a get is one
read of a whole record, which is checked before it is returned. The other modules of this
package are the parts. The store contains no HTTP, no settings and no other tier; it gets
numbers, a file system and a clock.

Threads: any thread may call any method; `close` only when no other one does. There is one
lock. Every method that changes the index, the log or a volume holds it; a thread that holds
it may call them, so that it can decide on what it has read. `get`, `stat`, `read_raw` and
`validate` hold nothing while they read: a lookup waits for no other thread, a data file
stays open as long as the store, and a record that another thread moves or reclaims while it
is read fails its checks: then it is looked up again. They take the lock only to let a
damaged record leave the index, and, once a second, to note that a record has expired.
`sync` waits for the disk without the lock.
Counters may miss a count when several threads count at the same time.

Invariant: a position is valid only if its volume is in `_volumes`; `reclaim.py` explains
why an older record of a key never becomes current again.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from google_crc32c import value as crc32c

from volcache.errors import (
    DamagedRecordError,
    ForeignDirectoryError,
    MountPointError,
    StoreIOError,
    UnreadableRecordError,
    ValueTooLargeError,
)
from volcache.geometry import refuse_too_many
from volcache.store.directory import StoreDirectory, unusable
from volcache.store.disk import (
    VOLUMES_MIN,
    Holding,
    holding_of,
    is_short,
    refuse_too_small,
)
from volcache.store.eviction import make_policy
from volcache.store.files import OsFileSystem
from volcache.store.format import (
    HEADER_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    VALUE_BYTES_MAX,
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
from volcache.store.index_format import encode_key
from volcache.store.key_scan import KeyScan
from volcache.store.log import CircularLog, LogOptions
from volcache.store.native import make_clock
from volcache.store.recovery import NothingStoredError, recover
from volcache.store.scrub import Scrub
from volcache.store.stats import READ_ERRORS_IN_ROW_MAX
from volcache.store.usage import purge_stay_of, usage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.clock import Clock
    from volcache.store.eviction import Eviction
    from volcache.store.files import FileSystem
    from volcache.store.format import NewRecord, RecordFields, RecordIdentity
    from volcache.store.index import Position
    from volcache.store.native import Index, WriteLock
    from volcache.store.purges import PurgeList, PurgeStay
    from volcache.store.recovery import Recovered
    from volcache.store.stats import RecoveryStats, StoreStats, StoreUsage
    from volcache.store.syncs import SyncMode
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")


class _Outdated:
    """What was to be read is elsewhere by now, or gone."""


_OUTDATED: Final = _Outdated()


@dataclass(frozen=True, slots=True)
class CoreParts:
    """What `NativeApp` needs to do what `Store.get` and `Store.put` do."""

    index: Index
    lock: WriteLock
    stats: StoreStats
    clock: Clock
    catch_up: Callable[[], None]


class Store:
    """
    A mount point that is open.

    Attributes (read-only for others):
        recovery: What the start found.
        stats: What was counted since.
        clock: Never goes back; the time at which records are stored and expire.
        holding: What the disk could hold when the store was opened.
        lock: Held by whatever changes the store; see the module.
        refusal: Why nothing can be stored until the store is opened again; empty: it can.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        recovered: Recovered,
        options: LogOptions,
        holding: Holding,
        clock: Clock,
    ) -> None:
        """Use `Store.open`."""
        self.holding = holding
        self.refusal = options.refusal
        self._directory = directory
        self._pread = directory.fs.pread
        self.clock = clock
        self._valid_hot = recovered.hot
        self._mount_count = recovered.manifest.mount_count
        self._index = recovered.index
        self._find = recovered.index.find
        self.recovery: RecoveryStats = recovered.recovery
        self.stats: StoreStats = recovered.stats
        self.lock = self._lock = recovered.index.lock
        self._log = CircularLog(directory, recovered, options, clock)
        self._syncs_each = options.sync_mode == "always"
        self._index.set_putting(
            clock, self._log.step_bytes, self._syncs_each, self.stats.writes
        )
        for volume in filter(None, self._log.actives):
            self._index.set_volume(volume)
        self._volumes = self._log.volumes
        self._is_closed = False

    @classmethod
    def open(  # noqa: PLR0913 - By keyword.
        cls,
        directory: str,
        *,
        volume_size: int,
        volume_num: int | None,
        sync_mode: SyncMode = "periodic",
        eviction: Eviction = "frequency",
        reinsert_reads: float = 0.1,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """
        Open a mount point; create one where there is none.

        If the disk does not accept writes, because it is read-only, or full and no volume
        can be given up, what is stored is served, and nothing can be stored until the
        store is opened again.

        Args:
            directory: Path of the mount point.
            volume_size: Bytes of a volume, header included. If it differs from last
                time, each volume gets the new size when its id is used again.
            volume_num: Number of volumes, at least 2. If it is lower than last time, the
                oldest volumes are removed at once. None: as many as the disk holds, less
                a reserve, see `disk.py`.
            sync_mode: When writes reach the disk: "always" before a put or delete
                returns, "periodic" when the caller calls `sync`, "none" when the kernel
                decides. `close` always syncs.
            eviction: "frequency" keeps what is read again, see `eviction.py`; with fewer
                than 4 volumes, it is the same as "fifo", which reclaims the oldest volume
                as a whole. May differ from last time.
            reinsert_reads: For "frequency": bytes that may be copied for each byte that is
                read, 0 to 1.
            fs: The file system.
            clock: Not used by another store.

        Raises:
            ForeignDirectoryError: The directory contains something else.
            StoreLockedError: Another process has it open.
            FormatVersionError: It was written by another version of volcache.
            MismatchedFilesError: Its files do not belong together.
            UnreadableVolumeError: The disk cannot be read where records may be.
            DiskTooSmallError: There are no volumes yet, and the disk does not hold two.
            GeometryError: There would be too many volumes for their size.
            MountPointError: It cannot be read or written.
        """
        wanted = _Wanted(volume_size, volume_num, sync_mode, eviction, reinsert_reads)
        refuse_too_many(volume_size, volume_num or VOLUMES_MIN)
        fs, clock = fs or OsFileSystem(), clock or make_clock()
        try:
            opened = StoreDirectory.open(fs, directory)
            return cls(opened, *_recover(opened, wanted, clock), clock)
        except MountPointError as error:
            refused = _lasting_refusal(fs, directory, error)
            if refused is None:
                raise
            try:
                opened = StoreDirectory.inspect(fs, directory)
                return cls(opened, *_recover(opened, wanted, clock, refused), clock)
            except (ForeignDirectoryError, NothingStoredError):
                raise error from refused

    # --- Reading -------------------------------------------------------------------

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
        while True:
            found = self._try_get(key)
            if not isinstance(found, _Outdated):
                return found

    def scan_keys(self) -> Iterator[list[bytes]]:
        """
        Return an iterator over all keys, some at a time, by the age of their volumes.

        See `key_scan.py` for what a change during the scan does.
        """
        return KeyScan(
            self._log,
            self._index,
            fs=self._directory.fs,
            clock=self.clock,
        ).batches()

    def _try_get(self, key: bytes) -> Record | _Outdated | None:
        """Look a key up and read its record."""
        purges = self._log.purges
        position = self._find(key)
        if position is None:
            self._count_absent(key)
            return None
        volume = self._volumes.get(position[0])
        if volume is None:
            return self._count_evicted(key, position)
        try:
            record = self._read(volume, position[1], position[2], key)
        except (DamagedRecordError, OSError) as error:
            return self._count_failed_read(key, position, error)
        self.stats.read_errors_in_row = 0
        if record is None:
            self.stats.absent_reads += 1  # The position is that of another key.
            return None
        return self._current(key, record, purges)

    def _count_evicted(self, key: bytes, position: Position) -> _Outdated | None:
        """Count a miss of a key whose volume is gone, unless it is elsewhere by now."""
        if self._is_outdated(key, position):
            return _OUTDATED
        self.stats.evicted_reads += 1
        return None

    def _is_outdated(self, key: bytes, position: Position) -> bool:
        """Return whether the position of a key has changed since it was looked up."""
        found = self._find(key)
        return found is None or found[:2] != position[:2]

    def _count_absent(self, key: bytes) -> None:
        """Count a miss of a key without a position."""
        if self._index.is_stale(key):
            self.stats.evicted_reads += 1
        else:
            self.stats.absent_reads += 1

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
            return None
        value = self._pread(volume.fd, header.length, offset + header.value_start)
        self.stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        if len(value) != header.length or crc32c(value) != header.checksum:
            raise DamagedRecordError("value checksum mismatch", volume.id, offset)
        return _make_record(volume, header, value)

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

    def stat(self, key: bytes) -> Record | None:
        """
        Return what `get` returns, with an empty `value`, which is not read.

        A damaged value is therefore not detected.

        Raises:
            UnreadableRecordError: The disk refused; it is counted.
        """
        while True:
            found = self._try_stat(key)
            if not isinstance(found, _Outdated):
                return found

    def _try_stat(self, key: bytes) -> Record | _Outdated | None:
        """Look a key up and read the header of its record."""
        purges = self._log.purges
        position = self._find(key)
        if position is None:
            self._index.miss(key)
            self._count_absent(key)
            return None
        seq, offset, size = position
        volume = self._volumes.get(seq)
        if volume is None:
            found = self._count_evicted(key, position)
            if found is None:
                self._index.miss(key)
            return found
        try:
            started_ns = perf_counter_ns()
            header = self._read_header(volume, offset, size, key)
            self.stats.reads.observe(started_ns, perf_counter_ns() - started_ns)
        except (DamagedRecordError, OSError) as error:
            return self._count_failed_read(key, position, error)
        if header.key != key:
            self.stats.absent_reads += 1
            return None
        return self._current(key, _make_record(volume, header, b""), purges)

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

    def _count_failed_read(
        self, key: bytes, position: Position, error: DamagedRecordError | OSError
    ) -> _Outdated | None:
        """
        Count a failed read; a damaged record leaves the index.

        `_Outdated`: nothing was counted, since another thread has moved or reclaimed the
        record meanwhile.

        Raises:
            UnreadableRecordError: The disk refused.
        """
        if isinstance(error, OSError):
            self.stats.count_read_error(error)
            message = f"the disk cannot be read: {error.strerror or error}"
            raise UnreadableRecordError(message) from error
        with self._lock:
            if position[0] not in self._volumes or self._is_outdated(key, position):
                return _OUTDATED
            # Its entry stays: a value that is put later belongs into the same ring.
            self._index.forget(key, position[0], position[1])
        self.stats.count_damaged(error)
        return None

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
        volume, offset, size = found
        if (volume.identity_at(offset), offset) != named:
            if not self._is_copy_of(record, volume, offset, size, key):
                return None
            record = record._replace(volume=volume.id, offset=offset)
        if self._index.hit(key):
            self._index.count_older_hit(record.stored_us)
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
        return self._index.is_deleted(key) or any(
            identity == volume.identity_at(offset) for volume in volumes
        )

    def _is_copy_of(
        self, record: Record, volume: Volume, offset: int, size: int, key: bytes
    ) -> bool:
        """Return whether the record at a position is a copy that a reclaim has made."""
        try:
            header = self._read_header(volume, offset, size, key)
        except (DamagedRecordError, OSError):
            return False
        # `touch` keeps the time stored, and changes the expiry.
        return (
            header.key,
            header.stored_us,
            header.expires_ms,
            header.length,
            header.checksum,
        ) == (
            key,
            record.stored_us,
            record.expires_ms,
            record.length,
            record.checksum,
        )

    def __contains__(self, key: bytes) -> bool:
        """
        Return whether the index has a key that is not purged.

        A record is only read if there are purges; one that cannot be read counts.
        """
        purges = self._log.purges
        found = self._locate(key)
        if found is None or not purges:
            return found is not None
        try:
            header = self._read_header(*found, key)
        except (DamagedRecordError, OSError):
            return True
        return not purges.covers(key, header.stored_us)

    # --- State ---------------------------------------------------------------------

    def core_parts(self) -> CoreParts:
        """Return what the fast paths need."""
        return CoreParts(
            self._index, self._lock, self.stats, self.clock, self._catch_up
        )

    @property
    def count(self) -> int:
        """The number of keys, expired and purged ones included."""
        with self._lock:
            return self._index.count

    def take_hot_snapshot(self) -> tuple[bytes, str]:
        """
        Return HOT.txt and what it must be bound to; empty bytes: there is none to use.

        The binding is right only for the last process, in this directory, since this
        boot. HOT.txt is removed; META.txt has a new mount count already, so that it would
        not be used again if it came back.
        """
        valid, self._valid_hot = self._valid_hot, ""
        if not valid:
            return b"", ""
        try:
            is_valid = self._directory.identify_hot() == valid
            data = self._directory.read_hot() if is_valid else b""
            self._directory.remove_hot()
        except OSError as error:
            _logger.warning("hot.snapshot_failed error=%r", str(error))
            return b"", ""
        return data, self._binding(self._mount_count - 1)

    def write_hot_snapshot(self, make: Callable[[str], bytes]) -> None:
        """
        Write HOT.txt, after the last put and before `close`.

        Args:
            make: Returns the contents for a binding.
        """
        binding = self._binding(self._mount_count)
        # The next process would not know that copies of purged records are not valid.
        if not binding or self._log.kept_purges.dropped_us >= 0 or self.refusal:
            return
        try:
            self._directory.write_hot(make(binding))
            self._log.rings.bind_hot(self._directory.identify_hot())
        except OSError as error:
            _logger.warning("hot.snapshot_failed error=%r", str(error))

    def _binding(self, mount_count: int) -> str:
        """Return what identifies a mount of this directory; empty: not known."""
        boot = self._directory.boot()
        if not boot:
            return ""
        device, inode, _ = self._directory.fs.identify(self._directory.root)
        return (
            f"store {self._log.manifest.store_id:016x} mount {mount_count}"
            f" directory {device}:{inode} boot {boot:08x}"
        )

    def held_bytes(self) -> int:
        """
        Return how many bytes of the disk the volumes and index files take.

        Raises:
            StoreIOError: The disk does not answer.
        """
        try:
            return holding_of(self._directory).held
        except OSError as error:
            raise StoreIOError(f"the disk cannot be read: {error.strerror}") from error

    def is_ready(self) -> bool:
        """
        Return whether this store should get requests: false after several read errors.

        While it is false, each call reads from the disk: there may be no requests whose
        reads would show that the disk works again.
        """
        if self.stats.is_disk_good:
            return True
        if not self._log.probe(READ_ERRORS_IN_ROW_MAX):
            return False
        self.stats.count_disk_recovery()
        return True

    def usage(self, *, volumes: bool = True) -> StoreUsage:
        """
        Return how full the store is.

        Args:
            volumes: List the volumes: ten times as expensive, some microseconds for each.
        """
        with self._lock:
            return usage_of(self._log, volumes=volumes)

    # --- Writing -------------------------------------------------------------------

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
        stored_us: int = 0,
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
            stored_us: The version that `touch` keeps; 0: a new one.

        Raises:
            ValueTooLargeError: The record does not fit an empty volume.
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In all cases the old value stays.
        """
        record = (
            key,
            value,
            content_type,
            content_encoding,
            cache_control,
            stored_us,
            expires_ms,
            flags,
            False,
        )
        with self._lock:
            return new_record(Record, self._append(record))

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
        return self.put(
            key,
            record.value,
            content_type=record.content_type,
            content_encoding=record.content_encoding,
            cache_control=record.cache_control,
            stored_us=record.stored_us,
            expires_ms=expires_ms,
            flags=record.flags,
        )

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

    def _append(self, record: NewRecord) -> RecordFields:
        """
        Append a record: by the core alone, or after what it leaves to Python.

        Raises:
            StoreError: As by `put`.
        """
        written = self._try_append(record, None)
        if written is None:
            self._catch_up()
            length, size = len(record[1]), sum(map(len, record[:5]))
            volume = self._volume_for(record[0], RECORD_OVERHEAD_BYTES + size, length)
            written = self._try_append(record, volume)
            if written is None:
                raise ValueTooLargeError(size=length, limit=VALUE_BYTES_MAX)
        self._catch_up()
        return written

    def _try_append(
        self, record: NewRecord, volume: Volume | None
    ) -> RecordFields | None:
        """
        Let the core append a record; see `Index.put` for the arguments and the result.

        Raises:
            StoreIOError: The disk refused; a start does not find the record.
        """
        may_make_space = True
        while True:
            try:
                written = self._index.put(*record, volume)
            except OSError as error:
                _, _, (volume,) = self._index.take_due()
                if not (may_make_space and self._log.make_space(error)):
                    raise self._log.syncs.refused(volume, error) from error
                may_make_space = False
            else:
                if self._syncs_each and volume is not None:
                    volume.note_synced()
                return written

    def _catch_up(self) -> None:
        """Do what is due after a put; the caller holds the lock."""
        if not self._index.is_due:
            return
        appended, unwritten, refused = self._index.take_due()
        for volume in refused:
            self._log.hold(volume)
        for volume in unwritten:
            if volume.is_index_due:
                self._log.write_index(volume)
        self._log.continue_reclaim(appended)

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
        with self._lock:
            self._catch_up()
            self._log.settle()
            found = self._locate(key)
            # A key that the index has lost for want of memory may be there after a start.
            if found is None and not self._index.displaced:
                return False
            existed = found is not None
            try:
                header = self._read_header(*found, key) if found else None
            except (DamagedRecordError, OSError):
                header = None
            if header is not None:
                # Two keys with one fingerprint have it at every start: the record of the
                # other key hides that of this one then, too.
                if header.key != key:
                    return False
                existed = not self._is_over(key, header)
            volume = self._volume_for(key, RECORD_OVERHEAD_BYTES + len(key), 0)
            self._try_append((key, *(b"",) * 4, 0, 0, 0, True), volume)
            if not volume.has_index_backlog:
                self._log.write_index(volume)
            self._catch_up()
        return existed

    def flush(self) -> None:
        """
        Drop every key, in constant time.

        Raises:
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In both cases nothing was dropped.
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
            StoreIOError: The disk refused. In both cases nothing was dropped; but after
                the second, the purge may take effect at the next start.
        """
        with self._lock:
            self._log.kept_purges.add(prefix)
            self.stats.purges += 1
        _logger.warning(
            "store.purged prefix=%r entries=%d",
            encode_key(prefix),
            len(self._log.purges),
        )

    def purge_stay(self) -> PurgeStay:
        """Return how long a purge that is made now would stay in the list."""
        with self._lock:
            return purge_stay_of(self._log)

    # --- Syncing and closing -------------------------------------------------------

    def sync(self) -> None:
        """
        Return when everything written up to now survives a power loss.

        For any one thread. A refusal is logged and counted, and the volume concerned is
        not written again: what the kernel has dropped of it is found damaged.
        """
        self._log.syncs.sync()

    def wait_to_sync(self, seconds: float) -> None:
        """Return after a time, or as soon as `sync` should be called."""
        if self._log.syncs.wanted.wait(seconds):
            self._log.syncs.wanted.clear()

    def want_sync(self) -> None:
        """Let `wait_to_sync` return."""
        self._log.syncs.wanted.set()

    def scrub(self, rate: int, *, period: float = 3600.0) -> Scrub:
        """
        Verify the volumes in the background, see `scrub.py`, until it is stopped.

        To be stopped before `close`.

        Args:
            rate: Bytes per second, above 0.
            period: Seconds from the beginning of a pass to that of the next, at least:
                to verify the same bytes more often is of no use.
        """
        return Scrub(
            self._log,
            self._directory,
            self._lock,
            rate,
            stats=self.stats.scrub,
            clock=self.clock,
            period=period,
        )

    def close(self) -> None:
        """Write and sync what is buffered, and release the mount point."""
        if self._is_closed:
            return
        self._is_closed = True
        self._log.close()
        self._directory.close()

    def drop(self) -> None:
        """
        Close all files as they are, as the death of the process would; nothing is written.

        For a store that an exception of a signal handler has left in the middle of a
        change: what is in memory may not be what is on the disk. The next opening recovers.
        No thread may be in a method. May be called again.
        """
        self._is_closed = True
        self._log.drop()
        self._directory.close()

    def abandon(self) -> None:
        """
        Give up the locks that a forked child has inherited; nothing is written.

        In the parent, the store stays open and locked. In the child, no other method may
        be called from now on: a lock of a thread that the child does not have may be held.
        """
        self._is_closed = True
        self._directory.close()


class _Wanted(NamedTuple):
    """The arguments of `Store.open`."""

    volume_size: int
    volume_num: int | None
    sync_mode: SyncMode
    eviction: Eviction
    reinsert_reads: float


def _recover(
    opened: StoreDirectory,
    wanted: _Wanted,
    clock: Clock,
    refused: OSError | None = None,
) -> tuple[Recovered, LogOptions, Holding]:
    """
    Recover a directory, which is closed if that fails.

    Args:
        opened: The directory.
        wanted: How it is used.
        clock: Of the store.
        refused: Why it can only be read; None: it can be written.
    """
    try:
        holding = holding_of(opened)
        if refused is None:
            refuse_too_small(opened.root, holding, wanted.volume_size)
        number = wanted.volume_num or holding.auto_volumes(wanted.volume_size)
        policy = make_policy(
            wanted.eviction,
            volume_size=wanted.volume_size,
            # With fewer volumes than the settings have, there is less to divide.
            volume_num=min(number, holding.volumes_of(wanted.volume_size)),
            reinsert_reads=wanted.reinsert_reads,
        )
        recovered = recover(
            opened,
            volume_size=wanted.volume_size,
            volume_num=number,
            clock=clock,
            writes_probation=policy is not None,
            is_read_only=refused is not None,
        )
    except OSError as error:
        opened.close()
        raise unusable(opened.root, error) from error
    except BaseException:
        opened.close()
        raise
    refusal = ""
    if refused is not None:
        refusal = _refusal_text(refused)
        recovered.stats.count_write_error(refused)
    options = LogOptions(wanted.volume_size, number, wanted.sync_mode, policy, refusal)
    return recovered, options, holding


def _lasting_refusal(
    fs: FileSystem, directory: str, error: MountPointError
) -> OSError | None:
    """Return why a disk does not accept writes; None if the next start may succeed."""
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return None
    try:
        is_read_only = cause.errno == errno.EROFS and fs.space(directory).is_read_only
        is_lasting = is_read_only or is_short(fs, directory, cause)
    except OSError:
        return None
    return cause if is_lasting else None


def _refusal_text(error: OSError) -> str:
    """Say why a store is only read."""
    what = "read-only" if error.errno == errno.EROFS else "full"
    return (
        f"the disk was {what} when the instance was started: files can be read, but not"
        " stored or deleted before it is started again on a disk that can be written"
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


class PeriodicSync:
    """
    A thread that calls `Store.sync` at an interval, for the sync mode "periodic".

    The system calls that it waits in release the interpreter, so that requests continue.
    """

    def __init__(self, store: Store, interval: float) -> None:
        """Start at once; `interval` in seconds."""
        self._store = store
        self._interval = interval
        self._stopped = threading.Event()
        self._began: float | None = None  # the sync that is running
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._store.wait_to_sync(self._interval)
        while not self._stopped.is_set():
            self._began = time.monotonic()
            self._store.sync()
            self._began = None
            self._store.wait_to_sync(self._interval)

    def stalled_seconds(self) -> float:
        """Return for how long a sync has been running; 0 if none is; from any thread."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self) -> None:
        """Return when the thread has ended and will not use the store again."""
        self._stopped.set()
        self._store.want_sync()
        self._thread.join()
