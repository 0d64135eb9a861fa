"""
The cycle of volumes: which there are, which is the head, what is reclaimed next.

Gives the store a head with room for its next record, and carries out the steps of
`rotation.py` in memory as well as on the disk. Knows nothing of keys.

Invariants:
    - `volumes` holds every life that exists, the head is the newest of them.
    - Only the oldest lives are ever reclaimed. So no older value of a key comes to light
      when the record or tombstone that replaced it is gone.

Rotation: make room for the next record by moving the head to the next slot.

A slot is the place of a volume, 0 to `volume_num - 1`; slots are used in a cycle, and the
generation counts the turns, so that (generation, slot) orders all lives by age.

The steps, and what a crash behind each of them leaves:
    1. The room for the new head is allocated. Nothing has changed.
    2. The old head is sealed: its index file is complete. The next start rotates again.
    3. The index file of the slot is removed. The slot still holds what it held; a start
       would index it by scanning. A directory in its place, which holds no lines, stays.
    4. META.txt names the new head. What the slot held is gone: its generation is over.
    5. The header of the new life is written, and its empty index file. A start would
       write both from what META.txt says. Without an index file, the new life goes on.
An old index file that comes to light again, as after a power loss, is not believed: its
first line names the generation.
Only then is the old life forgotten in memory, so that a step that fails leaves a store
that serves everything it served before.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from volcache.errors import DiskFullError, StoreIOError, ValueTooLargeError
from volcache.store.format import VALUE_BYTES_MAX, VOLUME_HEADER_BYTES
from volcache.store.index import volume_of
from volcache.store.index_file import IndexFile, remove_index_file
from volcache.store.stats import StoreUsage, measure
from volcache.store.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.directory import StoreDirectory
    from volcache.store.files import FileSystem
    from volcache.store.index_format import Meta
    from volcache.store.recovery import Recovered
    from volcache.store.stats import StoreStats

SyncMode = Literal["none", "periodic", "always"]

_logger = logging.getLogger("volcache.store")
_PROBE_BYTES: Final = 4096


class CircularLog:
    """The volumes of one mount point."""

    def __init__(  # noqa: PLR0913 - plain numbers, by keyword.
        self,
        mount: StoreDirectory,
        recovered: Recovered,
        stats: StoreStats,
        *,
        volume_size: int,
        volume_num: int,
        sync_mode: SyncMode,
        clock: Callable[[], int],
    ) -> None:
        """Go on with what recovery has found, and allocate the head."""
        self._mount = mount
        self._fs = mount.fs
        self._stats = stats
        self._volume_size = volume_size
        self._volume_num = volume_num
        self._sync_mode = sync_mode
        self._clock = clock
        self._index = recovered.index
        self._descriptors = recovered.descriptors
        self.meta = recovered.meta
        self.volumes = recovered.volumes
        self.active = recovered.active
        # Sealed and not yet synced; `sync` takes them out and closes their index files.
        self._sealed: deque[Volume] = deque()
        self._allocate_active()
        # A process that was killed leaves what it had not synced to the next one.
        if sync_mode == "periodic":
            self._sealed.extend(self.volumes[seq] for seq in sorted(self.volumes))
            self._sealed.remove(self.active)
        elif sync_mode == "always":
            self._sync_all()

    def _allocate_active(self) -> None:
        """At the start: a disk without room is said at once, and reading goes on."""
        active = self.active
        if active.sealed:
            return
        try:
            allocate(self._mount, active, max(self._volume_size, active.end))
            trim(self._fs, active)
        except (OSError, DiskFullError) as error:
            self._stats.count_write_error(error)

    # --- Room ----------------------------------------------------------------------

    def make_room(self, size: int, length: int) -> Volume:
        """
        Return a head with room for a record, rotating if need be.

        Args:
            size: Of the record, bytes.
            length: Of its value, bytes.

        Raises:
            ValueTooLargeError: No volume has so much room.
            DiskFullError: The disk has not.
            StoreIOError: The disk refused. In all cases the store goes on as before.
        """
        room = self._volume_size - VOLUME_HEADER_BYTES
        if size > room or length > VALUE_BYTES_MAX:
            limit = min(VALUE_BYTES_MAX, max(0, room - (size - length)))
            raise ValueTooLargeError(size=length, limit=limit)
        active = self.active
        with self._refusals_counted("begin a volume"):
            if active.capacity == 0 and not (active.sealed or active.retired):
                # There was no room on the disk when it was opened.
                allocate(self._mount, active, max(self._volume_size, active.end))
            if active.end + size > active.capacity:
                active = self._rotate()
        return active

    def flush(self) -> None:
        """
        Give up every record: begin a life that is the oldest there is.

        Constant work, whatever the number of keys.

        Raises:
            DiskFullError: There is no room for the next volume.
            StoreIOError: The disk refused. In both cases everything is still there.
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
        """Seal the head and begin the next slot; see `rotation.py` for the steps."""
        started_ns = time.perf_counter_ns()
        old = self.active
        volume_id, generation = next_volume(
            volume=old.id, generation=old.generation, volume_num=self._volume_num
        )
        _logger.debug("rotation.started volume=%d generation=%d", volume_id, generation)
        active = Volume(
            fd=self._descriptors[volume_id],
            volume=volume_id,
            generation=generation,
            store_id=self.meta.store_id,
        )
        allocate(self._mount, active, self._volume_size)
        seal(old, self._stats)
        meta = self.meta._replace(active=volume_id, generation=generation)
        if is_flush:
            meta = meta._replace(oldest_seq=active.seq)
        start_volume(self._mount, active, meta, self._clock(), self._stats)
        self.meta = meta
        self._reclaim(volume_id, everything=is_flush)
        trim(self._fs, active)
        self.volumes[active.seq] = active
        self._index.begin(active.seq)
        # Before the head changes: `sync` must find the old one here or there.
        self._hand_over(old)
        self.active = active
        self._stats.rotations += 1
        took = time.perf_counter_ns() - started_ns
        self._stats.rotating.observe(started_ns, took)
        _logger.info(
            "rotation.completed volume=%d generation=%d seconds=%.3f",
            volume_id,
            generation,
            took / 1e9,
        )
        return active

    def _reclaim(self, volume_id: int, *, everything: bool) -> None:
        """Forget the life a slot held, all older ones, and what is over the number."""
        seqs = sorted(self.volumes)
        slots = [volume_of(seq) for seq in seqs]
        held = slots.index(volume_id) + 1 if volume_id in slots else 0
        gone = max(held, len(seqs) + 1 - self._volume_num)
        for seq in seqs if everything else seqs[:gone]:
            volume = self.volumes.pop(seq)
            if volume.id != volume_id and not everything:
                self._give_up(volume)
            records, lost = self._index.reclaim(seq)
            self._stats.evicted_records += records
            self._stats.evicted_bytes += lost
            _logger.info(
                "rotation.reclaimed volume=%d generation=%d evicted=%d bytes=%d",
                volume.id,
                volume.generation,
                records,
                lost,
            )

    def _give_up(self, volume: Volume) -> None:
        """Free the disk of a volume whose slot is not used any more."""
        try:
            remove_index_file(self._fs, self._mount.index_path(volume.id))
            self._fs.truncate(volume.fd, 0)
            # Or a power loss could bring it back when what replaced its values is gone.
            self._fs.sync(volume.fd)
            self._fs.sync_directory(self._mount.index)
        except OSError as error:
            self._stats.count_write_error(error)

    def _hand_over(self, old: Volume) -> None:
        """Hand a sealed volume to whoever syncs, or be done with it."""
        if self._sync_mode == "periodic":
            self._sealed.append(old)
            return
        if self._sync_mode == "always":
            self._sync_volume(old)
        _close_index_file(old)

    def usage(self) -> StoreUsage:
        """Return how full the volumes are; see `usage.measure`."""
        return measure(
            self.volumes,
            self.active,
            self._index,
            volume_size=self._volume_size,
            volume_num=self._volume_num,
            size_of=lambda volume: self._fs.size(volume.fd),
        )

    # --- Health --------------------------------------------------------------------

    def probe(self, reads: int) -> bool:
        """
        Tell whether the disk answers reads at a few places chosen by chance.

        By chance, since one place may be in the system's memory and would be read from
        a disk that is gone.
        """
        volumes = list(self.volumes.values())
        try:
            for _ in range(reads):
                volume = random.choice(volumes)  # noqa: S311 - No secret.
                offset = random.randrange(volume.end)  # noqa: S311
                self._fs.pread(volume.fd, _PROBE_BYTES, offset)
        except OSError:
            return False
        return True

    # --- Syncing and closing -------------------------------------------------------

    def sync(self) -> None:
        """Sync what was sealed since the last time, then the head; see `Store.sync`."""
        started_ns = time.perf_counter_ns()
        # First of all: another thread may rotate meanwhile, and the head of now is what
        # must be synced when this returns.
        active = self.active
        while self._sealed:
            volume = self._sealed.popleft()
            self._sync_volume(volume)
            _close_index_file(volume)
        self._sync_volume(active)
        self._stats.syncs.observe(started_ns, time.perf_counter_ns() - started_ns)

    def _sync_all(self) -> None:
        """Sync whatever was not synced since the store was opened, in any mode."""
        for seq in sorted(self.volumes):
            self._sync_volume(self.volumes[seq])

    def _sync_volume(self, volume: Volume) -> None:
        try:
            volume.sync(self._fs)
        except OSError as error:
            self.count_sync_error(volume, error)

    def count_sync_error(self, volume: Volume, error: OSError) -> None:
        """Count a sync that failed and write no further to that volume."""
        self._stats.count_sync_error(error)
        # The kernel reports a failed write-back once and may drop the pages: a second
        # fsync that succeeds would prove nothing. The next record opens a new volume.
        for failed in (volume, self.active):
            # If its slot has been begun again since, the error may be about that.
            if failed.fd == volume.fd:
                failed.retired = True
                failed.capacity = 0

    def close(self) -> None:
        """Sync everything and give all descriptors back."""
        self.sync()
        self._sync_all()
        _close_index_file(self.active)
        for fd in self._descriptors.values():
            self._fs.close(fd)


