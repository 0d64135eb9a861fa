"""
The disk below a store: how many volumes it holds, and what is kept free on it.

A volume takes its space when it is started, and keeps it. Index files and META.txt take
theirs when they are written, so that some is left for them. Numbers only: what follows
from them is decided in `store.py` at the start, and in `space.py` later.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import DiskTooSmallError, TooFewDescriptorsError
from volcache.geometry import VOLUME_BYTES_MAX, volumes_max
from volcache.store.files import descriptor_limit
from volcache.store.format import VOLUME_ID_MAX

if TYPE_CHECKING:
    from volcache.store.directory import StoreDirectory

VOLUMES_MIN: Final = 2
# With volume_num = "auto": the least and the most volumes of a new mount point. Fewer cost
# hits; each has an open file and a line of META.txt.
_AUTO_VOLUMES_MIN: Final = 64
_AUTO_VOLUMES_MAX: Final = 1024
# Open files besides those of volumes: index files, sockets, logs.
_DESCRIPTORS_LEFT: Final = 32
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
    volume_size: int = 0  # of most of them; 0: there are none

    @property
    def total(self) -> int:
        """What all files of the store may take."""
        return self.free + self.held

    def volumes_of(self, volume_size: int) -> int:
        """Return how many volumes of a size fit."""
        room = self.total - reserve_bytes(volume_size, 0)
        return max(self.data, room) // volume_size

    def auto_size(self, volume_size: int, least: int) -> int:
        """
        Return the size of volumes for `volume_num = "auto"`.

        That of the volumes there are. For new ones, a power of 2 times `volume_size`, so
        that there are 64 to 1,024 of them.

        Args:
            volume_size: The preferred size.
            least: Of the size; the largest record has to fit.
        """
        if self.volume_size >= least:
            return self.volume_size
        size = volume_size
        while self._fitting(size) > _AUTO_VOLUMES_MAX and 2 * size <= VOLUME_BYTES_MAX:
            size *= 2
        while self._fitting(size) < _AUTO_VOLUMES_MIN and size // 2 >= least:
            size //= 2
        return size

    def auto_volumes(self, volume_size: int) -> int:
        """
        Return the number of volumes for `volume_num = "auto"`, at least 2.

        As many as fit, but not fewer than there are.
        """
        fitting = min(self._fitting(volume_size), volumes_max(volume_size))
        return min(max(VOLUMES_MIN, fitting, self.volumes), VOLUME_ID_MAX + 1)

    def unused(self, volume_size: int, volumes: int) -> int:
        """Return how many bytes so many volumes leave that `auto_volumes` would use."""
        return max(0, self._fitting(volume_size) - volumes) * volume_size

    def _fitting(self, volume_size: int) -> int:
        """
        Return how many volumes fit when the reserve and the index files have their space.

        These are as large as they are relative to the volumes now. The files of the store
        count as space that it has: the number is the same when they fill it.
        """
        least = min(_AUTO_BYTES, self.total // _AUTO_SHARE_MAX)
        room = self.total - max(self.total // _AUTO_SHARE, least)
        index = 0
        if self.data >= volume_size:
            index = (self.held - self.data) * volume_size // self.data
        return room // (volume_size + index)


def holding_of(directory: StoreDirectory) -> Holding:
    """
    Find out what the disk of a directory can hold.

    Raises:
        OSError: The disk does not answer.
    """
    free = directory.fs.space(directory.root).free
    files, index = directory.file_sizes()
    data = sum(held for _, held in files.values())
    volumes = max((one + 1 for one, (_, held) in files.items() if held), default=0)
    sizes = Counter(size for size, held in files.values() if held)
    size = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return Holding(free, data + index, data, volumes, size)


def refuse_few_descriptors(root: str, volumes: int) -> None:
    """
    Raise if this process may not have a file open for each volume.

    Raises:
        TooFewDescriptorsError: It may not.
    """
    limit, used = descriptor_limit(), 0
    with suppress(OSError):
        used = len(os.listdir("/proc/self/fd"))
    if 0 <= limit < used + volumes + _DESCRIPTORS_LEFT:
        raise TooFewDescriptorsError(root, limit=limit, volumes=volumes)


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
