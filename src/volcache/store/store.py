"""
The store: keys and values on one mount point.

A put is one write at the end of the head, then the index in memory changes; a get is one
read of a whole record, which is checked before it is believed. Everything else is in the
modules named after it. The store knows no HTTP, no settings and no other tier; it is given
numbers, a file system and a clock.

One thread calls everything but `sync`, which another one may.

Invariant: a position counts only if its life is in `_volumes`; see `log.py` for what
keeps older values of a key from coming to light again.

Sync mode "periodic": a thread that makes what was written survive a power loss.

The system calls it waits in release the interpreter, so that requests go on meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Self

from google_crc32c import value as crc32c

from volcache.errors import DamagedRecordError
from volcache.histogram import LONG_NS
from volcache.store.directory import StoreDirectory, unusable
from volcache.store.files import FileJournal, OsFileSystem
from volcache.store.format import (
    HEAD_BYTES,
    RECORD_BYTES_MIN,
    RECORD_OVERHEAD_BYTES,
    Record,
    decode_copy,
    decode_head,
    decode_record,
    encode_record,
    encode_tombstone,
    make_record,
)
from volcache.store.index import (
    OFFSET_MAX,
    OFFSET_SHIFT,
    SEQ_SHIFT,
    SIZE_MAX,
    make_seq,
    pack_position,
)
from volcache.store.log import CircularLog, SyncMode
from volcache.store.recovery import recover
from volcache.store.stats import READ_ERRORS_IN_ROW_MAX
from volcache.store.volume import Appender

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.files import FileSystem
    from volcache.store.recovery import Recovered
    from volcache.store.stats import RecoveryStats, StoreStats, StoreUsage
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")
# Keys of reclaimed volumes looked at with each put, and one more for every so many bytes
# written: a volume is swept before the head, which is as large, is full.
_SWEEP_KEYS_MIN: Final = 16
# Records from here on are read in two parts. With smaller ones, when the page cache does
# not have them, the second read costs more than the copy it saves.
_LARGE_BYTES: Final = 1 << 20


class Store:
    """A mount point, open."""

    def __init__(
        self,
        mount: StoreDirectory,
        recovered: Recovered,
        *,
        volume_size: int,
        volume_num: int,
        sync_mode: SyncMode,
        clock: Callable[[], int],
    ) -> None:
        """Use `Store.open`."""
        self._mount = mount
        self._fs = mount.fs
        self._pread = mount.fs.pread
        self._clock = clock
        self._session = recovered.meta.mount_count
        self._index = recovered.index
        self._position_of = recovered.index.get
        self.report: RecoveryStats = recovered.report
        self.stats: StoreStats = recovered.stats
        self._reads = self.stats.reads
        self._read_counts = self.stats.reads.counts
        self._log = CircularLog(
            mount,
            recovered,
            self.stats,
            volume_size=volume_size,
            volume_num=volume_num,
            sync_mode=sync_mode,
            clock=clock,
        )
        # The cycle changes what is in the dict, never the dict.
        self._volumes = self._log.volumes
        self._appender = Appender(
            mount.fs, self._log, self.stats, syncs_each=sync_mode == "always"
        )
        self._append = self._appender.append
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        volume_size: int,
        volume_num: int,
        sync_mode: SyncMode = "periodic",
        fs: FileSystem | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> Self:
        """
        Open a mount point; make one where there is none.

        Args:
            directory: Of the mount point; made if missing.
            volume_size: Bytes of a volume, header included. May differ from last time:
                a slot takes the new size when its turn comes.
            volume_num: Number of volumes, at least 2. May differ from last time: when
                it is smaller, the oldest volumes are given up at once.
            sync_mode: When written data is made to survive a power loss: "always"
                before a put or delete returns, "periodic" by calls of `sync` from
                outside, "none" when the system sees fit. Closing syncs in any case.
            fs: The disk.
            clock: Milliseconds since the epoch.

        Raises:
            ForeignDirectoryError: The directory holds something else.
            StoreLockedError: Another process has it open.
            FormatVersionError: It was written by a newer volcache.
            MountPointError: It cannot be read or written.
        """
        mount = StoreDirectory.open(fs or OsFileSystem(), directory)
        try:
            recovered = recover(mount, volume_num=volume_num, now_ms=clock())
        except OSError as error:
            mount.close()
            raise unusable(directory, error) from error
        except BaseException:
            mount.close()
            raise
        return cls(
            mount,
            recovered,
            volume_size=volume_size,
            volume_num=volume_num,
            sync_mode=sync_mode,
            clock=clock,
        )

    # --- Reading -------------------------------------------------------------------

    def get(self, key: bytes) -> Record | None:
        """
        Return the record last put under a key, read from disk and checked.

        Returns:
            None for a miss: never stored, deleted, expired, overwritten by age,
            damaged, or not readable. The last two are counted, and a damaged record is
            forgotten.
        """
        position = self._position_of(key)
        if position is None:
            self.stats.absent_reads += 1
            return None
        volume = self._volumes.get(position >> SEQ_SHIFT)
        if volume is None:
            self.stats.evicted_reads += 1
            return None
        offset = position >> OFFSET_SHIFT & OFFSET_MAX
        size = position & SIZE_MAX
        try:
            if size < _LARGE_BYTES:
                started_ns = perf_counter_ns()
                data = self._pread(volume.fd, size, offset)
                # What `observe` does, without the call.
                took = perf_counter_ns() - started_ns
                self._read_counts[took.bit_length()] += 1
                self._reads.total_ns += took
                if took > LONG_NS:
                    self._reads.long.append((started_ns, took))
                record = decode_record(data, volume.name, offset, size, key)
            else:
                record = self._read_large(volume, offset, size, key)
        except (DamagedRecordError, OSError) as error:
            self._count_failed_read(key, error)
            return None
        if self.stats.read_errors_in_row:
            self.stats.read_errors_in_row = 0
        if record.expires_ms and record.expires_ms <= self._clock():
            self.stats.expired_reads += 1
            return None
        return record

    def _read_large(self, volume: Volume, offset: int, size: int, key: bytes) -> Record:
        """
        Read header and value each by itself: cut from the whole, the value is a copy.

        Raises:
            DamagedRecordError: One of both does not check out.
            OSError: The disk refused.
        """
        started_ns = perf_counter_ns()
        record = self._read_header(volume, offset, size, key)
        length = record.length
        value = self._pread(volume.fd, length, offset + size - length)
        self._reads.observe(started_ns, perf_counter_ns() - started_ns)
        if len(value) != length or crc32c(value) != record.checksum:
            raise DamagedRecordError("its value does not check out", volume.id, offset)
        return make_record((value, *record[1:]))

    def _read_header(
        self, volume: Volume, offset: int, size: int, key: bytes
    ) -> Record:
        """Read a record but its value; raises as `_read_large`."""
        data = self._pread(volume.fd, min(size, HEAD_BYTES + len(key)), offset)
        return decode_head(data, volume.name, offset, size, key)

    def stat(self, key: bytes) -> Record | None:
        """
        Return what `get` returns, but with an empty `value`, which is not read.

        A damaged value is therefore not noticed.
        """
        found = self._locate(key)
        if found is None:
            if self._position_of(key) is None:
                self.stats.absent_reads += 1
            else:
                self.stats.evicted_reads += 1
            return None
        volume, offset, size = found
        try:
            started_ns = perf_counter_ns()
            record = self._read_header(volume, offset, size, key)
            self._reads.observe(started_ns, perf_counter_ns() - started_ns)
        except (DamagedRecordError, OSError) as error:
            self._count_failed_read(key, error)
            return None
        if record.expires_ms and record.expires_ms <= self._clock():
            self.stats.expired_reads += 1
            return None
        return record

    def read_raw(self, key: bytes) -> bytes | None:
        """Return the record of a key as it is on the disk, not checked; None: a miss."""
        found = self._locate(key)
        if found is None:
            return None
        volume, offset, size = found
        try:
            return self._pread(volume.fd, size, offset)
        except OSError as error:
            self.stats.count_read_error(error)
            return None

    def validate(self, key: bytes, copy: bytes) -> Record | None:
        """
        Return the record in a copy, if a get may answer with it.

        That is the record the index names now, or one that the cycle has overwritten,
        for a key the index does not have. Whether such a key was put or deleted since
        is not known here any more: whoever keeps copies must see to it that none is
        left of what a put or delete has replaced.

        Args:
            key: That it was kept under.
            copy: What `read_raw` returned at some time, or any other bytes.
        """
        record = decode_copy(copy, self._log.meta.store_id, key)
        if record is None:
            return None
        seq = make_seq(record.generation, record.volume)
        position = self._position_of(key)
        if position is not None and position >> SEQ_SHIFT in self._volumes:
            expected = pack_position(seq, record.offset, record.size)
            if position != expected:
                return None
        elif seq in self._volumes or seq > self._log.active.seq:
            return None
        if record.expires_ms and record.expires_ms <= self._clock():
            return None
        return record

    @property
    def store_id(self) -> int:
        """The number that tells this store from all others."""
        return self._log.meta.store_id

    def journal(self) -> FileJournal:
        """Return HOT.txt, for the caller to write and to close."""
        return FileJournal(self._fs, self._mount.hot)

    def is_ready(self) -> bool:
        """
        Tell whether requests should come here: not after several read errors in a row.

        Then nobody may be sent here any more whose reads could show that the disk is
        back, so the disk is asked each time.
        """
        if self.stats.is_disk_good:
            return True
        if not self._log.probe(READ_ERRORS_IN_ROW_MAX):
            return False
        self.stats.count_disk_recovery()
        return True

    def usage(self) -> StoreUsage:
        """
        Return how full the volumes are.

        Costs some microseconds for each volume and nothing for each key. For the thread
        that puts.
        """
        return self._log.usage()

    @property
    def count(self) -> int:
        """The number of keys, expired ones included."""
        return self._index.count

    def __contains__(self, key: bytes) -> bool:
        """Tell whether the index has a key; the record itself is not looked at."""
        return self._locate(key) is not None

    def _locate(self, key: bytes) -> tuple[Volume, int, int] | None:
        """
        Return volume, offset and size of a key's record.

        What `get` writes out: it is the path of every request, and a call costs it.
        """
        position = self._position_of(key)
        if position is None:
            return None
        volume = self._volumes.get(position >> SEQ_SHIFT)
        if volume is None:
            return None
        return volume, position >> OFFSET_SHIFT & OFFSET_MAX, position & SIZE_MAX

    def _count_failed_read(
        self, key: bytes, error: DamagedRecordError | OSError
    ) -> None:
        """Count it, and forget the key whose record is damaged for good."""
        if isinstance(error, OSError):
            self.stats.count_read_error(error)
            return
        self._index.delete(key)
        self.stats.count_damaged(error)

    # --- Writing -------------------------------------------------------------------

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        expires_ms: int = 0,
    ) -> Record:
        """
        Store a value.

        When this returns, readers see it and it survives the death of the process; a
        power loss it survives as `sync_mode` says.

        Args:
            key: 1 to 65,535 bytes of any kind.
            value: 0 bytes to what fits a volume; not copied.
            content_type: At most 255 bytes, given back as they are.
            content_encoding: Likewise.
            expires_ms: Milliseconds since the epoch; 0 = never.

        Raises:
            ValueTooLargeError: The record does not fit an empty volume.
            DiskFullError: There is no room for the next volume.
            StoreIOError: The disk refused. In this and the other cases the old value
                stays.
        """
        length = len(value)
        size = (
            RECORD_OVERHEAD_BYTES
            + len(key)
            + len(content_type)
            + len(content_encoding)
            + length
        )
        active = self._log.active
        offset = active.end
        if offset + size > active.capacity:
            active = self._log.make_room(size, length)
            offset = active.end
        checksum = crc32c(value)
        now = self._clock()
        prefix = encode_record(
            active.identity,
            self._session,
            offset,
            now,
            expires_ms,
            content_type,
            content_encoding,
            key,
            length,
            checksum,
        )
        self._append(active, (key, offset, size), (prefix, value), size)
        self._index.set(key, active.base | offset << OFFSET_SHIFT | size)
        if self._index.sweeping:
            self._index.sweep(_SWEEP_KEYS_MIN + size // RECORD_BYTES_MIN)
        return make_record(
            (
                value,
                content_type,
                content_encoding,
                now,
                expires_ms,
                active.id,
                active.generation,
                offset,
                size,
                length,
                checksum,
                "DISK",
            )
        )

    def delete(self, key: bytes) -> bool:
        """
        Forget a key for good.

        A tombstone and its line in the index file are written before this returns, so
        that the key stays deleted as surely as a put stays put.

        Returns:
            Whether there was something to delete; an expired value is nothing.

        Raises:
            DiskFullError: There is no room for the next volume.
            StoreIOError: The disk refused. In both cases the value stays.
        """
        if key not in self:
            return False
        expired_reads = self.stats.expired_reads
        self.stat(key)  # What cannot be read may be there, and is deleted all the same.
        is_expired = self.stats.expired_reads > expired_reads
        size = RECORD_OVERHEAD_BYTES + len(key)
        active = self._log.active
        if active.end + size > active.capacity:
            active = self._log.make_room(size, 0)
        tombstone = encode_tombstone(
            active.identity, self._session, active.end, self._clock(), key
        )
        self._appender.append_tombstone(active, key, tombstone)
        # Rotation may have reclaimed the key's own life; then this finds nothing.
        self._index.delete(key)
        return not is_expired

    def flush(self) -> None:
        """
        Forget every key for good, in constant time.

        Raises:
            DiskFullError: There is no room for the next volume.
            StoreIOError: The disk refused. In both cases everything is still there.
        """
        self._log.flush()

    # --- Syncing and closing -------------------------------------------------------

    def sync(self) -> None:
        """
        Return when everything written up to now survives a power loss.

        May be called by another thread. A disk that refuses is logged and counted, and
        the volume concerned is not written any further: what the system has dropped of
        it will be found damaged, not believed.
        """
        self._log.sync()

    def close(self) -> None:
        """Write and sync what is buffered, and give the mount point back."""
        if self._closed:
            return
        self._closed = True
        self._appender.write_index(self._log.active)
        self._log.close()
        self._mount.close()


class PeriodicSync:
    """Calls `Store.sync` every so many seconds until it is stopped."""

    def __init__(self, store: Store, interval: float) -> None:
        """Start at once; `interval` in seconds."""
        self._store = store
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._store.sync()

    def stop(self) -> None:
        """Return when the thread has ended and will not touch the store again."""
        self._stopped.set()
        self._thread.join()
