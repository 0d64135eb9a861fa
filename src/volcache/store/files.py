"""
All system calls of the store on files.

The store makes them through a `FileSystem` object, so that tests can fail any call, tear a
write or lose data that was not synced. This module contains nothing about volumes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import stat
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Reduced by the umask. Other users have no need to read values, except the group of a store
# that may write to its directory.
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
# What a direct read must be a multiple of: the largest block of any disk.
_BLOCK_BYTES: Final = 4096
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
# stat counts in these units, whatever the block size of the file system.
STAT_BLOCK_BYTES: Final = 512
# No space left, the quota is used up, or the file would be larger than it may be.
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
# Space below which a write that failed for want of space is retried after a volume was
# given up: with more, it was another shortage, as of inodes.
_SHORT_BYTES: Final = 1 << 20
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


class SyncFailedError(OSError):
    """A sync failed: the volume must be retired."""


class Space(NamedTuple):
    """The space of a file system; bytes."""

    free: int  # for users other than root
    total: int
    is_read_only: bool = False


class FileSystem(Protocol):
    """The system calls that the store needs. Every method may raise `OSError`."""

    def open(self, path: str, *, create: bool) -> int:
        """Open a file for reading and writing; `create` makes a missing file, empty."""

    def close(self, fd: int) -> None:
        """Close a descriptor; it is closed, too, if this raises."""

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read at most `length` bytes; fewer at the end of the file."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write the buffers one after the other; return the number of bytes written."""

    def stat(self, file: int | str) -> os.stat_result:
        """Return what is known of a file; `st_blocks` times `STAT_BLOCK_BYTES` is held."""

    def allocate(self, fd: int, length: int, start: int = 0) -> None:
        """Allocate disk space for the bytes of the file from `start` up to `length`."""

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file, or extend it by a hole."""

    def sync(self, fd: int) -> None:
        """Return when the data of the file, and its length, are on the disk."""

    def sync_directory(self, path: str) -> None:
        """Return when names created, renamed or removed in it are on the disk."""

    def make_directory(self, path: str, *, is_part: bool = False) -> None:
        """
        Create a directory and its parents; an existing one is no error.

        A new part of a store, as new files, is for the group that may write to its parent.
        """

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` atomically."""

    def unlink(self, path: str) -> None:
        """Remove a name; a missing one is no error."""

    def space(self, path: str) -> Space:
        """Return the space of the file system that contains `path`."""

    def open_directory(self, path: str) -> int:
        """Open a directory, to lock it."""

    def lock(self, fd: int) -> bool:
        """Lock a file or directory; return false if another process has locked it."""

    def boot_id(self) -> str:
        """Return an id that changes when the machine boots; empty: not known."""


class OsFileSystem:
    """The real disk. Calls on the path of a request are the bare `os` functions."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
    truncate = staticmethod(os.ftruncate)
    # fdatasync writes the length as well if it has changed (POSIX, Linux man page).
    sync = staticmethod(os.fdatasync)
    rename = staticmethod(os.replace)
    stat = staticmethod(os.stat)
    names = staticmethod(os.listdir)

    def make_directory(self, path: str, *, is_part: bool = False) -> None:
        is_new = is_part and not os.path.lexists(path)
        os.makedirs(path, mode=_DIRECTORY_MODE, exist_ok=True)
        if is_new:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _share(fd, path)
            finally:
                os.close(fd)

    def open(self, path: str, *, create: bool) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, _FILE_MODE)
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            # A read-only disk is still read.
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if create and not os.fstat(fd).st_size:
            _share(fd, path)
        return fd

    def allocate(self, fd: int, length: int, start: int = 0) -> None:
        """
        See `FileSystem`; a file system that cannot allocate only sets the length.

        Not `posix_fallocate`: there, glibc would write to each block of the file.
        """
        fallocate = _fallocate()
        code = errno.ENOSYS if fallocate is None else errno.EINTR
        while code == errno.EINTR:
            code = ctypes.get_errno() if fallocate(fd, 0, start, length - start) else 0
        if code in _NOT_SUPPORTED:
            if os.fstat(fd).st_size < length:
                os.ftruncate(fd, length)
        elif code:
            raise OSError(code, os.strerror(code))

    def sync_directory(self, path: str) -> None:
        fd = self.open_directory(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def space(self, path: str) -> Space:
        found = os.statvfs(path)
        return Space(
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
            bool(found.f_flag & os.ST_RDONLY),
        )

    def open_directory(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def lock(self, fd: int) -> bool:
        return _flock(fd, fcntl.LOCK_EX)

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""


def _share(fd: int, path: str) -> None:
    """Let the group that may write to a directory use something new in it."""
    parent, mode = os.stat(os.path.dirname(path)), os.fstat(fd).st_mode
    # With the sticky bit, others may not replace its files.
    if parent.st_mode & stat.S_IWGRP and not parent.st_mode & stat.S_ISVTX:
        with suppress(PermissionError):  # This user is not of the group.
            os.fchown(fd, -1, parent.st_gid)
            os.fchmod(fd, stat.S_IMODE(mode | mode >> 3 & stat.S_IRWXG))


@cache
def _fallocate() -> Any:  # noqa: ANN401 - A function of the C library.
    """Return Linux' fallocate; None where there is none."""
    library = ctypes.CDLL(None, use_errno=True)
    # With glibc, the length of `fallocate` has the size of a long.
    for name in ("fallocate64", "fallocate"):
        if hasattr(library, name):
            found = getattr(library, name)
            found.argtypes = [ctypes.c_int] * 2 + [ctypes.c_int64] * 2
            return found
    return None


