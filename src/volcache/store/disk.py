"""
The disk below a store: how many volumes it holds, and what is kept free on it.

A volume takes its space when it is started, and keeps it. Index files and META.txt take
theirs when they are written, so that some is left for them. Numbers only: what follows
from them is decided in `store.py` at the start, and in `space.py` later.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import DiskTooSmallError
from volcache.geometry import volumes_max
from volcache.store.format import VOLUME_ID_MAX

if TYPE_CHECKING:
    from volcache.store.directory import StoreDirectory
    from volcache.store.files import FileSystem

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
    free = directory.fs.space(directory.root).free
    sizes, index = directory.held_bytes()
    data = sum(sizes.values())
    volumes = max((volume + 1 for volume in sizes if sizes[volume]), default=0)
    return Holding(free, data + index, data, volumes)


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
