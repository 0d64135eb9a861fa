"""
The disk below a store: how many volumes it holds, and what is kept free on it.

A volume takes its space when it is started, and keeps it. Index files and META.txt take
theirs when they are written, so that some is left for them. What follows from the numbers
is decided in `store.py` at the start, and in `log.py` later.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import DiskFullError, DiskTooSmallError
from volcache.geometry import volumes_max
from volcache.store.files import DISK_FULL, Space
from volcache.store.format import VOLUME_HEADER_BYTES, VOLUME_ID_MAX
from volcache.store.stats import DiskUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from volcache.store.directory import StoreDirectory
    from volcache.store.files import FileSystem
    from volcache.store.stats import StoreStats
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

VOLUMES_MIN: Final = 2
# With volume_num = "auto": one open file and one line of META.txt for each volume.
AUTO_VOLUMES_MAX: Final = 8192
# What is left for index files when a volume is started: this share of a volume.
_INDEX_SHARE: Final = 32
_RESERVE_BYTES: Final = 16 << 10
_PAGE_BYTES: Final = 4096
_LINE_BYTES: Final = 160  # of META.txt, while there are two of them
# With volume_num = "auto", more is left: a twentieth of what the disk holds, at least
# 64 MiB, but on a small disk an eighth.
_AUTO_SHARE: Final = 20
_AUTO_BYTES: Final = 64 << 20
_AUTO_SHARE_MAX: Final = 8
# Space below which a write that failed for want of space is retried after a volume was
# given up: with more, it was another shortage, as of inodes.
SHORT_BYTES: Final = 1 << 20
# An allocation that failed is not tried again for this many times as long as it took: on a
# file system that refuses although it has space, by a quota, it may take half a second.
_ALLOCATE_PAUSE: Final = 100
_ALLOCATE_PAUSE_NS_MIN: Final = 100_000_000
# A volume may be smaller by this factor if the disk has no more space.
_SMALLER_MAX: Final = 8
_ADVISED_BYTES_MIN: Final = 1 << 20  # the least that the setting allows


def reserve_bytes(volume_size: int, volumes: int) -> int:
    """Return what must be left free after another volume was started."""
    return _RESERVE_BYTES + volume_size // _INDEX_SHARE + 2 * _LINE_BYTES * volumes


class Holding(NamedTuple):
    """What a disk can hold of a store; bytes."""

    free: int
    held: int  # by the files of the store
    data: int  # of that, by volumes
    volumes: int  # the highest id of a volume that takes space, plus 1

    @property
    def total(self) -> int:
        """What all files of the store may take."""
        return self.free + self.held

    def volumes_of(self, volume_size: int) -> int:
        """Return how many volumes of a size fit."""
        room = self.total - reserve_bytes(volume_size, 0)
        return max(self.data, room) // volume_size

    def auto_volumes(self, volume_size: int) -> int:
        """
        Return the number of volumes for `volume_num = "auto"`, at least 2.

        As many as fit when the reserve and the index files have their space, as large as
        they are relative to the volumes now; but not fewer than there are. The files of
        the store count as space that it has: the number is the same when they fill it.
        """
        least = min(_AUTO_BYTES, self.total // _AUTO_SHARE_MAX)
        room = self.total - max(self.total // _AUTO_SHARE, least)
        index = 0
        if self.data >= volume_size:
            index = (self.held - self.data) * volume_size // self.data
        most = min(AUTO_VOLUMES_MAX, volumes_max(volume_size))
        fitting = min(room // (volume_size + index), most)
        return min(max(VOLUMES_MIN, fitting, self.volumes), VOLUME_ID_MAX + 1)


def holding_of(directory: StoreDirectory) -> Holding:
    """
    Find out what the disk of a directory can hold.

    Raises:
        OSError: The disk does not answer.
    """
    fs = directory.fs
    space = fs.space(directory.root)
    data = index = volumes = 0
    for volume in directory.volume_ids():
        size = fs.held_bytes(directory.data_path(volume))
        data += size
        if size:
            volumes = volume + 1
    for volume in directory.index_ids():
        index += fs.held_bytes(directory.index_path(volume))
    return Holding(space.free, data + index, data, volumes)


def refuse_too_small(root: str, holding: Holding, volume_size: int) -> None:
    """
    Raise if there are no volumes yet, and the disk cannot hold two.

    One is written and one can be given up: with a single one, the disk would be full as
    soon as that is.

    Raises:
        DiskTooSmallError: It cannot.
    """
    if holding.volumes or holding.volumes_of(volume_size) >= VOLUMES_MIN:
        return
    advised = holding.total * 9 // 10 // VOLUMES_MIN
    raise DiskTooSmallError(
        root,
        volume_size=volume_size,
        holds=holding.total,
        advised=advised - advised % _PAGE_BYTES if advised >= _ADVISED_BYTES_MIN else 0,
    )


def is_short(fs: FileSystem, path: str, error: OSError) -> bool:
    """Return whether more free space may let an operation succeed that was refused."""
    if error.errno == errno.ENOSPC:
        return fs.space(path).free < SHORT_BYTES
    return error.errno == errno.EDQUOT


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
    """

    def __init__(
        self,
        directory: StoreDirectory,
        descriptors: Mapping[int, int],
        volumes: Mapping[int, Volume],
        stats: StoreStats,
        *,
        volume_size: int,
        volume_num: int,
    ) -> None:
        """Look at the disk; `volumes` are the valid ones, whenever it is used."""
        self._directory, self._descriptors = directory, descriptors
        self._volumes, self._stats = volumes, stats
        self.volume_size, self.volume_num = volume_size, volume_num
        used = {volume.id for volume in volumes.values()}
        self.unused = set(range(volume_num)).intersection(descriptors) - used
        self.ids_without_space = {one for one in self.unused if self._lacks_space(one)}
        self._freed: set[int] = set()  # their files, for the volume that is started
        self.found = Space(0, 0)
        self.may_be_smaller = self._was_limited = False
        self._allocate_again_ns = 0
        self.look()

    def _held(self, volume: int) -> int:
        """Return how many bytes of the disk the data file of an id takes."""
        try:
            return self._directory.fs.held_bytes(self._descriptors[volume])
        except OSError:
            return 0

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
        self.allowed = min(self.volume_num, len(self._volumes) + self.free_ids)

    @property
    def _unreserved_bytes(self) -> int:
        return self.found.free - reserve_bytes(self.volume_size, len(self._volumes))

    @property
    def free_ids(self) -> int:
        """How many volumes can be started without dropping one."""
        unused = len(self.unused)
        spaced = unused - len(self.ids_without_space) + self.room
        return min(unused, self.volume_num - len(self._volumes), spaced)

    def log_limit(self) -> None:
        """Look at the disk, and log when it begins or ceases to limit the volumes."""
        self.look()
        is_limited = self.allowed < self.volume_num
        if is_limited and not self._was_limited:
            _logger.warning(
                "disk.limited volumes=%d volume_num=%d free=%d",
                self.allowed,
                self.volume_num,
                self.found.free,
            )
        elif self._was_limited and not is_limited:
            _logger.info("disk.unlimited volumes=%d", self.allowed)
        self._was_limited = is_limited

    def usage(self) -> DiskUsage:
        """Return what the disk has, and how many volumes it allows."""
        self.look()
        return DiskUsage(
            free=self.found.free,
            total=self.found.total,
            state="read-only" if self.found.is_read_only else self._stats.refusal(),
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
        if not self.may_be_smaller:
            return self.volume_size
        self.look()
        length = volume.held_bytes + self._unreserved_bytes
        length -= length % _PAGE_BYTES
        least = max(self.volume_size // _SMALLER_MAX, VOLUME_HEADER_BYTES + size)
        return min(length, self.volume_size) if length >= least else self.volume_size

    def allocate(self, volume: Volume, length: int) -> None:
        """
        Allocate disk space for a volume.

        Raises:
            DiskFullError: There is not enough disk space.
            OSError: The disk refused for another reason.
        """
        present = self._directory.fs.size(volume.fd)
        needed = max(0, length - volume.held_bytes)
        free = self.free_bytes() if needed else 0
        if needed > free:
            # To try it nevertheless would fill the disk, and free it again.
            raise DiskFullError(volume=volume.id, needed=needed, free=free)
        started_ns = perf_counter_ns()
        try:
            volume.allocate(length)
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
            if self._directory.fs.size(fd) > length:
                self._directory.fs.truncate(fd, length)
        except OSError as error:
            _logger.error("rotation.take_back_failed error=%r", str(error))

    def record_started(self, volume: Volume) -> None:
        """Let a volume have its id and the space of its file."""
        self.unused.discard(volume.id)
        self.ids_without_space.discard(volume.id)

    def record_dropped(self, volume: Volume) -> None:
        """Let another volume have the id of a volume, and the space of its file."""
        if volume.id < self.volume_num:
            self.unused.add(volume.id)
            if self._lacks_space(volume.id):
                self.ids_without_space.add(volume.id)

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
        if (
            isinstance(error.__cause__, OSError)
            and error.__cause__.errno != errno.ENOSPC
        ):
            return error.__cause__.errno == errno.EDQUOT
        spare = sum(map(self._held, self.unused - self._freed))
        others = (volume for volume in self._volumes.values() if volume is not kept)
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
            self._directory.fs.truncate(self._descriptors[volume], 0)
        except OSError as error:
            self._stats.count_write_error(error)
            return False
        self.ids_without_space.add(volume)
        return True
