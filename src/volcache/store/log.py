"""
The circular log: which volumes there are, which one is active, and rotation.

Volume ids are used in a circle, 0 to `volume_num - 1`; sequence numbers order all volumes
by age. When the active volume has no room for the next record, the log rotates: the next
id becomes the active volume, with a new salt, and the oldest volume, which had that id, is
reclaimed as a whole.

The steps of a rotation, and what a crash after each of them leaves:
    1. Disk space for the new volume is allocated. Nothing has changed.
    2. The old active volume is sealed: its index file is complete. The next start rotates
       again.
    3. The index file of the id is removed. The data file still holds the oldest volume;
       a start would scan it. A directory in the place of the file stays.
    4. META.txt names the new active volume. The oldest volume has become invalid.
    5. The header of the new volume is written, and its empty index file. A start would
       write both from what META.txt says. Without an index file, the volume still works.
An index file that reappears after a power loss is ignored: its first line has the salt.
The oldest volume is removed from memory last, so that a step that fails leaves a store
that serves everything it served before.

A volume raises what the disk refuses; this module decides what follows. It contains
nothing about keys.

Invariants:
    - `volumes` has every valid volume; the active one is the newest.
    - Only the oldest volumes are ever reclaimed. Therefore no older record of a key
      becomes current when the record or tombstone that superseded it is reclaimed.

Locking: the caller holds the lock of the store, except for `sync` and `probe`.
"""

from __future__ import annotations

import errno
import logging
import random
import secrets
from collections import deque
from contextlib import contextmanager, suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Literal

from volcache.errors import DiskFullError, StoreIOError, ValueTooLargeError
from volcache.store.format import VALUE_BYTES_MAX, VOLUME_HEADER_BYTES, VolumeUse
from volcache.store.index_file import remove_index_file
from volcache.store.progress import Progress
from volcache.store.stats import StoreUsage, VolumeUsage
from volcache.store.volume import Volume
from volcache.store.writer import SyncFailedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.recovery import Recovered

SyncMode = Literal["none", "periodic", "always"]

_logger = logging.getLogger("volcache.store")
_PROBE_BYTES: Final = 4096
# A start after a kill may begin this much later than the time at the kill.
_NOTED_AHEAD_US: Final = 1_000_000
# Of a store that is not written, the time is noted this often: a start after a kill must
# not begin much earlier, if the clock of the machine was set back meanwhile.
_NOTED_EVERY_US: Final = 60_000_000


