"""
The directory a store lives in: its names, its lock and META.txt.

Knows which files there are, whose they are and whether they can be written; not what is
in a volume. Refuses a directory that is not ours before it touches anything in it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from volcache.errors import (
    ForeignDirectoryError,
    FormatVersionError,
    MountPointError,
    StoreLockedError,
)
from volcache.store.files import read_file, replace_file, write_all
from volcache.store.format import VERSION
from volcache.store.index_format import Meta, decode_meta, encode_meta, meta_version

if TYPE_CHECKING:
    from volcache.store.files import FileSystem

LOCK: Final = "LOCK"
META: Final = "META.txt"
HOT: Final = "HOT.txt"
DATA: Final = "data"
INDEX: Final = "index"
# lost+found is made by mkfs at the root of every ext file system.
NAMES: Final = frozenset(
    {LOCK, META, META + ".new", HOT, HOT + ".new", DATA, INDEX, "lost+found"}
)


class StoreDirectory:
    """One locked directory."""

    def __init__(self, fs: FileSystem, root: str, lock_fd: int | None) -> None:
        """Use `StoreDirectory.open` or `StoreDirectory.inspect`."""
        self.fs = fs
        self.root = root
        self.data = os.path.join(root, DATA)
        self.index = os.path.join(root, INDEX)
        self.meta = os.path.join(root, META)
        self.hot = os.path.join(root, HOT)
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, fs: FileSystem, directory: str) -> Self:
        """
        Make the directory where it is missing, lock it and make what belongs in it.

        Raises:
            ForeignDirectoryError: It holds something else; nothing was touched.
            StoreLockedError: Another process has it.
            FormatVersionError: It was written by a newer volcache.
            MountPointError: It cannot be made, read or written.
        """
        try:
            _make_durably(fs, os.path.abspath(directory))
            _refuse_foreign(fs, directory)
            lock_fd = fs.open(os.path.join(directory, LOCK), create=True)
        except OSError as error:
            raise unusable(directory, error) from error
        try:
            _lock(fs, directory, lock_fd)
            self = cls(fs, os.path.abspath(directory), lock_fd)
            self._refuse_newer()
            fs.make_directory(self.data)
            fs.make_directory(self.index)
            fs.sync_directory(self.root)
        except OSError as error:
            fs.close(lock_fd)
            raise unusable(directory, error) from error
        except BaseException:
            fs.close(lock_fd)
            raise
        return self

    @classmethod
    def inspect(cls, fs: FileSystem, directory: str) -> Self:
        """
        Take a directory as it is, to look at it: nothing is made or written.

        Raises:
            ForeignDirectoryError: There is nothing of a store in it.
            StoreLockedError: A process serves it.
            FormatVersionError: It was written by a newer volcache.
            MountPointError: It cannot be read.
        """
        lock_fd = None
        try:
            _refuse_empty(fs, directory)
            with suppress(FileNotFoundError):
                lock_fd = fs.open(os.path.join(directory, LOCK), create=False)
                _take_lock(fs, directory, lock_fd)
            self = cls(fs, os.path.abspath(directory), lock_fd)
            self._refuse_newer()
        except OSError as error:
            if lock_fd is not None:
                fs.close(lock_fd)
            raise unreadable(directory, error) from error
        except BaseException:
            if lock_fd is not None:
                fs.close(lock_fd)
            raise
        return self

    def close(self) -> None:
        """Give the lock back."""
        if self._lock_fd is not None:
            self.fs.close(self._lock_fd)

    def data_path(self, volume: int) -> str:
        """Return the path of a volume."""
        return os.path.join(self.data, str(volume))

    def index_path(self, volume: int) -> str:
        """Return the path of the index file of a volume."""
        return os.path.join(self.index, str(volume))

    def volume_ids(self) -> list[int]:
        """Return the ids for which there is a volume, in order."""
        return sorted(int(name) for name in self.fs.names(self.data) if _is_id(name))

    def read_meta(self) -> tuple[Meta | None, bool]:
        """Return what META.txt says, and whether there is one (perhaps damaged)."""
        data = read_file(self.fs, self.meta)
        if data is None:
            return None, False
        return decode_meta(data), True

    def write_meta(self, meta: Meta) -> None:
        """
        Replace META.txt durably and in one step.

        Raises:
            OSError: The old one is still in place.
        """
        replace_file(self.fs, self.meta, encode_meta(meta))

    def _refuse_newer(self) -> None:
        version = meta_version(read_file(self.fs, self.meta) or b"")
        if version is not None and version > VERSION:
            refuse_newer(self.root, META, version)


def refuse_newer(root: str, name: str, version: int) -> None:
    """Raise the error for a file of a version this code does not know."""
    message = (
        f"mount point {root!r} was written by a newer volcache: {name} has format"
        f" {version}, this one reads up to {VERSION}; start the newer volcache, or give"
        " another mount_point"
    )
    raise FormatVersionError(message)


def _make_durably(fs: FileSystem, directory: str) -> None:
    """Make a directory and its parents, so that a power loss leaves them there."""
    made = []
    path = directory
    while not _is_there(fs, path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
        made.append(path)
    fs.make_directory(directory)
    for parent in reversed(made):
        fs.sync_directory(parent)


def _is_there(fs: FileSystem, path: str) -> bool:
    try:
        fs.names(path)
    except FileNotFoundError:
        return False
    except OSError:  # There, and not for us: making it will say so.
        return True
    return True


def _refuse_foreign(fs: FileSystem, directory: str) -> None:
    """Raise when there is something in the directory that we never make."""
    names = fs.names(directory)
    strange = [name for name in names if name not in NAMES]
    for folder in {DATA, INDEX} & set(names):
        found = fs.names(os.path.join(directory, folder))
        strange += [f"{folder}/{name}" for name in found if not _fits(folder, name)]
    if strange:
        message = (
            f"mount point {directory!r} is not a volcache directory: it holds"
            f" {strange[0]!r}; give an empty or a new directory as mount_point"
        )
        raise ForeignDirectoryError(message)


def _fits(folder: str, name: str) -> bool:
    """Tell whether a file is named as ours are; a repair cut short leaves `3.new`."""
    if folder == INDEX:
        name = name.removesuffix(".new")
    return _is_id(name)


def _is_id(name: str) -> bool:
    """Tell whether a name is a number; `²` is a digit to `isdigit`, and none to `int`."""
    return name.isascii() and name.isdigit()


def _refuse_empty(fs: FileSystem, directory: str) -> None:
    """Raise when there is nothing in the directory that we make."""
    if not {META, DATA, INDEX} & set(fs.names(directory)):
        message = (
            f"mount point {directory!r} is not a volcache directory: it holds neither"
            f" {META} nor {DATA}/ nor {INDEX}/"
        )
        raise ForeignDirectoryError(message)


def _lock(fs: FileSystem, directory: str, lock_fd: int) -> None:
    """Lock the directory and leave our process id for people to read."""
    _take_lock(fs, directory, lock_fd)
    fs.truncate(lock_fd, 0)
    write_all(fs, lock_fd, b"%d\n" % os.getpid(), 0)


def _take_lock(fs: FileSystem, directory: str, lock_fd: int) -> None:
    if not fs.lock(lock_fd):
        holder = fs.pread(lock_fd, 32, 0).decode("ascii", "replace").strip()
        message = (
            f"mount point {directory!r} is in use by another process"
            f" (process id {holder or 'unknown'}); stop it, or give another mount_point"
        )
        raise StoreLockedError(message)


def unusable(directory: str, error: OSError) -> MountPointError:
    """Return the error for a directory the system does not let us use."""
    return MountPointError(
        f"mount point {directory!r} cannot be used: {error.strerror or error}"
        f" ({error.filename or directory}); check that it is a directory on a writable"
        " disk and that this user may write to it"
    )


def unreadable(directory: str, error: OSError) -> MountPointError:
    """Return the error for a directory the system does not let us look at."""
    return MountPointError(
        f"mount point {directory!r} cannot be read: {error.strerror or error}"
        f" ({error.filename or directory}); check that it is a directory and that this"
        " user may read it"
    )
