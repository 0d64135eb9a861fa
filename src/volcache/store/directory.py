"""
The directory of a store: its names, its locks, META.txt, LOCK, PURGE.txt and HOT.txt.

Refuses a directory that belongs to something else before it changes anything in it. The
contents of volumes and index files are read elsewhere.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from volcache.checksum import crc32c
from volcache.errors import (
    ForeignDirectoryError,
    FormatVersionError,
    MountPointError,
    StoreLockedError,
    TooFewDescriptorsError,
)
from volcache.store.files import (
    DISK_FULL,
    STAT_BLOCK_BYTES,
    TOO_MANY_FILES,
    close_all,
    descriptor_limit,
    read_file,
    replace_file,
    write_all,
)
from volcache.store.format import VERSION, VOLUME_ID_MAX
from volcache.store.manifest import (
    PURGE,
    Progress,
    decode_progress,
    encode_manifest,
    encode_progress,
    manifest_version,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from volcache.store.files import FileSystem
    from volcache.store.manifest import Manifest

_logger = logging.getLogger("volcache.store")

LOCK: Final = "LOCK"
META: Final = "META.txt"
HOT: Final = "HOT.txt"
SOCKET: Final = "socket"
DATA: Final = "data"
INDEX: Final = "index"
# mkfs creates lost+found at the root of every ext file system.
NAMES: Final = frozenset(
    {
        *(LOCK, DATA, INDEX, SOCKET, "lost+found"),
        *(META, META + ".new", HOT, HOT + ".new", PURGE, PURGE + ".new"),
    }
)
_LOCK_BYTES_MAX: Final = 4096


class StoreDirectory:
    """
    One locked directory.

    Attributes:
        fs: The file system.
        root, data, index: Absolute paths of the directory and its two folders.
        progress: What the process that served it before has left in LOCK, the newest
            volume first.
        boot: A number that changes when the machine boots; 0: not known.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        """Use `StoreDirectory.open`."""
        self.fs = fs
        self.root = root
        # Of the directory, and of LOCK if it is there.
        self._descriptors: list[int] = []
        self.data = os.path.join(root, DATA)
        self.index = os.path.join(root, INDEX)
        self.progress: Sequence[Progress] = ()
        boot_id = fs.boot_id()
        self.boot = crc32c(boot_id.encode()) if boot_id else 0

    @classmethod
    def open(cls, fs: FileSystem, path: str, *, is_written: bool = True) -> Self:
        """
        Lock a directory.

        Args:
            fs: The file system.
            path: Of the directory.
            is_written: Create it and its folders where they are missing. Otherwise,
                nothing is created or written, and other readers may lock it, too.

        Raises:
            ForeignDirectoryError: It contains other files, and nothing was changed; or it
                is only read and contains no part of a store.
            StoreLockedError: Another process has locked it.
            FormatVersionError: It was written by another version of volcache.
            MountPointError: It cannot be created, read or written.
        """
        self = cls(fs, os.path.abspath(path))
        try:
            self._acquire(path, is_written=is_written)
        except OSError as error:
            self.close()
            raise (unusable if is_written else unreadable)(path, error) from error
        except BaseException:
            self.close()
            raise
        return self

    def _acquire(self, path: str, *, is_written: bool) -> None:
        fs, root = self.fs, self.root
        if is_written:
            _create_durably(fs, root)
            _refuse_foreign(fs, path)
        else:
            _refuse_empty(fs, path)
        # LOCK can be removed by hand; the lock of the directory itself remains.
        self._descriptors.append(fs.open_directory(root))
        _lock(fs, path, self._descriptors[0])
        try:
            lock_fd = fs.open(os.path.join(root, LOCK), create=is_written)
        except FileNotFoundError:
            if is_written:
                raise
        else:
            self._descriptors.append(lock_fd)
            _lock(fs, path, lock_fd)
            self.progress = decode_progress(fs.pread(lock_fd, _LOCK_BYTES_MAX, 0))
        self.refuse_version(META, manifest_version(self.read(META) or b""))
        if is_written:
            self._sign_lock()
            fs.make_directory(self.data, is_part=True)
            fs.make_directory(self.index, is_part=True)
            fs.sync_directory(root)

    def close(self) -> None:
        """Release the locks; again, do nothing."""
        descriptors, self._descriptors = self._descriptors, []
        close_all(self.fs, descriptors)

    def _sign_lock(self) -> None:
        """Write the process id into LOCK; keep what the process before has written."""
        try:
            self._replace_lock(encode_progress(*self.progress))
        except OSError as error:
            # It is locked. On a full disk, the process id may be missing.
            if error.errno not in DISK_FULL:
                raise

    def _replace_lock(self, line: bytes) -> None:
        content, fd = _process_line() + line, self._descriptors[1]
        write_all(self.fs, fd, content, 0)
        self.fs.truncate(fd, len(content))

    def clear_progress(self) -> None:
        """
        Remove all but the first line of LOCK: it does not fit a changed META.txt.

        Synced: META.txt may have a lower sequence number from now on.

        Raises:
            OSError: It may still be there.
        """
        self._replace_lock(b"")
        self.fs.sync(self._descriptors[1])

    def write_progress(self, first: Progress, second: Progress) -> None:
        """
        Overwrite the second and third line of LOCK. Not synced.

        Raises:
            OSError: The lines may be damaged, which is the same as none.
        """
        line = _process_line() + encode_progress(first, second)
        write_all(self.fs, self._descriptors[1], line, 0)

    def data_path(self, volume: int) -> str:
        """Return the path of the data file of a volume."""
        return os.path.join(self.data, str(volume))

    def index_path(self, volume: int) -> str:
        """Return the path of the index file of a volume."""
        return os.path.join(self.index, str(volume))

    def volume_ids(self) -> list[int]:
        """Return the ids of all data files, in order."""
        return _ids(self.fs.names(self.data))

    def index_ids(self) -> list[int]:
        """Return the ids of all index files, in order; none if there is no folder."""
        try:
            return _ids(self.fs.names(self.index))
        except OSError:
            return []

    def read(self, name: str) -> bytes | None:
        """
        Read META.txt, PURGE.txt or HOT.txt; None if it is missing.

        Raises:
            OSError: It cannot be read.
        """
        return read_file(self.fs, os.path.join(self.root, name))

    def replace(self, name: str, data: bytes) -> None:
        """
        Replace one of these files durably and atomically.

        Raises:
            OSError: The old one or the new one is in place.
        """
        replace_file(self.fs, os.path.join(self.root, name), data)

    def append(self, name: str, data: bytes, end: int) -> None:
        """
        Write durably at the end of one of these files.

        Raises:
            OSError: A part of it may have been written.
        """
        fd = self.fs.open(os.path.join(self.root, name), create=False)
        try:
            write_all(self.fs, fd, data, end)
            self.fs.sync(fd)
        finally:
            self.fs.close(fd)

    def write_manifest(self, manifest: Manifest) -> None:
        """
        Replace META.txt durably and atomically.

        Raises:
            OSError: The old one is still in place.
        """
        self.replace(META, encode_manifest(manifest))

    def remove(self, name: str) -> None:
        """
        Remove one of these files; not synced.

        Raises:
            OSError: It is still there.
        """
        self.fs.unlink(os.path.join(self.root, name))

    def identify_hot(self) -> str:
        """
        Return what no copy of HOT.txt has in common with it.

        Raises:
            OSError: There is none.
        """
        found = self.fs.stat(os.path.join(self.root, HOT))
        return f"{found.st_ino} {found.st_ctime_ns}"

    def remove_hot(self) -> None:
        """
        Remove HOT.txt durably.

        Raises:
            OSError: It may still be there.
        """
        self.remove(HOT)
        self.fs.sync_directory(self.root)

    def open_data_files(self, descriptors: dict[int, int]) -> None:
        """
        Open the data files that exist.

        Args:
            descriptors: Is filled, by volume id.

        Raises:
            OSError: One cannot be opened; those before are in `descriptors`.
        """
        for volume in self.volume_ids():
            if volume <= VOLUME_ID_MAX:
                path = self.data_path(volume)
                descriptors[volume] = self.fs.open(path, create=False)

    def create_data_files(self, ids: set[int], descriptors: dict[int, int]) -> None:
        """
        Create the data files that are missing, so that none can fail later.

        Those that a full disk refuses are not used before the next start.

        Args:
            ids: Of all volumes.
            descriptors: Of the data files that exist; is added to.

        Raises:
            OSError: The disk refused for another reason, or there is none at all.
        """
        for volume in sorted(ids - set(descriptors)):
            try:
                descriptors[volume] = self.fs.open(self.data_path(volume), create=True)
            except OSError as error:
                if error.errno not in DISK_FULL or not descriptors:
                    raise
                break
        # fdatasync makes the bytes of a file safe, but not its name.
        self.fs.sync_directory(self.data)

    def file_sizes(self) -> tuple[dict[int, tuple[int, int]], int]:
        """
        Return length and bytes on the disk of each data file; those of all index files.

        Raises:
            OSError: The disk does not answer.
        """
        stat, size = self.fs.stat, STAT_BLOCK_BYTES
        found = {volume: stat(self.data_path(volume)) for volume in self.volume_ids()}
        data = {n: (one.st_size, one.st_blocks * size) for n, one in found.items()}
        index = sum(stat(self.index_path(one)).st_blocks for one in self.index_ids())
        return data, index * size

    def remove_index_file(self, volume: int) -> None:
        """
        Remove an index file, so that none of its entries are used for the next volume.

        A directory in its place stays: it contains no entries, but may contain something
        of value.

        Raises:
            OSError: The file may still exist.
        """
        with suppress(IsADirectoryError):
            self.fs.unlink(self.index_path(volume))

    def read_index_file(self, volume: int) -> bytes:
        """Read the index file of a volume; empty if it is missing or cannot be read."""
        path = self.index_path(volume)
        try:
            return read_file(self.fs, path) or b""
        except OSError as error:
            _logger.warning(
                "recovery.file_unreadable path=%r error=%r", path, str(error)
            )
            return b""

    def refuse_version(self, name: str, version: int | None) -> None:
        """
        Refuse a file of a format version that this code cannot read; None: it has none.

        Raises:
            FormatVersionError: The version is another one.
        """
        if version is None or version == VERSION:
            return
        if version > VERSION:
            why = (
                f"was written by a newer volcache: {name} has format {version}, this one"
                f" reads {VERSION}; start the newer volcache, or give another mount_point"
            )
        else:
            why = (
                f"has the old format {version} ({name}), which was never released; this"
                f" volcache reads format {VERSION}: give another mount_point, or remove the"
                " files in this one to begin with an empty cache"
            )
        raise FormatVersionError(f"mount point {self.root!r} {why}")


