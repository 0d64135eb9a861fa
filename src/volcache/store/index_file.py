"""
The index file of one life of a volume: what counts of it, and open for appending.

Writes blocks (see `lines.py`) at a place it keeps itself, so that what a failed write left
behind is written over by the next one. Knows nothing of the index in memory.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Self

from volcache.store.files import write_all
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.index_format import (
    IndexName,
    decode_block,
    decode_blocks,
    decode_index_header,
    encode_block,
    encode_index_header,
    has_block,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from volcache.store.files import FileSystem


class IndexContents:
    """What counts of an index file: its blocks up to the first that is not right."""

    def __init__(self, data: bytes, name: IndexName) -> None:
        """Look at the first line; `read` goes through the rest."""
        named = decode_index_header(data) if has_block(data) else None
        self.is_ours = named is not None and named[1] == name
        self.version = named[0] if named and self.is_ours else 0
        self._data = data
        self._restart()

    def _restart(self) -> None:
        self.file_end = 0  # How many bytes of the file count.
        self.volume_end = VOLUME_HEADER_BYTES  # How far the volume is indexed.
        self.sealed = False

    def read(self) -> Iterator[list[tuple[bytes, int, int]]]:
        """Yield the entries of each block; the fields say how far that is."""
        self._restart()
        if not self.is_ours:
            return
        for block in decode_blocks(self._data):
            entries = decode_block(block)
            if entries is None:
                return
            self.volume_end = block.volume_end
            self.sealed = block.sealed
            self.file_end = block.file_end
            yield entries

    @property
    def length(self) -> int:
        """The length of the file in bytes."""
        return len(self._data)

    @property
    def is_whole(self) -> bool:
        """Whether what was read is all but a torn block."""
        return self.is_ours and b"\n# checkpoint " not in self._data[self.file_end :]


class IndexFile:
    """An index file with the place of its next block."""

    def __init__(self, fs: FileSystem, fd: int, end: int) -> None:
        """Use `create` or `append_to`."""
        self._fs = fs
        self._fd = fd
        self._end = end
        self._synced_end = -1

    @classmethod
    def create(cls, fs: FileSystem, path: str, name: IndexName) -> Self:
        """
        Begin a new index file; an old one of that name is removed first.

        Raises:
            IsADirectoryError: A directory is in its place, and stays.
            OSError: There may be an empty file or a torn one, which counts as none.
        """
        if not remove_index_file(fs, path):
            why = "is a directory in the place of a file, move it away"
            raise IsADirectoryError(errno.EISDIR, why, path)
        block = encode_index_header(name)
        fd = fs.open(path, create=True)
        try:
            write_all(fs, fd, block, 0)
        except BaseException:
            fs.close(fd)
            raise
        return cls(fs, fd, len(block))

    @classmethod
    def append_to(cls, fs: FileSystem, path: str, end: int) -> Self:
        """
        Go on behind the last good block, which ends at `end`; cut off what follows.

        Raises:
            OSError: The file cannot be opened or cut.
        """
        fd = fs.open(path, create=False)
        try:
            if fs.size(fd) > end:
                fs.truncate(fd, end)
        except BaseException:
            fs.close(fd)
            raise
        return cls(fs, fd, end)

    def append(
        self,
        entries: Iterable[tuple[bytes, int, int]],
        volume_end: int,
        *,
        sealed: bool = False,
    ) -> None:
        """
        Append one block; see `lines.encode_block` for the arguments.

        It survives the process from then on and a power loss from the next `sync`.

        Raises:
            OSError: The block does not count; the next one takes its place.
        """
        block = encode_block(entries, volume_end, sealed=sealed)
        write_all(self._fs, self._fd, block, self._end)
        self._end += len(block)

    def sync(self) -> None:
        """
        Return when every block appended so far is on the disk.

        Raises:
            OSError: Nothing is known of the blocks since the last sync.
        """
        end = self._end
        if end != self._synced_end:
            self._fs.sync(self._fd)
            self._synced_end = end

    def close(self) -> None:
        """Give the descriptor back."""
        self._fs.close(self._fd)


def remove_index_file(fs: FileSystem, path: str) -> bool:
    """
    Remove an index file, so that no line of it counts for the slot's next life.

    Returns:
        Whether there is nothing any more. A directory in its place stays: it holds no
        lines, but may hold something that somebody wants.

    Raises:
        OSError: It may still be there.
    """
    try:
        fs.unlink(path)
    except IsADirectoryError:
        return False
    return True