def _close_index_file(volume: Volume) -> None:
    index_file, volume.index_file = volume.index_file, None
    if index_file is not None:
        index_file.close()


_logger = logging.getLogger("volcache.store")


def next_volume(*, volume: int, generation: int, volume_num: int) -> tuple[int, int]:
    """Return the slot that follows in the cycle, and its new generation."""
    if volume + 1 < volume_num:
        return volume + 1, generation
    return 0, generation + 1


def allocate(mount: StoreDirectory, volume: Volume, length: int) -> None:
    """
    Make sure that a volume can be written up to `length` bytes.

    Raises:
        DiskFullError: The disk has not so much room.
        OSError: Something else is wrong with the disk.
    """
    fs = mount.fs
    present = fs.size(volume.fd)
    try:
        fs.allocate(volume.fd, length)
    except OSError as error:
        _take_back(fs, volume.fd, present)
        free = fs.free_bytes(mount.data)
        needed = max(0, length - present)
        if free >= needed and not _says_full(error):
            raise
        raise DiskFullError(volume=volume.id, needed=needed, free=free) from error
    volume.capacity = length


def trim(fs: FileSystem, volume: Volume) -> None:
    """Cut what is over the capacity: `volume_size` was larger when it was used last."""
    if volume.capacity and fs.size(volume.fd) > volume.capacity:
        fs.truncate(volume.fd, volume.capacity)