def _process_line() -> bytes:
    return b"%d\n" % os.getpid()


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
    except OSError as error:
        # If it exists but cannot be listed, creating it reports the error.
        return not isinstance(error, FileNotFoundError)
    return True


def _refuse_foreign(fs: FileSystem, path: str) -> None:
    """Raise if the directory contains a name that a store never creates."""
    names = sorted(fs.names(path))
    foreign = [name for name in names if name not in NAMES]
    for folder in {DATA, INDEX} & set(names):
        found = sorted(fs.names(os.path.join(path, folder)))
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


def _ids(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if _is_id(name))


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


def _lock(fs: FileSystem, path: str, fd: int) -> None:
    if not fs.lock(fd):
        found = read_file(fs, os.path.join(path, LOCK)) or b""
        holder = found.split(b"\n")[0][:32].decode("ascii", "replace").strip()
        message = (
            f"mount point {path!r} is in use by another process"
            f" (process id {holder or 'unknown'}); stop it, or give another mount_point"
        )
        raise StoreLockedError(message)


def unusable(path: str, error: OSError) -> MountPointError:
    """Return the error for a directory that cannot be written."""
    if error.errno in TOO_MANY_FILES:
        return TooFewDescriptorsError(path, limit=descriptor_limit())
    return MountPointError(
        f"mount point {path!r} cannot be used: {error.strerror or error}"
        f" ({error.filename or path}); check that it is a directory on a writable"
        " disk and that this user may write to it"
    )


def unreadable(path: str, error: OSError) -> MountPointError:
    """Return the error for a directory that cannot be read."""
    if error.errno in TOO_MANY_FILES:
        return TooFewDescriptorsError(path, limit=descriptor_limit())
    return MountPointError(
        f"mount point {path!r} cannot be read: {error.strerror or error}"
        f" ({error.filename or path}); check that it is a directory and that this"
        " user may read it"
    )
