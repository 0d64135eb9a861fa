"""
The space of the disk for volumes: which ids have it, allocation, and a disk that is full.

If the disk has less space than `volume_num` volumes need, it determines how many there
are: an id without space is not used, as if there was none, and the oldest volume is
reclaimed instead. The space is looked at when a volume is to be started, so that their
number grows when there is more. A volume keeps the space of its file after it was dropped.

The file of a volume has its full length from the beginning, and its space, too; or it gets
space as it fills (`is_sparse`). What the active volumes do not have yet is not used for
other volumes. So a full disk is noticed in the middle of a volume only if another program
fills it.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.errors import DiskFullError
from volcache.store.disk import reserve_bytes
from volcache.store.files import DISK_FULL, STAT_BLOCK_BYTES, Space, is_short
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.stats import DiskUsage

if TYPE_CHECKING:
    from volcache.store.rings import LogOptions, Rings
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

# An allocation that failed is not tried again for this many times as long as it took: on a
# file system that refuses although it has space, by a quota, it may take half a second.
_ALLOCATE_PAUSE: Final = 100
_ALLOCATE_PAUSE_NS_MIN: Final = 100_000_000
# A volume may be smaller by this factor if the disk has no more space.
_SMALLER_MAX: Final = 8
_PAGE_BYTES: Final = 4096
# A volume that gets space as it fills gets so much at first, and then a quarter more than
# it has each time: 25 allocations for one of 160 MiB.
_STEP_BYTES_MAX: Final = 1 << 20
_STEPS: Final = 16


class DiskSpace:
    """
    The ids that volumes may have, and the space of the disk for them.

    Attributes (read-only for others):
        volume_size: Bytes of a volume that is started.
        volume_num: The number of ids.
        unused: The ids without a volume.
        ids_without_space: Those of them whose files do not have the space of a volume.
        found: The space of the disk when it was last looked at.
        allowed: How many volumes there could be then.
        room: How many of them could be started in free space; 0 if the disk refused that.
        may_be_smaller: The next volume may, because there is too little space.
        is_sparse: Disk space is allocated as volumes fill.
    """

    def __init__(self, rings: Rings, options: LogOptions) -> None:
        """Look at the disk."""
        self._rings, self.is_sparse = rings, options.is_sparse
        self._directory = rings.directory
        self.volume_size, self.volume_num = options.volume_size, options.volume_num
        used = {volume.id for volume in rings.volumes.values()}
        self.unused = set(range(self.volume_num)).intersection(rings.descriptors) - used
        self.ids_without_space = {one for one in self.unused if self._lacks_space(one)}
        self._freed: set[int] = set()  # their files, for the volume that is started
        self.found = Space(0, 0)
        self.may_be_smaller = self._was_limited = False
        self._allocate_again_ns = 0
        self.look()

    def _held(self, volume: int) -> int:
        """Return how many bytes of the disk the data file of an id takes."""
        try:
            found = self._directory.fs.stat(self._rings.descriptors[volume])
        except OSError:
            return 0
        return found.st_blocks * STAT_BLOCK_BYTES

    def _lacks_space(self, volume: int) -> bool:
        return self._held(volume) < self.volume_size

    def free_bytes(self) -> int:
        """
        Return how much is free now.

        Raises:
            OSError: The disk does not answer.
        """
        return self._directory.fs.space(self._directory.data).free

    def look(self) -> None:
        """Find out how many volumes the disk has space for."""
        with suppress(OSError):  # Then it is as it was.
            self.found = self._directory.fs.space(self._directory.data)
        self.room = 0
        if self.ids_without_space and perf_counter_ns() >= self._allocate_again_ns:
            self.room = max(0, self._unreserved_bytes // self.volume_size)
        self.allowed = min(self.volume_num, len(self._rings.volumes) + self.free_ids)

    @property
    def _unreserved_bytes(self) -> int:
        promised = sum(volume.unallocated for volume in self._rings.written)
        return self.found.free - self._reserve_bytes - promised

    @property
    def _reserve_bytes(self) -> int:
        return reserve_bytes(self.volume_size, len(self._rings.volumes))

    @property
    def free_ids(self) -> int:
        """How many volumes can be started without dropping one."""
        unused = len(self.unused)
        spaced = unused - len(self.ids_without_space) + self.room
        return min(unused, self.volume_num - len(self._rings.volumes), spaced)

    def log_limit(self) -> None:
        """Look at the disk, and log when it begins or ceases to limit the volumes."""
        self.look()
        allowed, number, free = self.allowed, self.volume_num, self.found.free
        was_limited, self._was_limited = self._was_limited, allowed < number
        if self._was_limited and not was_limited:
            _logger.warning(
                "disk.limited volumes=%d volume_num=%d free=%d", allowed, number, free
            )
        elif was_limited and not self._was_limited:
            _logger.info("disk.unlimited volumes=%d", allowed)

    def usage(self) -> DiskUsage:
        """Return what the disk has, and how many volumes it allows."""
        self.look()
        refusal = self._rings.stats.refusal()
        return DiskUsage(
            free=self.found.free,
            total=self.found.total,
            state="read-only" if self.found.is_read_only else refusal,
            volumes=self.allowed,
            is_limited=self.allowed < self.volume_num,
        )

    # --- The space of one volume ---------------------------------------------------

    def begin(self) -> None:
        """Forget what was done for the volume that was started before."""
        self.look()
        self.may_be_smaller = False
        self._freed.clear()

    def next_id(self, last: int, freed: set[int]) -> int:
        """
        Return the id of the volume that is started.

        Args:
            last: The id of the volume that was started before it.
            freed: The ids of volumes that are dropped for it.
        """
        ids = self.unused.union(freed)
        if not self.room:
            ids = ids - self.ids_without_space or ids
        return min([volume for volume in ids if volume > last] or ids)

    def length_of(self, volume: Volume, size: int) -> int:
        """
        Return how long a volume that is started will be.

        Args:
            volume: The volume.
            size: Of the record that it is started for.
        """
        if self.is_sparse or not self.may_be_smaller:
            return self.volume_size
        self.look()
        length = volume.held_bytes + self._unreserved_bytes
        length -= length % _PAGE_BYTES
        least = max(self.volume_size // _SMALLER_MAX, VOLUME_HEADER_BYTES + size)
        return min(length, self.volume_size) if length >= least else self.volume_size

    def extend(self, volume: Volume, size: int = 1) -> None:
        """
        Allocate more disk space for a volume that is written, up to its length.

        Args:
            volume: The volume; one that was found at startup has none yet.
            size: Of the next record.

        Raises:
            DiskFullError: There is not enough for the record.
            OSError: The disk refused for another reason.
        """
        length = volume.length
        if not length:
            # A forged index file may say that it ends far behind its file.
            present = self._directory.fs.stat(volume.fd).st_size
            length = max(self.volume_size, min(volume.end, present))
        if volume.capacity < length:
            self.allocate(volume, length, size)

    def allocate(self, volume: Volume, length: int, size: int = 1) -> None:
        """
        Allocate disk space for a volume: all of it, or as much as it needs now.

        Args:
            volume: The volume.
            length: How long it may become.
            size: Of the next record.

        Raises:
            DiskFullError: There is not enough disk space.
            OSError: The disk refused for another reason.
        """
        present = self._directory.fs.stat(volume.fd).st_size
        held, capacity = volume.held_bytes, length
        free = self.free_bytes() if held < length else 0
        if self.is_sparse:
            free = max(0, free - self._reserve_bytes)
            step = max(min(_STEP_BYTES_MAX, length // _STEPS), volume.capacity // 4)
            least = max(volume.end + size, volume.capacity + 1)
            wanted = min(max(least, volume.capacity + step), held + free)
            capacity = min(length, max(wanted, least, held - held % _PAGE_BYTES))
        needed = max(0, capacity - held)
        if needed > free:
            # To try it nevertheless would fill the disk, and free it again.
            raise DiskFullError(volume=volume.id, needed=needed, free=free)
        started_ns = perf_counter_ns()
        try:
            volume.allocate(length, capacity)
        except OSError as error:
            self._take_back(volume.fd, present)
            pause_ns = _ALLOCATE_PAUSE * (perf_counter_ns() - started_ns)
            if pause_ns > _ALLOCATE_PAUSE_NS_MIN:
                self._allocate_again_ns = perf_counter_ns() + pause_ns
            if error.errno not in DISK_FULL:
                raise
            raise DiskFullError(volume=volume.id, needed=needed, free=free) from error

    def _take_back(self, fd: int, length: int) -> None:
        """Free what a failed allocation may have taken."""
        try:
            if self._directory.fs.stat(fd).st_size > length:
                self._directory.fs.truncate(fd, length)
        except OSError as error:
            _logger.error("rotation.take_back_failed error=%r", str(error))

    def record_started(self, volume: Volume) -> None:
        """Let a volume that META.txt names have its id, and cut a file that was longer."""
        self.unused.discard(volume.id)
        self.ids_without_space.discard(volume.id)
        try:
            volume.trim()
        except OSError as error:
            self._rings.stats.count_write_error(error)

    def record_dropped(self, volume: Volume) -> None:
        """Let another volume have the id of a volume, and the space of its file."""
        if volume.id < self.volume_num:
            self.unused.add(volume.id)
            if self._lacks_space(volume.id):
                self.ids_without_space.add(volume.id)

    def free(self, volume: Volume) -> None:
        """Make a dropped volume unusable; free its space if there are too many."""
        directory = self._directory
        ids = [volume.id, *(other.id for other in self._rings.volumes.values())]
        try:
            directory.remove_index_file(volume.id)
            # Not if `volume_num` was lowered: volumes with higher ids take space, too. Nor
            # if it has not the space of a volume, which then counts as free.
            is_part = self.is_sparse and self._lacks_space(volume.id)
            if max(ids) < self.volume_num and not is_part:
                # Should META.txt be lost, it must not be taken for a valid one.
                volume.invalidate()
                return
            directory.fs.truncate(volume.fd, 0)
            # A power loss could bring it back after what superseded its records is gone.
            directory.fs.sync(volume.fd)
            directory.fs.sync_directory(directory.index)
        except OSError as error:
            self._rings.stats.count_write_error(error)

    # --- A disk that is full -------------------------------------------------------

    def is_short(self, error: DiskFullError | OSError, kept: Volume | None) -> bool:
        """
        Return whether more free space may let an operation succeed that was refused.

        Args:
            error: Why it was refused.
            kept: The volume whose space will not be freed.
        """
        if isinstance(error, OSError):
            return is_short(self._directory.fs, self._directory.data, error)
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno != errno.ENOSPC:
            return cause.errno == errno.EDQUOT
        spare = sum(map(self._held, self.unused - self._freed))
        others = (
            volume for volume in self._rings.volumes.values() if volume is not kept
        )
        most = error.free + sum(volume.held_bytes for volume in others)
        return error.free < error.needed and (spare > 0 or error.needed <= most)

    def free_spare(self) -> bool:
        """Free the space of a file that has no volume; return whether there was one."""
        held = (one for one in sorted(self.unused - self._freed) if self._held(one))
        volume = next(held, None)
        if volume is None:
            return False
        self._freed.add(volume)
        try:
            self._directory.fs.truncate(self._rings.descriptors[volume], 0)
        except OSError as error:
            self._rings.stats.count_write_error(error)
            return False
        self.ids_without_space.add(volume)
        return True
