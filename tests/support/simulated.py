"""
A disk in memory that can lose what was not synced.

Implements `store.files.FileSystem`. Every file and every directory holds three things:
what the process sees, what is safe on the disk, and the changes between the two in their
order. `after_kill` is what the next process finds: everything. `after_power_loss` is what
the next start of the machine finds: what is safe, and of each change since then whatever a
seeded dice says: all of it, some of its sectors, or nothing, each independent of the others
and so in any order. Only changes of one sector keep their order, as in a page cache.

`watch` is called before each call that changes something, which is where a test looks at
what a crash at that point would leave.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

SECTOR_BYTES: Final = 512


class Write(NamedTuple):
    """A change of a file: bytes written, or a length set (`data` is None)."""

    offset: int
    data: bytes | None


class Entry(NamedTuple):
    """A change of a directory: `name` now means `node` (None: it is gone)."""

    name: str
    node: File | Directory | None
    source: str = ""  # a rename also removes this name, in the same step


class File:
    """An inode."""

    def __init__(self) -> None:
        """Begin empty, and not on the disk."""
        self.data = bytearray()
        self.safe = b""
        self.changes: list[Write] = []

    def change(self, write: Write) -> None:
        """Apply a change to what the process sees, and remember it."""
        _apply(self.data, write)
        self.changes.append(write)

    def sync(self) -> None:
        """Make everything safe."""
        if self.changes:
            self.safe = bytes(self.data)
            self.changes.clear()


class Directory:
    """Names, and what they mean."""

    def __init__(self) -> None:
        """Begin empty, and not on the disk."""
        self.names: dict[str, File | Directory] = {}
        self.safe: dict[str, File | Directory] = {}
        self.changes: list[Entry] = []

    def change(self, entry: Entry) -> None:
        """Apply a change to what the process sees, and remember it."""
        _apply_entry(self.names, entry)
        self.changes.append(entry)

    def sync(self) -> None:
        """Make everything safe."""
        self.safe = dict(self.names)
        self.changes.clear()


class SimulatedFileSystem:
    """One machine's disk, as one process sees it."""

    def __init__(self, root: Directory | None = None) -> None:
        """Begin with an empty disk, or with what another one left."""
        self.root = root or Directory()
        self.watch: Callable[[str, bytes, File | None, int], None] | None = None
        self.operations = 0
        self.failing: dict[str, int] = {}  # operation: errno
        self.fail_at = 0  # The number of the one operation that fails, ...
        self.fail_with = 0  # ... with this error; 0: writes half of the bytes.
        self._open: dict[int, tuple[File, str]] = {}
        self._locked: set[int] = set()
        self._next_fd = 1000

    # --- What a crash leaves -------------------------------------------------------

    def after_kill(self, *, torn: int = 0) -> SimulatedFileSystem:
        """
        Return what the next process finds when this one dies now.

        Args:
            torn: Bytes of the write that is about to be done that still arrive.
        """
        copies: dict[int, File | Directory] = {}
        found = SimulatedFileSystem(_copy_directory(self.root, copies))
        if torn and self._about is not None:
            file, offset, data = self._about
            copy = copies.get(id(file))
            if isinstance(copy, File):
                copy.change(Write(offset, data[:torn]))
        return found

    def after_power_loss(self, dice: random.Random) -> SimulatedFileSystem:
        """Return what the machine finds when its power goes now."""
        kept = dice.choice([0.0, 0.3, 0.5, 0.8, 0.97, 1.0])
        return SimulatedFileSystem(_lose(self.root, dice, kept, {}))

    def go_on_from(self, before: SimulatedFileSystem) -> None:
        """Count, watch and fail as the disk before the crash would have."""
        self.operations = before.operations
        self.watch = before.watch
        self.fail_at, self.fail_with = before.fail_at, before.fail_with

    _about: tuple[File, int, bytes] | None = None

    def _operation(
        self, name: str, data: bytes = b"", file: File | None = None, offset: int = 0
    ) -> None:
        self.operations += 1
        if name in self.failing:
            code = self.failing[name]
            raise OSError(code, os.strerror(code))
        if self.operations == self.fail_at and self.fail_with:
            raise OSError(self.fail_with, os.strerror(self.fail_with))
        if self.watch is not None:
            self._about = None if file is None else (file, offset, data)
            self.watch(name, data, file, offset)
            self._about = None

    # --- Names ---------------------------------------------------------------------

    def _directory(self, path: str) -> Directory:
        node: File | Directory = self.root
        for part in _parts(path):
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            found = node.names.get(part)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            node = found
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        folder, name = os.path.split(path)
        return self._directory(folder), name

    def open(self, path: str, *, create: bool) -> int:
        """Open a file; see `FileSystem`."""
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._operation("create")
            node = File()
            folder.change(Entry(name, node))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self._next_fd += 1
        self._open[self._next_fd] = (node, path)
        return self._next_fd

    @property
    def descriptors(self) -> int:
        """How many files are open."""
        return len(self._open)

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        del self._open[fd]
        self._locked.discard(fd)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        node: Directory = self.root
        for part in _parts(path):
            found = node.names.get(part)
            if found is None:
                self._operation("make_directory")
                found = Directory()
                node.change(Entry(part, found))
            if not isinstance(found, Directory):
                raise FileExistsError(errno.EEXIST, "is a file", path)
            node = found

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return sorted(self._directory(path).names)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`; both in one directory."""
        folder, old = self._parent(source)
        other, new = self._parent(target)
        assert folder is other
        self._operation("rename")
        folder.change(Entry(new, folder.names[old], source=old))

    def unlink(self, path: str) -> None:
        """Remove a name."""
        folder, name = self._parent(path)
        if name in folder.names:
            self._operation("unlink")
            folder.change(Entry(name, None))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory safe."""
        self._operation("sync_directory")
        self._directory(path).sync()

    def free_bytes(self, path: str) -> int:
        """Tell how much room there is: always a little."""
        self._directory(path)
        return 4096

    # --- Bytes ---------------------------------------------------------------------

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read."""
        if "pread" in self.failing:
            self._operation("pread")
        return bytes(self._open[fd][0].data[offset : offset + length])

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write everything."""
        file, data = self._open[fd][0], b"".join(buffers)
        self._operation("pwritev", data, file, offset)
        if self.operations == self.fail_at:
            data = data[: len(data) // 2]
        file.change(Write(offset, data))
        return len(data)

    def size(self, fd: int) -> int:
        """Return the length of a file."""
        return len(self._open[fd][0].data)

    def allocate(self, fd: int, length: int) -> None:
        """Extend a file."""
        self._operation("allocate")
        file = self._open[fd][0]
        if len(file.data) < length:
            file.change(Write(length, None))

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of a file."""
        self._operation("truncate")
        self._open[fd][0].change(Write(length, None))

    def sync(self, fd: int) -> None:
        """Make the bytes of a file safe, not its name."""
        self._operation("sync")
        self._open[fd][0].sync()

    def lock(self, fd: int) -> bool:
        """Take a lock; whoever held it before is dead."""
        self._locked.add(fd)
        return True


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _apply(data: bytearray, write: Write) -> None:
    offset, new = write
    if new is None:
        del data[offset:]
        data.extend(bytes(offset - len(data)))
        return
    data.extend(bytes(max(0, offset - len(data))))
    data[offset : offset + len(new)] = new


def _apply_entry(names: dict[str, File | Directory], entry: Entry) -> None:
    if entry.source:
        names.pop(entry.source, None)
    if entry.node is None:
        names.pop(entry.name, None)
    else:
        names[entry.name] = entry.node


def _copy_file(file: File) -> File:
    copy = File()
    copy.data = bytearray(file.data)
    copy.safe = file.safe
    copy.changes = list(file.changes)
    return copy


def _copy(
    node: File | Directory, copies: dict[int, File | Directory]
) -> File | Directory:
    """Copy what is seen and what is not safe; one inode stays one inode."""
    if id(node) not in copies:
        copies[id(node)] = (
            _copy_file(node)
            if isinstance(node, File)
            else _copy_directory(node, copies)
        )
    return copies[id(node)]


def _copy_directory(
    directory: Directory, copies: dict[int, File | Directory]
) -> Directory:
    copy = Directory()
    copies[id(directory)] = copy
    copy.names = {name: _copy(node, copies) for name, node in directory.names.items()}
    copy.safe = {name: _copy(node, copies) for name, node in directory.safe.items()}
    copy.changes = [
        Entry(name, None if node is None else _copy(node, copies), source)
        for name, node, source in directory.changes
    ]
    return copy


def _lose_bytes(file: File, dice: random.Random, kept: float) -> File:
    """Return the file with some of the sectors that were written, or none of them."""
    data = bytearray(file.safe)
    for offset, new in file.changes:
        if new is None:
            if dice.random() < kept:
                _apply(data, Write(offset, None))
            continue
        start = offset
        while start < offset + len(new):
            end = min(offset + len(new), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if dice.random() < kept:
                _apply(data, Write(start, new[start - offset : end - offset]))
            start = end
    left = File()
    left.data, left.safe = data, bytes(data)
    return left


def _lose(
    directory: Directory,
    dice: random.Random,
    kept: float,
    files: dict[int, File | Directory],
) -> Directory:
    """Return a directory with some of the names that were made, or none of them."""
    names = dict(directory.safe)
    for entry in directory.changes:
        if dice.random() < kept:
            _apply_entry(names, entry)
    left = Directory()
    for name, node in names.items():
        if id(node) not in files:
            files[id(node)] = (
                _lose_bytes(node, dice, kept)
                if isinstance(node, File)
                else _lose(node, dice, kept, files)
            )
        left.names[name] = files[id(node)]
    left.safe = dict(left.names)
    return left
