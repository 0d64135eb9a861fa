"""
A disk in memory that can lose what was not synced.

Implements `store.files.FileSystem` over the files of `unsynced.py`, which keep synced and
unsynced changes apart. `after_kill` returns what the next process finds: everything.
`after_power_loss` returns what is left when the machine starts again.

`watch` is called before each operation that changes the disk, with its name and what it
writes, so that a test can examine what a crash at that point would leave.

A folder of the real disk, on which the core makes its system calls by itself, is in
`stores.py`. The disk of a server process is replaced in the C library (`machine.c`).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from support.stores import Crash
from support.unsynced import (
    Directory,
    Entry,
    File,
    Write,
    is_one_bit_missing,
    lose,
)
from volcache.store.files import STAT_BLOCK_BYTES, Space

_UNLIMITED: Final = 1 << 50


class SimulatedFileSystem:
    """One machine's disk, as one process sees it."""

    def __init__(self, root: Directory | None = None) -> None:
        """Begin with an empty disk, or with the content of another."""
        self.root = root or Directory()
        self.watch: Callable[[str, bytes], None] | None = None
        self.operations = 0
        self.boots = 1
        self.failing: dict[str, int] = {}  # operation: errno
        self.failing_writes: dict[str, int] = {}  # path of a file or folder: errno
        self.refused_writes = 0  # Those of `failing_writes`.
        self.capacity = _UNLIMITED  # bytes
        self.refusals = 0  # for want of space
        self.is_read_only = False
        self.fail_at = 0  # Number of the first operation that fails, ...
        self.fail_for = 1  # ... of so many, ...
        self.fail_with = 0  # ... with this errno; 0: it writes half of the bytes.
        self.fail_share = 0.0  # Of the bytes of a write that are written if it fails.
        self._open: dict[int, tuple[File, str]] = {}
        self._locked: set[int] = set()
        self._next_fd = 1000

    # --- What a crash leaves -------------------------------------------------------

    def after_kill(
        self, *, torn: int = 0, is_continued: bool = False
    ) -> SimulatedFileSystem:
        """
        Return what the next process finds when this one dies now.

        Args:
            torn: How many bytes of the write that is about to happen are written; none
                unless `tears`.
            is_continued: Go on to count operations, to the one that fails.
        """
        copies: dict[int, Any] = {}
        found = SimulatedFileSystem(deepcopy(self.root, copies))
        if self._about is not None and self.tears(torn):
            file, offset, data = self._about
            if id(file) in copies:  # It has a name.
                copies[id(file)].change(Write(offset, data[:torn]))
        found.boots = self.boots
        found.capacity = self.capacity
        if is_continued:
            found.operations = self.operations
            found.fail_at, found.fail_with = self.fail_at, self.fail_with
        return found

    def tears(self, torn: int) -> bool:
        """Return whether a write of that many bytes is told from the whole write."""
        return self._about is not None and not is_one_bit_missing(*self._about, torn)

    def dying(
        self,
        survive: int,
        run: Callable[[], object],
        crash: Callable[[int], SimulatedFileSystem] | None = None,
    ) -> SimulatedFileSystem | None:
        """
        Run something that dies in a change of the disk; return what that leaves.

        Args:
            survive: How many changes it survives.
            run: What is run; the result is None if it ends.
            crash: What is left at a write of that many bytes; by default, as by a kill.
        """
        left, dead = survive, list[SimulatedFileSystem]()

        def watch(_name: str, data: bytes) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                dead.append((crash or (lambda _: self.after_kill()))(len(data)))
                raise Crash

        self.watch = watch
        with suppress(Crash):
            run()
        self.watch = None
        return dead[0] if dead else None

    def after_power_loss(self, dice: random.Random) -> SimulatedFileSystem:
        """Return what the machine finds after a power loss at this moment."""
        kept = dice.choice([0.0, 0.3, 0.5, 0.8, 0.97, 1.0])
        found = SimulatedFileSystem(lose(self.root, dice, kept, {}))
        found.boots = self.boots + 1
        found.capacity = self.capacity
        return found

    _about: tuple[File, int, bytes] | None = None

    def _operation(
        self, name: str, data: bytes = b"", file: File | None = None, offset: int = 0
    ) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self._refuse(name)
        if self.watch is not None:
            self._about = None if file is None else (file, offset, data)
            self.watch(name, data)
            self._about = None

    def _refuse(self, name: str) -> None:
        """Count an operation, and refuse it if it is to fail."""
        self.operations += 1
        if name in self.failing:
            code = self.failing[name]
            raise OSError(code, os.strerror(code))
        since = self.operations - self.fail_at
        if self.fail_at and 0 <= since < self.fail_for and self.fail_with:
            raise OSError(self.fail_with, os.strerror(self.fail_with))

    def recover(self) -> None:
        """Refuse nothing from now on."""
        self.fail_at = 0
        self.failing.clear()
        self.failing_writes.clear()

    def file(self, path: str) -> File:
        """Return a file, whose bytes a test may read and damage."""
        folder, name = self._parent(path)
        found = folder.names[name]
        assert isinstance(found, File)
        return found

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
        """Number of open descriptors."""
        return len(self._open)

    def close(self, fd: int) -> None:
        """Close a descriptor; it may be only now that what was written is refused."""
        del self._open[fd]
        self._locked.discard(fd)
        if not self.is_read_only:
            self._refuse("close")

    def make_directory(self, path: str, *, is_part: bool = False) -> None:  # noqa: ARG002
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
            if isinstance(folder.names[name], Directory):
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            self._operation("unlink")
            folder.change(Entry(name, None))

    def sync_directory(self, path: str) -> None:
        """Sync the names in a directory."""
        self._operation("sync_directory")
        self._directory(path).sync()

    def space(self, path: str) -> Space:
        """Return what is left of `capacity`."""
        if "space" in self.failing:
            self._refuse("space")
        self._directory(path)
        free = max(0, self.capacity - self.used)
        return Space(free, self.capacity, self.is_read_only)

    @property
    def used(self) -> int:
        """The bytes of all files; a name takes no space."""
        return _used(self.root, {})

    def _take(self, file: File, length: int) -> None:
        """Refuse to let a file grow if there is no space."""
        grows = length - file.held
        if (
            grows > 0
            and self.capacity < _UNLIMITED
            and (self.used + grows > self.capacity)
        ):
            self.refusals += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # --- Bytes ---------------------------------------------------------------------

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read."""
        if "pread" in self.failing:
            self._operation("pread")
        return bytes(self._open[fd][0].data[offset : offset + length])

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write everything."""
        (file, path), data = self._open[fd], b"".join(buffers)
        try:
            self._refuse_write(path)
            self._operation("pwritev", data, file, offset)
        except OSError:
            if part := data[: int(self.fail_share * len(data))]:
                file.change(Write(offset, part))
            raise
        if self.operations == self.fail_at:
            data = data[: len(data) // 2]
        self._take(file, offset + len(data))
        file.change(Write(offset, data))
        return len(data)

    def _refuse_write(self, path: str) -> None:
        """Refuse a write to one of `failing_writes`."""
        for prefix, code in self.failing_writes.items():
            if path.startswith(prefix):
                self.refused_writes += 1
                raise OSError(code, os.strerror(code))

    def allocate(self, fd: int, length: int, start: int = 0) -> None:
        """Extend a file, or the part of it that takes space."""
        self._operation("allocate")
        file = self._open[fd][0]
        assert start <= file.held
        self._take(file, length)
        if len(file.data) < length:
            file.change(Write(length, None))
        file.held = max(file.held, length)

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of a file."""
        self._operation("truncate")
        self._open[fd][0].change(Write(length, None))

    def sync(self, fd: int) -> None:
        """Sync the bytes of a file, not its name."""
        self._operation("sync")
        self._open[fd][0].sync()

    def open_directory(self, path: str) -> int:
        """Open a directory, to lock it."""
        self._directory(path)
        self._next_fd += 1
        self._open[self._next_fd] = (File(), path)
        return self._next_fd

    def stat(self, file: int | str) -> os.stat_result:
        """Return length, space, device and inode, and no time; a hole is at the end."""
        if isinstance(file, int):
            node: File | Directory = self._open[file][0]
        else:
            folder, name = self._parent(file)
            node = folder.names[name]
        size = len(node.data) if isinstance(node, File) else 0
        held = node.held if isinstance(node, File) else 0
        blocks = -(-held // STAT_BLOCK_BYTES)
        more = {"st_blocks": blocks, "st_ctime_ns": 0}
        return os.stat_result((0, id(node), 1, 1, 0, 0, size, 0, 0, 0), more)

    def boot_id(self) -> str:
        """Return a number that grows with each power loss."""
        return f"boot {self.boots}"

    def lock(self, fd: int) -> bool:
        """Take a lock; the process that held it before is dead."""
        self._locked.add(fd)
        return True


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _used(node: File | Directory, seen: dict[int, int]) -> int:
    """Return the bytes of all files below a node, each once."""
    if isinstance(node, Directory):
        return sum(_used(found, seen) for found in node.names.values())
    if id(node) in seen:
        return 0
    seen[id(node)] = 1
    return node.held
