"""
The index file of one use of a volume: reading its valid part, and opening it.

The core appends blocks (see `index_format.py`).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from volcache.store.files import read_range, write_all
from volcache.store.format import VERSION
from volcache.store.index import Loaded
from volcache.store.index_format import (
    IndexName,
    decode_index_header,
    encode_index_header,
)
from volcache.store.native import read_lines

if TYPE_CHECKING:
    from collections.abc import Collection

    from volcache.store.files import FileSystem
    from volcache.store.format import Segment, VolumeUse
    from volcache.store.native import Index


# The first block, with the name of the file, is shorter.
HEAD_BYTES: Final = 4096
_CHECKPOINT: Final = b"\n# checkpoint "


class IndexContents:
    """
    The valid part of an index file: its blocks up to the first damaged one.

    Attributes:
        is_ours: Its first line is right.
        length: Of the data given, in bytes.
        found: What is in the valid part.
    """

    def __init__(
        self, data: bytes, name: IndexName, segments: Collection[Segment]
    ) -> None:
        """
        Check the first line; `read_lines` checks the rest.

        Args:
            data: The file, or its first block.
            name: What the first line must be.
            segments: Of the volume: a block that does not fit them was written for a copy
                of the mount point, and ends the valid part.
        """
        self._name = name
        self._segments = segments
        named = decode_index_header(data)
        self.is_ours = named == (VERSION, self._name)
        # The volume it belongs to, if that is another one of the same store.
        self.other_use: VolumeUse | None = None
        if named and not self.is_ours and named[1].store_id == self._name.store_id:
            self.other_use = named[1].use
        self._data = data
        self.length = len(data)
        self._after = b""
        self.found = Loaded()

    def replay(self, index: Index, fs: FileSystem, fd: int) -> None:
        """
        Set the positions of all entries of a file in an index; it cannot be read again.

        Args:
            index: Is filled.
            fs: The file system.
            fd: Of the file, whose first block is the data given before.

        Raises:
            OSError: The file cannot be read; some positions may have been set.
        """
        if self.is_ours:
            self.found = index.load(self._name.use.seq, fd, self._segments)
            self._data = b""
            after = read_range(fs, fd, self.found.file_end, fs.stat(fd).st_size)
            self._after = after if _CHECKPOINT in after else b""

    def read_lines(self) -> tuple[bytes, bool]:
        """
        Find the valid part; `found` says what it has.

        Returns:
            Its lines, and whether the entries are in the order of the volume.
        """
        if not self.is_ours:
            return b"", True
        self.found, is_in_order = read_lines(self._data, self._segments)
        return self._data[: self.found.file_end], is_in_order

    @property
    def is_whole(self) -> bool:
        """Whether at most a torn block follows the valid part."""
        after = self._after or self._data[self.found.file_end :]
        return self.is_ours and _CHECKPOINT not in after


def create_index_file(
    fs: FileSystem, path: str, name: IndexName
) -> tuple[int, int, int]:
    """
    Create an index file with its first block; an existing one is removed first.

    Returns:
        Its descriptor, length and checksum.

    Raises:
        IsADirectoryError: A directory is in its place, and stays.
        OSError: There may be an empty or torn file, which is ignored when read.
    """
    try:
        fs.unlink(path)
    except IsADirectoryError as error:
        why = "is a directory in the place of a file, move it away"
        raise IsADirectoryError(errno.EISDIR, why, path) from error
    block, checksum = encode_index_header(name)
    fd = fs.open(path, create=True)
    try:
        write_all(fs, fd, block, 0)
    except BaseException:
        fs.close(fd)
        raise
    return fd, len(block), checksum


def open_index_file(fs: FileSystem, path: str, end: int) -> int:
    """
    Open an index file for appending; cut off what follows its valid part.

    Raises:
        OSError: The file cannot be opened or cut.
    """
    fd = fs.open(path, create=False)
    try:
        if fs.stat(fd).st_size > end:
            fs.truncate(fd, end)
    except BaseException:
        fs.close(fd)
        raise
    return fd
