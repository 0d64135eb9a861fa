"""
The one door between the store and the operating system.

Every system call the store makes on a file goes through a `FileSystem`, so that tests can
stop it at any call, tear a write or lose what was not synced. Knows nothing of volumes.

A small file beside the store's own, for a part that is not the store.

Read whole at the start, replaced in one step, appended to in between. What is in it is that
part's business.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755


class FileSystem(Protocol):
    """What the store asks of a disk. Every method may raise `OSError`."""

    def open(self, path: str, *, create: bool) -> int:
        """Open for reading and writing; `create` makes a missing file, empty."""

    def close(self, fd: int) -> None:
        """Give the descriptor back."""

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read at most `length` bytes; fewer at the end of the file."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one behind the other; return the bytes written."""

    def size(self, fd: int) -> int:
        """Return the length of the file in bytes."""

    def allocate(self, fd: int, length: int) -> None:
        """Make sure that `length` bytes can be written without running out of disk."""

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file, or extend it by a hole."""

    def sync(self, fd: int) -> None:
        """Return when the data of the file, and its length, are on the disk."""

    def sync_directory(self, path: str) -> None:
        """Return when names made, renamed or unlinked in it are on the disk."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; one that is there is fine."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step."""

    def unlink(self, path: str) -> None:
        """Remove a name; one that is not there is fine."""

    def free_bytes(self, path: str) -> int:
        """Return what the file system that holds `path` has room for."""

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock of the file; false when another process has it."""


class OsFileSystem:
    """The real disk. Calls on the path of a request are the bare `os` functions."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
    allocate = staticmethod(lambda fd, length: os.posix_fallocate(fd, 0, length))
    truncate = staticmethod(os.ftruncate)
    # fdatasync writes the length as well, where it has changed (POSIX, Linux man page).
    sync = staticmethod(os.fdatasync)
    rename = staticmethod(os.replace)

    def open(self, path: str, *, create: bool) -> int:
        """Open for reading and writing; `create` makes a missing file, empty."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, _FILE_MODE)

    def size(self, fd: int) -> int:
        """Return the length of the file in bytes."""
        return os.fstat(fd).st_size

    def sync_directory(self, path: str) -> None:
        """Return when names made, renamed or unlinked in it are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; one that is there is fine."""
        os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def unlink(self, path: str) -> None:
        """Remove a name; one that is not there is fine."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def free_bytes(self, path: str) -> int:
        """Return what the file system that holds `path` has room for."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock of the file; false when another process has it."""
        return _take_lock(fd, fcntl.LOCK_EX)


def _take_lock(fd: int, kind: int) -> bool:
    """Take a lock without waiting for it; false when another process is in the way."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class ReadOnlyFileSystem(OsFileSystem):
    """
    The real disk, of which nothing is changed, for tools that look at it offline.

    What is not a regular file is taken as not there, so that neither a directory nor a
    pipe in a file's place stops the one who looks.
    """

    pwritev = staticmethod(_refuse)
    allocate = staticmethod(_refuse)
    truncate = staticmethod(_refuse)
    rename = staticmethod(_refuse)
    sync = staticmethod(_refuse)
    sync_directory = staticmethod(_refuse)
    make_directory = staticmethod(_refuse)
    unlink = staticmethod(_refuse)

    def open(self, path: str, *, create: bool) -> int:
        """Open for reading; nothing is ever made."""
        if create:
            _refuse()
        # Without O_NONBLOCK, a pipe would wait for somebody to write.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "is not a file", path)
        return fd

    def lock(self, fd: int) -> bool:
        """Take a shared lock: a server does not start meanwhile, other readers may."""
        return _take_lock(fd, fcntl.LOCK_SH)


def write_all(fs: FileSystem, fd: int, data: bytes, offset: int) -> None:
    """
    Write every byte of `data` at `offset`, however often the system has to be asked.

    Raises:
        OSError: The disk refused; any prefix of `data` may have been written.
    """
    view = memoryview(data)
    while view:
        written = fs.pwritev(fd, [bytes(view)], offset)
        if written <= 0:
            message = f"wrote nothing of {len(view)} bytes at offset {offset}"
            raise OSError(message)
        view = view[written:]
        offset += written


def read_file(fs: FileSystem, path: str) -> bytes | None:
    """Return all bytes of a file, or None when there is no such file."""
    try:
        fd = fs.open(path, create=False)
    except FileNotFoundError:
        return None
    try:
        return read_range(fs, fd, 0, fs.size(fd))
    finally:
        fs.close(fd)


def read_range(fs: FileSystem, fd: int, start: int, end: int) -> bytes:
    """Return the bytes from `start` up to `end`, fewer where the file ends before."""
    parts = []
    while start < end:
        part = fs.pread(fd, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def replace_file(fs: FileSystem, path: str, data: bytes) -> None:
    """
    Put `data` in the place of the file, durably and in one step.

    A crash at any point leaves the old bytes or the new ones, never a mixture: the new
    ones are written and synced under another name, renamed, and the name is synced.
    """
    temporary = path + ".new"
    fs.unlink(temporary)
    fd = fs.open(temporary, create=True)
    try:
        write_all(fs, fd, data, 0)
        fs.sync(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    fs.sync_directory(os.path.dirname(path))


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
