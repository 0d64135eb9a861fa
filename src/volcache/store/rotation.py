"""
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
from typing import TYPE_CHECKING

from volcache.errors import DiskFullError
from volcache.store.index_file import IndexFile, remove_index_file

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.lines import Meta
    from volcache.store.mount_point import MountPoint
    from volcache.store.stats import StoreStats
    from volcache.store.volume import Volume

_log = logging.getLogger("volcache.store")


def next_slot(*, volume: int, generation: int, volume_num: int) -> tuple[int, int]:
    """Return the slot that follows in the cycle, and its new generation."""
    if volume + 1 < volume_num:
        return volume + 1, generation
    return 0, generation + 1


def allocate(mount: MountPoint, volume: Volume, length: int) -> None:
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
        _log.error("rotation.take_back_failed error=%r", str(error))


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
        stats.note_index_error(error, volume=volume.id)


def begin_life(
    mount: MountPoint, volume: Volume, meta: Meta, now_ms: int, stats: StoreStats
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
        stats.note_index_error(error, volume=volume.id)
