"""
The directory of a store: its names, its lock and META.txt.

Refuses a directory that belongs to something else before it changes anything in it. The
contents of volumes and index files are read elsewhere.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from volcache.errors import (
    ForeignDirectoryError,
    FormatVersionError,
    MountPointError,
    StoreLockedError,
)
from volcache.store.files import JournalFile, read_file, replace_file, write_all
from volcache.store.format import VERSION
from volcache.store.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_version,
)

if TYPE_CHECKING:
    from volcache.store.files import FileSystem

_logger = logging.getLogger("volcache.store")

LOCK: Final = "LOCK"
META: Final = "META.txt"
HOT: Final = "HOT.txt"
DATA: Final = "data"
INDEX: Final = "index"
# mkfs creates lost+found at the root of every ext file system.
NAMES: Final = frozenset(
    {LOCK, META, META + ".new", HOT, HOT + ".new", DATA, INDEX, "lost+found"}
)


class StoreDirectory:
    """
    One locked directory.

    Attributes:
        fs: The file system.
        root, data, index: Absolute paths of the directory and its two folders.
    """

    def __init__(self, fs: FileSystem, root: str, lock_fd: int | None) -> None:
        """Use `StoreDirectory.open` or `StoreDirectory.inspect`."""
        self.fs = fs
        self.root = root
        self.data = os.path.join(root, DATA)
        self.index = os.path.join(root, INDEX)
        self._meta = os.path.join(root, META)
        self.hot = os.path.join(root, HOT)
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> Self:
        """
        Lock a directory for writing; create it and its folders where they are missing.

        Raises:
            ForeignDirectoryError: It contains other files; nothing was changed.
            StoreLockedError: Another process has locked it.
            FormatVersionError: It was written by a newer volcache.
            MountPointError: It cannot be created, read or written.
        """
        try:
            _create_durably(fs, os.path.abspath(path))
            _refuse_foreign(fs, path)
            lock_fd = fs.open(os.path.join(path, LOCK), create=True)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            _lock(fs, path, lock_fd)
            self = cls(fs, os.path.abspath(path), lock_fd)
            self._refuse_newer()
            fs.make_directory(self.data)
            fs.make_directory(self.index)
            fs.sync_directory(self.root)
        except OSError as error:
            fs.close(lock_fd)
            raise unusable(path, error) from error
        except BaseException:
            fs.close(lock_fd)
            raise
        return self

    @classmethod
    def inspect(cls, fs: FileSystem, path: str) -> Self:
        """
        Lock a directory for reading; nothing is created or written.

        Raises:
            ForeignDirectoryError: It contains no part of a store.
            StoreLockedError: A process serves it.
            FormatVersionError: It was written by a newer volcache.
            MountPointError: It cannot be read.
        """
        lock_fd = None
        try:
            _refuse_empty(fs, path)
            with suppress(FileNotFoundError):
                lock_fd = fs.open(os.path.join(path, LOCK), create=False)
                _take_lock(fs, path, lock_fd)
            self = cls(fs, os.path.abspath(path), lock_fd)
            self._refuse_newer()
        except OSError as error:
            if lock_fd is not None:
                fs.close(lock_fd)
            raise unreadable(path, error) from error
        except BaseException:
            if lock_fd is not None:
                fs.close(lock_fd)
            raise
        return self

    def close(self) -> None:
        """Release the lock."""
        if self._lock_fd is not None:
            self.fs.close(self._lock_fd)

    def data_path(self, volume: int) -> str:
        """Return the path of the data file of a volume."""
        return os.path.join(self.data, str(volume))

    def index_path(self, volume: int) -> str:
        """Return the path of the index file of a volume."""
        return os.path.join(self.index, str(volume))

    def volume_ids(self) -> list[int]:
        """Return the ids of all data files, in order."""
        return sorted(int(name) for name in self.fs.names(self.data) if _is_id(name))

    def read_manifest(self) -> tuple[Manifest | None, bool]:
        """
        Read META.txt.

        Returns:
            The manifest, None if it is missing or damaged; and whether the file exists.

        Raises:
            OSError: It cannot be read.
        """
        data = read_file(self.fs, self._meta)
        if data is None:
            return None, False
        return decode_manifest(data), True

    def write_manifest(self, manifest: Manifest) -> None:
        """
        Replace META.txt durably and atomically.

        Raises:
            OSError: The old one is still in place.
        """
        replace_file(self.fs, self._meta, encode_manifest(manifest))

    def journal(self) -> JournalFile:
        """Return HOT.txt, the journal of the hot tier."""
        return JournalFile(self.fs, self.hot)

    def _refuse_newer(self) -> None:
        version = manifest_version(read_file(self.fs, self._meta) or b"")
        if version is not None and version > VERSION:
            refuse_newer(self.root, META, version)


def read_beginning(directory: StoreDirectory, fd: int, length: int) -> bytes:
    """Read the first bytes of a file; empty if they cannot be read."""
    try:
        return directory.fs.pread(fd, length, 0)
    except OSError as error:
        _logger.warning("recovery.header_unreadable error=%r", str(error))
        return b""


def read_whole(directory: StoreDirectory, path: str) -> bytes:
    """Read a file; empty if it is missing or cannot be read."""
    try:
        return read_file(directory.fs, path) or b""
    except OSError as error:
        _logger.warning("recovery.file_unreadable path=%r error=%r", path, str(error))
        return b""


def refuse_newer(root: str, name: str, version: int) -> None:
    """Raise the error for a file of a format version that this code cannot read."""
    message = (
        f"mount point {root!r} was written by a newer volcache: {name} has format"
        f" {version}, this one reads up to {VERSION}; start the newer volcache, or give"
        " another mount_point"
    )
    raise FormatVersionError(message)


def _create_durably(fs: FileSystem, path: str) -> None:
    """Create a directory and its parents so that they survive a power loss."""
    created_in = []
    parent = path
    while not _exists(fs, parent) and parent != os.path.dirname(parent):
        parent = os.path.dirname(parent)
        created_in.append(parent)
    fs.make_directory(path)
    for parent in reversed(created_in):
        fs.sync_directory(parent)


def _exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.names(path)
    except FileNotFoundError:
        return False
    except OSError:  # It exists but cannot be listed: creating it reports the error.
        return True
    return True


def _refuse_foreign(fs: FileSystem, path: str) -> None:
    """Raise if the directory contains a name that a store never creates."""
    names = fs.names(path)
    foreign = [name for name in names if name not in NAMES]
    for folder in {DATA, INDEX} & set(names):
        found = fs.names(os.path.join(path, folder))
        foreign += [f"{folder}/{name}" for name in found if not _fits(folder, name)]
    if foreign:
        message = (
            f"mount point {path!r} is not a volcache directory: it contains"
            f" {foreign[0]!r}; give an empty or a new directory as mount_point"
        )
        raise ForeignDirectoryError(message)


def _fits(folder: str, name: str) -> bool:
    """Return whether a store creates this name; an interrupted repair leaves `3.new`."""
    if folder == INDEX:
        name = name.removesuffix(".new")
    return _is_id(name)


def _is_id(name: str) -> bool:
    """Return whether a name is a number; `isdigit` alone also accepts `²`."""
    return name.isascii() and name.isdigit()


def _refuse_empty(fs: FileSystem, path: str) -> None:
    """Raise if the directory contains no part of a store."""
    if not {META, DATA, INDEX} & set(fs.names(path)):
        message = (
            f"mount point {path!r} is not a volcache directory: it contains neither"
            f" {META} nor {DATA}/ nor {INDEX}/"
        )
        raise ForeignDirectoryError(message)


def _lock(fs: FileSystem, path: str, lock_fd: int) -> None:
    """Lock the directory and write the process id into the lock file."""
    _take_lock(fs, path, lock_fd)
    fs.truncate(lock_fd, 0)
    write_all(fs, lock_fd, b"%d\n" % os.getpid(), 0)


def _take_lock(fs: FileSystem, path: str, lock_fd: int) -> None:
    if not fs.lock(lock_fd):
        holder = fs.pread(lock_fd, 32, 0).decode("ascii", "replace").strip()
        message = (
            f"mount point {path!r} is in use by another process"
            f" (process id {holder or 'unknown'}); stop it, or give another mount_point"
        )
        raise StoreLockedError(message)


def unusable(path: str, error: OSError) -> MountPointError:
    """Return the error for a directory that cannot be written."""
    return MountPointError(
        f"mount point {path!r} cannot be used: {error.strerror or error}"
        f" ({error.filename or path}); check that it is a directory on a writable"
        " disk and that this user may write to it"
    )


def unreadable(path: str, error: OSError) -> MountPointError:
    """Return the error for a directory that cannot be read."""
    return MountPointError(
        f"mount point {path!r} cannot be read: {error.strerror or error}"
        f" ({error.filename or path}); check that it is a directory and that this"
        " user may read it"
    )