def _flock(fd: int, kind: int) -> bool:
    """Lock without waiting; return false if another process has a conflicting lock."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


class ReadOnlyFileSystem(OsFileSystem):
    """
    The real disk, read-only, for offline tools.

    A path that is not a regular file counts as missing, so that a directory or a pipe in
    the place of a file does not stop the tool.
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
        if create:
            _refuse()
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "is not a file", path)
        return fd

    def lock(self, fd: int) -> bool:
        # Shared: no server starts meanwhile, other readers may.
        return _flock(fd, fcntl.LOCK_SH)


class UncachedReader:
    """
    Reads what the disk has, not what the page cache has, where the system can.

    The pages that the cache has stay, and none are added. On file systems without direct
    reads this is `pread`. For one thread.
    """

    def __init__(self, length_max: int) -> None:
        """Allocate the memory for reads of up to `length_max` bytes."""
        # Memory that is mapped has the alignment that direct reads need.
        self._pages = memoryview(mmap.mmap(-1, length_max + 2 * _BLOCK_BYTES))

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """
        Read at most `length` bytes; fewer at the end of the file.

        Raises:
            OSError: The disk refused.
        """
        flags = os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC
        try:
            direct = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:
            return os.pread(fd, length, offset)
        start = offset - offset % _BLOCK_BYTES
        end = -(-(offset + length) // _BLOCK_BYTES) * _BLOCK_BYTES
        try:
            got = os.preadv(direct, [self._pages[: end - start]], start)
            return bytes(
                self._pages[offset - start : min(got, offset + length - start)]
            )
        except OSError as error:
            if error.errno != errno.EINVAL:  # A file system with larger blocks.
                raise
            return os.pread(fd, length, offset)
        finally:
            os.close(direct)


def descriptor_limit() -> int:
    """Return how many files and connections this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def close_all(fs: FileSystem, descriptors: Iterable[int]) -> OSError | None:
    """
    Close descriptors of which nothing is needed: of files that were read, or are synced.

    Returns:
        What the disk has refused last; all are closed nevertheless.
    """
    refused = None
    for fd in descriptors:
        try:
            fs.close(fd)
        except OSError as error:
            refused = error
    return refused


def write_all(fs: FileSystem, fd: int, data: bytes, offset: int) -> None:
    """
    Write all bytes of `data` at `offset`, with several calls if one is not enough.

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


@contextmanager
def reading(fs: FileSystem, path: str) -> Iterator[int]:
    """Open a file to read it."""
    fd = fs.open(path, create=False)
    try:
        yield fd
    finally:
        close_all(fs, [fd])


def read_file(fs: FileSystem, path: str) -> bytes | None:
    """Return all bytes of a file, or None if it does not exist."""
    try:
        with reading(fs, path) as fd:
            return read_range(fs, fd, 0, fs.stat(fd).st_size)
    except FileNotFoundError:
        return None


def read_range(fs: FileSystem, fd: int, start: int, end: int) -> bytes:
    """Return the bytes from `start` up to `end`, fewer if the file ends before."""
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
    Replace the contents of a file durably and atomically.

    A crash at any point leaves the old bytes or the new ones, never a mixture: the new
    file is written and synced under another name, renamed, and the directory is synced.
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


def is_short(fs: FileSystem, path: str, error: OSError) -> bool:
    """Return whether more free space may let an operation succeed that was refused."""
    if error.errno != errno.ENOSPC:
        return error.errno == errno.EDQUOT
    try:
        return fs.space(path).free < _SHORT_BYTES
    except OSError:  # It is not known.
        return False
