"""
A small file beside the store's own, for a part that is not the store.

Read whole at the start, replaced in one step, appended to in between. What is in it is that
part's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volcache.store.files import read_file, replace_file, write_all

if TYPE_CHECKING:
    from volcache.store.files import FileSystem


class FileJournal:
    """A file by its path; opened when it is first appended to."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Name the file; nothing is opened."""
        self._fs = fs
        self._path = path
        self._fd: int | None = None
        self._end = 0

    def read(self) -> bytes:
        """
        Return all of the file, empty when there is none.

        Raises:
            OSError: It cannot be read.
        """
        data = read_file(self._fs, self._path) or b""
        self._end = len(data)
        return data

    def replace(self, data: bytes) -> None:
        """
        Put `data` in its place, durably and in one step.

        Raises:
            OSError: The old file is still there.
        """
        self.close()
        replace_file(self._fs, self._path, data)
        self._end = len(data)

    def append(self, data: bytes) -> None:
        """
        Add `data`, which survives the death of the process from then on.

        Raises:
            OSError: Nothing counts of it; what is appended next takes its place.
        """
        if self._fd is None:
            self._fd = self._fs.open(self._path, create=False)
        write_all(self._fs, self._fd, data, self._end)
        self._end += len(data)

    def close(self) -> None:
        """Give back the descriptor."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._fs.close(fd)
