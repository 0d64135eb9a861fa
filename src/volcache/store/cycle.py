"""
The cycle of volumes: which there are, which is the head, what is reclaimed next.

Gives the store a head with room for its next record, and carries out the steps of
`rotation.py` in memory as well as on the disk. Knows nothing of keys.

Invariants:
    - `volumes` holds every life that exists, the head is the newest of them.
    - Only the oldest lives are ever reclaimed. So no older value of a key comes to light
      when the record or tombstone that replaced it is gone.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from volcache.errors import DiskFullError, StoreIOError, ValueTooLargeError
from volcache.store.format import VALUE_BYTES_MAX, VOLUME_HEADER_BYTES
from volcache.store.index_file import remove_index_file
from volcache.store.position import volume_of
from volcache.store.rotation import allocate, begin_life, next_slot, seal, trim
from volcache.store.usage import StoreUsage, measure
from volcache.store.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.mount_point import MountPoint
    from volcache.store.recovery import Recovered
    from volcache.store.stats import StoreStats

SyncMode = Literal["none", "periodic", "always"]

_log = logging.getLogger("volcache.store")
_PROBE_BYTES: Final = 4096


class VolumeCycle:
    """The volumes of one mount point."""

    def __init__(  # noqa: PLR0913 - plain numbers, by keyword.
        self,
        mount: MountPoint,
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
        self.head = recovered.head
        # Sealed and not yet synced; `sync` takes them out and closes their index files.
        self._sealed: deque[Volume] = deque()
        self._allocate_head()
        # A process that was killed leaves what it had not synced to the next one.
        if sync_mode == "periodic":
            self._sealed.extend(self.volumes[life] for life in sorted(self.volumes))
            self._sealed.remove(self.head)
        elif sync_mode == "always":
            self._sync_all()

    def _allocate_head(self) -> None:
        """At the start: a disk without room is said at once, and reading goes on."""
        head = self.head
        if head.sealed:
            return
        try:
            allocate(self._mount, head, max(self._volume_size, head.end))
            trim(self._fs, head)
        except (OSError, DiskFullError) as error:
            self._stats.note_write_error(error)

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
        head = self.head
        with self._refusals_noted("begin a volume"):
            if head.capacity == 0 and not (head.sealed or head.retired):
                # There was no room on the disk when it was opened.
                allocate(self._mount, head, max(self._volume_size, head.end))
            if head.end + size > head.capacity:
                head = self._rotate()
        return head

    def flush(self) -> None:
        """
        Give up every record: begin a life that is the oldest there is.

        Constant work, whatever the number of keys.

        Raises:
            DiskFullError: There is no room for the next volume.
            StoreIOError: The disk refused. In both cases everything is still there.
        """
        with self._refusals_noted("flush"):
            self._rotate(is_flush=True)
        _log.warning("store.flushed volume=%d", self.head.id)

    @contextmanager
    def _refusals_noted(self, what: str) -> Iterator[None]:
        """Count what the disk refuses, and raise it as an error of the store."""
        try:
            yield
        except DiskFullError as error:
            self._stats.note_rotation_error(error)
            raise
        except OSError as error:
            self._stats.note_rotation_error(error)
            message = f"disk refused to {what}: {error.strerror or error}"
            raise StoreIOError(message) from error

    def _rotate(self, *, is_flush: bool = False) -> Volume:
        """Seal the head and begin the next slot; see `rotation.py` for the steps."""
        began = time.perf_counter_ns()
        old = self.head
        slot, generation = next_slot(
            volume=old.id, generation=old.generation, volume_num=self._volume_num
        )
        _log.debug("rotation.started volume=%d generation=%d", slot, generation)
        head = Volume(
            fd=self._descriptors[slot],
            volume=slot,
            generation=generation,
            store_id=self.meta.store_id,
        )
        allocate(self._mount, head, self._volume_size)
        seal(old, self._stats)
        meta = self.meta._replace(head=slot, generation=generation)
        if is_flush:
            meta = meta._replace(oldest_life=head.life)
        begin_life(self._mount, head, meta, self._clock(), self._stats)
        self.meta = meta
        self._reclaim(slot, everything=is_flush)
        trim(self._fs, head)
        self.volumes[head.life] = head
        self._index.begin(head.life)
        # Before the head changes: `sync` must find the old one here or there.
        self._hand_over(old)
        self.head = head
        self._stats.rotations += 1
        took = time.perf_counter_ns() - began
        self._stats.rotating.observe(began, took)
        _log.info(
            "rotation.completed volume=%d generation=%d seconds=%.3f",
            slot,
            generation,
            took / 1e9,
        )
        return head

    def _reclaim(self, slot: int, *, everything: bool) -> None:
        """Forget the life a slot held, all older ones, and what is over the number."""
        lives = sorted(self.volumes)
        slots = [volume_of(life) for life in lives]
        held = slots.index(slot) + 1 if slot in slots else 0
        gone = max(held, len(lives) + 1 - self._volume_num)
        for life in lives if everything else lives[:gone]:
            volume = self.volumes.pop(life)
            if volume.id != slot and not everything:
                self._give_up(volume)
            records, lost = self._index.reclaim(life)
            self._stats.evicted_records += records
            self._stats.evicted_bytes += lost
            _log.info(
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
            self._stats.note_write_error(error)

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
            self.head,
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
        began = time.perf_counter_ns()
        # First of all: another thread may rotate meanwhile, and the head of now is what
        # must be synced when this returns.
        head = self.head
        while self._sealed:
            volume = self._sealed.popleft()
            self._sync_volume(volume)
            _close_index_file(volume)
        self._sync_volume(head)
        self._stats.syncs.observe(began, time.perf_counter_ns() - began)

    def _sync_all(self) -> None:
        """Sync whatever was not synced since the store was opened, in any mode."""
        for life in sorted(self.volumes):
            self._sync_volume(self.volumes[life])

    def _sync_volume(self, volume: Volume) -> None:
        try:
            volume.sync(self._fs)
        except OSError as error:
            self.note_sync_error(volume, error)

    def note_sync_error(self, volume: Volume, error: OSError) -> None:
        """Count a sync that failed and write no further to that volume."""
        self._stats.note_sync_error(error)
        # The kernel reports a failed write-back once and may drop the pages: a second
        # fsync that succeeds would prove nothing. The next record opens a new volume.
        for failed in (volume, self.head):
            # If its slot has been begun again since, the error may be about that.
            if failed.fd == volume.fd:
                failed.retired = True
                failed.capacity = 0

    def close(self) -> None:
        """Sync everything and give all descriptors back."""
        self.sync()
        self._sync_all()
        _close_index_file(self.head)
        for fd in self._descriptors.values():
            self._fs.close(fd)


def _close_index_file(volume: Volume) -> None:
    index_file, volume.index_file = volume.index_file, None
    if index_file is not None:
        index_file.close()