class CircularLog:
    """
    The volumes of one mount point.

    Attributes (read-only for others):
        volumes: The valid volumes by sequence number. The dict object never changes.
        active: The volume that is written.
        manifest: The contents of META.txt.
    """

    def __init__(  # noqa: PLR0913 - Plain numbers, by keyword.
        self,
        directory: StoreDirectory,
        recovered: Recovered,
        lock: threading.Lock,
        *,
        volume_size: int,
        volume_num: int,
        sync_mode: SyncMode,
        clock: Clock,
    ) -> None:
        """Continue with what recovery has found, and allocate the active volume."""
        self._directory = directory
        self._fs = directory.fs
        self._lock = lock
        self._stats = recovered.stats
        self._volume_size = volume_size
        self._volume_num = volume_num
        self._sync_mode = sync_mode
        self._clock = clock
        self._index = recovered.index
        self._descriptors = recovered.descriptors
        self.manifest = recovered.manifest
        self.volumes = {volume.seq: volume for volume in recovered.volumes}
        self.active = recovered.volumes[-1]
        self._noted = Progress(0, 0, 0, 0, 0, 0)  # the last progress written to LOCK
        # Sealed volumes that are not synced; `sync` removes them and closes their files.
        self._unsynced: deque[Volume] = deque()
        for volume in recovered.volumes:
            self.bind(volume)
        self._allocate_active()
        self.note_progress()
        # A process that was killed has not synced what it wrote last.
        if sync_mode == "periodic":
            self._unsynced.extend(recovered.volumes[:-1])
        elif sync_mode == "always":
            self._sync_all()

    def _allocate_active(self) -> None:
        """At startup: without disk space, log it and serve reads."""
        active = self.active
        if active.is_sealed or active.is_retired:
            return
        try:
            self._allocate(active, max(self._volume_size, active.end))
            active.trim()
        except (OSError, DiskFullError) as error:
            self._stats.count_write_error(error)

    # --- Appending -----------------------------------------------------------------

    def refused(self, volume: Volume, error: OSError) -> StoreIOError:
        """Count an append that failed; retire the volume if it was the sync."""
        if isinstance(error, SyncFailedError):
            self._retire_unsynced(volume, error)
            what = "sync"
        else:
            self._stats.count_write_error(error)
            what = "write"
        return StoreIOError(f"disk refused to {what}: {error.strerror or error}")

    def write_index(self, volume: Volume) -> None:
        """Write pending entries; if that fails, a start finds the records by a scan."""
        try:
            volume.write_index()
        except OSError as error:
            self._stats.count_index_error(error, volume=volume.id)
        self.note_progress()

    def note_progress(self, *, ahead_us: int = 0) -> None:
        """
        Write to LOCK how far the active volume was written, and the time.

        Args:
            ahead_us: Added to the time, so that the next calls need not write it.
        """
        active = self.active
        progress = Progress(
            self.manifest.store_id,
            active.seq,
            active.last_salt,
            active.end,
            self._clock.now_us() + ahead_us,
            self.manifest.boot,
        )
        # It only helps a start to notice replaced files: the next one may succeed.
        with suppress(OSError):
            self._directory.write_progress(progress)
            self._noted = progress

    def bind(self, volume: Volume) -> None:
        """Let the index read records of a volume."""
        self._index.bind_volume(volume.seq, volume.fd, volume.id, volume.salts)

    def note_expiry(self, expires_ms: int) -> None:
        """Let a later start know that a record has expired, whatever the clock says."""
        if expires_ms * 1000 > self._noted.time_us:
            self.note_progress(ahead_us=_NOTED_AHEAD_US)

    # --- Rotation ------------------------------------------------------------------

    def with_room(self, size: int, length: int) -> Volume:
        """
        Return the active volume with room for a record, after a rotation if needed.

        Args:
            size: Of the record, bytes.
            length: Of its value, bytes.

        Raises:
            ValueTooLargeError: The record does not fit an empty volume.
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In all cases the store continues as before.
        """
        active = self.active
        if active.end + size <= active.capacity:
            return active
        room = self._volume_size - VOLUME_HEADER_BYTES
        if size > room or length > VALUE_BYTES_MAX:
            limit = min(VALUE_BYTES_MAX, max(0, room - (size - length)))
            raise ValueTooLargeError(size=length, limit=limit)
        with self._refusals_counted("start a volume"):
            if active.capacity == 0 and not (active.is_sealed or active.is_retired):
                # There was no disk space when the store was opened.
                self._allocate(active, max(self._volume_size, active.end))
            if active.end + size > active.capacity:
                active = self._rotate()
        return active

    def flush(self) -> None:
        """
        Drop every record: start a volume and make it the oldest valid one.

        Constant work, whatever the number of keys.

        Raises:
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In both cases nothing was dropped.
        """
        with self._refusals_counted("flush"):
            self._rotate(is_flush=True)
        _logger.warning("store.flushed volume=%d", self.active.id)

    @contextmanager
    def _refusals_counted(self, what: str) -> Iterator[None]:
        """Count what the disk refuses, and raise it as an error of the store."""
        try:
            yield
        except DiskFullError as error:
            self._stats.count_rotation_error(error)
            raise
        except OSError as error:
            self._stats.count_rotation_error(error)
            message = f"disk refused to {what}: {error.strerror or error}"
            raise StoreIOError(message) from error

    def _rotate(self, *, is_flush: bool = False) -> Volume:
        """Seal the active volume and start the next; see the module for the steps."""
        started_ns = perf_counter_ns()
        old = self.active
        use = self._next_use(old)
        _logger.debug("rotation.started volume=%d seq=%d", use.volume, use.seq)
        active = Volume(
            self._fs,
            self._descriptors[use.volume],
            use=use,
            store_id=self.manifest.store_id,
            started_ms=self._clock.now_ms(),
        )
        self._allocate(active, self._volume_size)
        self._seal(old)
        reclaimed = self._to_reclaim(use.volume, everything=is_flush)
        kept = [volume for seq, volume in self.volumes.items() if seq not in reclaimed]
        self._start(active, kept)
        self._reclaim(reclaimed, use.volume, everything=is_flush)
        active.trim()
        self.volumes[active.seq] = active
        self._index.add_volume(active.seq)
        self.bind(active)
        # Before `active` changes: `sync` must find the old volume here or there.
        self._hand_over(old)
        self.active = active
        self.note_progress()
        self._stats.rotations += 1
        took = perf_counter_ns() - started_ns
        self._stats.rotating.observe(started_ns, took)
        _logger.info(
            "rotation.completed volume=%d seq=%d seconds=%.3f",
            use.volume,
            use.seq,
            took / 1e9,
        )
        return active

    def _next_use(self, old: Volume) -> VolumeUse:
        """Return the use of the volume id that follows in the circle."""
        volume = old.id + 1 if old.id + 1 < self._volume_num else 0
        return VolumeUse(volume, old.seq + 1, old.use.ring, secrets.randbits(64))

    def _allocate(self, volume: Volume, length: int) -> None:
        """
        Allocate disk space for a volume.

        Raises:
            DiskFullError: There is not enough disk space.
            OSError: The disk refused for another reason.
        """
        present = self._fs.size(volume.fd)
        try:
            volume.allocate(length)
        except OSError as error:
            self._take_back(volume.fd, present)
            free = self._fs.free_bytes(self._directory.data)
            needed = max(0, length - present)
            if free >= needed and error.errno not in _DISK_FULL:
                raise
            raise DiskFullError(volume=volume.id, needed=needed, free=free) from error

    def _take_back(self, fd: int, length: int) -> None:
        """Free what a failed allocation may have taken."""
        try:
            if self._fs.size(fd) > length:
                self._fs.truncate(fd, length)
        except OSError as error:
            _logger.error("rotation.take_back_failed error=%r", str(error))

    def _seal(self, volume: Volume) -> None:
        """Seal a volume; without a complete index file the next start scans it."""
        try:
            volume.seal()
        except OSError as error:
            self._stats.count_index_error(error, volume=volume.id)

    def _start(self, volume: Volume, kept: list[Volume]) -> None:
        """
        Make a volume the active one on the disk; its space is allocated already.

        An index file that cannot be created is only counted.

        Args:
            volume: To be started.
            kept: The volumes that stay valid, oldest first.

        Raises:
            OSError: META.txt names the old active volume, or the new one whose header is
                missing; a start can continue from both, and a retry is safe.
        """
        path = self._directory.index_path(volume.id)
        remove_index_file(self._fs, path)
        self._write_manifest([*kept, volume], active=volume)
        volume.start(
            volume.started_ms,
            mount_count=self.manifest.mount_count,
            oldest_seq=[*kept, volume][0].seq,
            previous_salt=self.active.last_salt,
        )
        try:
            volume.open_index_file(path, 0)
        except OSError as error:
            self._stats.count_index_error(error, volume=volume.id)

    def bind_hot(self, identity: str) -> None:
        """Let `close` write to META.txt which HOT.txt is valid."""
        self.manifest = self.manifest._replace(hot=identity)

    def _write_manifest(self, volumes: list[Volume], active: Volume | None) -> None:
        """Write META.txt; `active` is being written, None after a clean stop."""
        manifest = self.manifest._replace(
            time_us=self._clock.now_us(),
            volumes=tuple(v.listed(is_open=v is active) for v in volumes),
        )
        self._directory.write_manifest(manifest)
        self.manifest = manifest

    def _to_reclaim(self, volume_id: int, *, everything: bool) -> list[int]:
        """Return the volume that had an id, all older ones, and those above the limit."""
        seqs = sorted(self.volumes)
        if everything:
            return seqs
        ids = [self.volumes[seq].id for seq in seqs]
        held = ids.index(volume_id) + 1 if volume_id in ids else 0
        return seqs[: max(held, len(seqs) + 1 - self._volume_num)]

    def _reclaim(self, seqs: list[int], volume_id: int, *, everything: bool) -> None:
        """Drop volumes from memory; free the space of those whose id is not used next."""
        for seq in seqs:
            volume = self.volumes.pop(seq)
            if volume.id != volume_id and not everything:
                self._free(volume)
            records, lost = self._index.reclaim(seq)
            self._stats.evicted_records += records
            self._stats.evicted_bytes += lost
            _logger.info(
                "rotation.reclaimed volume=%d seq=%d evicted=%d bytes=%d",
                volume.id,
                seq,
                records,
                lost,
            )

    def _free(self, volume: Volume) -> None:
        """Free the disk space of a volume whose id is not used again."""
        try:
            remove_index_file(self._fs, self._directory.index_path(volume.id))
            self._fs.truncate(volume.fd, 0)
            # A power loss could bring it back after what superseded its records is gone.
            self._fs.sync(volume.fd)
            self._fs.sync_directory(self._directory.index)
        except OSError as error:
            self._stats.count_write_error(error)

    def _hand_over(self, old: Volume) -> None:
        """Leave a sealed volume to the next `sync`, or close its index file."""
        if self._sync_mode == "periodic":
            self._unsynced.append(old)
            return
        if self._sync_mode == "always":
            self._sync_volume(old)
        old.close_index_file()

    # --- Usage and health ----------------------------------------------------------

    def usage(self) -> StoreUsage:
        """Return how full each volume is; some microseconds for each volume."""
        found = {
            volume_id: VolumeUsage(volume_id, 0, "empty", self._volume_size, 0, 0, 0, 0)
            for volume_id in range(self._volume_num)
        }
        for volume in self.volumes.values():
            records, live = self._index.live(volume.seq)
            found[volume.id] = VolumeUsage(
                volume.id,
                volume.seq,
                "active" if volume is self.active else "sealed",
                max(volume.end, self._size_or_zero(volume)),
                volume.end,
                records,
                # The index knows sizes to an eighth only.
                min(live, volume.end - VOLUME_HEADER_BYTES),
                volume.started_ms,
            )
        return StoreUsage(
            volumes=[found[volume_id] for volume_id in sorted(found)],
            volume_size=self._volume_size,
            volume_num=self._volume_num,
            active_id=self.active.id,
            active_seq=self.active.seq,
            active_end=self.active.end,
        )

    def _size_or_zero(self, volume: Volume) -> int:
        """Return the length of the data file; 0 if the disk does not answer."""
        try:
            return self._fs.size(volume.fd)
        except OSError:
            return 0

    def probe(self, reads: int) -> bool:
        """
        Return whether the disk answers reads at a few random places.

        Random, because one place may be in the page cache although the disk is gone.
        """
        volumes = list(self.volumes.values())
        try:
            for _ in range(reads):
                volume = random.choice(volumes)  # noqa: S311 - Not for security.
                offset = random.randrange(volume.end)  # noqa: S311
                self._fs.pread(volume.fd, _PROBE_BYTES, offset)
        except OSError:
            return False
        return True

    # --- Syncing and closing -------------------------------------------------------

    def sync(self) -> None:
        """
        Sync the volumes sealed since the last time, then the active one.

        The calls that wait for the disk are made without the lock.
        """
        started_ns = perf_counter_ns()
        # First: another thread may rotate meanwhile, and the volume that is active now
        # must be synced when this returns.
        with self._lock:
            active = self.active
            # By them a start notices that files were replaced.
            if active.has_index_backlog:
                self.note_progress()
            elif active.writer.pending:
                self.write_index(active)
            elif self._clock.now_us() - self._noted.time_us > _NOTED_EVERY_US:
                self.note_progress()
        while self._unsynced:
            volume = self._unsynced.popleft()
            self._sync_unlocked(volume)
            with self._lock:
                volume.close_index_file()
        self._sync_unlocked(active)
        self._stats.syncs.observe(started_ns, perf_counter_ns() - started_ns)

    def _sync_unlocked(self, volume: Volume) -> None:
        try:
            volume.sync()
        except OSError as error:
            with self._lock:
                self._retire_unsynced(volume, error)

    def _sync_volume(self, volume: Volume) -> None:
        try:
            volume.sync()
        except OSError as error:
            self._retire_unsynced(volume, error)

    def _sync_all(self) -> None:
        """Sync all that was not synced since the store was opened, in any mode."""
        for seq in sorted(self.volumes):
            self._sync_volume(self.volumes[seq])

    def _retire_unsynced(self, volume: Volume, error: OSError) -> None:
        """
        Count a failed sync and retire the volume.

        The kernel reports a failed write-back once and may drop the pages: a second
        fsync that succeeds would prove nothing. The next record starts a new volume.
        """
        self._stats.count_sync_error(error)
        for failed in (volume, self.active):
            # If the id was used again meanwhile, the error may be about the new volume.
            if failed.fd == volume.fd:
                failed.retire()

    def close(self) -> None:
        """
        Write pending entries, sync everything and close all files; no lock is held.

        META.txt then says how far each volume goes, so that the next start need not scan.
        """
        self.write_index(self.active)
        self.sync()
        self._sync_all()
        volumes = [self.volumes[seq] for seq in sorted(self.volumes)]
        try:
            self._write_manifest(volumes, active=None)
        except OSError as error:
            self._stats.count_write_error(error)
        self.active.close_index_file()
        self._index.close()
        for fd in self._descriptors.values():
            self._fs.close(fd)


_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