def _take_back(fs: FileSystem, fd: int, length: int) -> None:
    """Cut what an allocation that failed half-way may have taken from the disk."""
    try:
        if fs.size(fd) > length:
            fs.truncate(fd, length)
    except OSError as error:
        _logger.error("rotation.take_back_failed error=%r", str(error))


def _says_full(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def seal(volume: Volume, stats: StoreStats) -> None:
    """
    Close a volume for writing and complete its index file.

    Without the index file nothing is lost: the next start scans the volume.
    """
    volume.retired = True
    volume.capacity = 0
    if volume.sealed:
        return
    try:
        volume.index(sealed=True)
        volume.sealed = True
    except OSError as error:
        volume.pending = []
        stats.count_index_error(error, volume=volume.id)


def start_volume(
    mount: StoreDirectory, volume: Volume, meta: Meta, now_ms: int, stats: StoreStats
) -> None:
    """
    Make a volume the head on the disk; its room is allocated already.

    An index file that cannot be made, as in the place of a directory, is only counted.

    Raises:
        OSError: META.txt names the old head, or the new one whose header is missing;
            both are what a start can go on from, and trying again is safe.
    """
    path = mount.index_path(volume.id)
    remove_index_file(mount.fs, path)
    mount.write_meta(meta)
    volume.write_header(mount.fs, meta, now_ms)
    try:
        volume.index_file = IndexFile.create(mount.fs, path, volume.index_name)
    except OSError as error:
        stats.count_index_error(error, volume=volume.id)
