"""
Files and directories that keep synced and unsynced changes apart.

Each has three parts: what the process sees, what is safe on the disk, and the changes
between the two, in order. After a power loss there is the safe part, and of each later
change a random part: all of it, some of its sectors, or nothing, whatever is left of the
other changes. Only changes of one sector keep their order, as in a page cache.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512


class Write(NamedTuple):
    """A change of a file: bytes written, or a length set (`data` is None)."""

    offset: int
    data: bytes | None


class Entry(NamedTuple):
    """A change of a directory: `name` now refers to `node` (None: it was removed)."""

    name: str
    node: File | Directory | None
    source: str = ""  # a rename also removes this name, in the same step


class File:
    """An inode."""

    def __init__(self) -> None:
        """Begin empty and unsynced."""
        self.data = bytearray()
        self.safe = b""
        self.changes: list[Write] = []
        self.held = 0  # bytes that take space; what is behind is a hole

    def change(self, write: Write) -> None:
        """Apply a change to what the process sees, and record it as unsynced."""
        _apply(self.data, write)
        if write.data is None:
            self.held = min(self.held, write.offset)
        else:
            self.held = max(self.held, write.offset + len(write.data))
        self.changes.append(write)

    def __deepcopy__(self, _: object) -> File:
        """Copy the changes as they are: nothing changes them."""
        copy = File()
        copy.data, copy.safe = bytearray(self.data), self.safe
        copy.changes, copy.held = list(self.changes), self.held
        return copy

    def sync(self) -> None:
        """Make everything safe."""
        if self.changes:
            self.safe = bytes(self.data)
            self.changes.clear()


class Directory:
    """Names, and the files and directories they refer to."""

    def __init__(self) -> None:
        """Begin empty and unsynced."""
        self.names: dict[str, File | Directory] = {}
        self.safe: dict[str, File | Directory] = {}
        self.changes: list[Entry] = []

    def change(self, entry: Entry) -> None:
        """Apply a change to what the process sees, and record it as unsynced."""
        _apply_entry(self.names, entry)
        self.changes.append(entry)

    def __deepcopy__(self, memo: dict[int, object]) -> Directory:
        """Copy all below it; one inode stays one inode."""
        copy = Directory()
        copy.names = {name: deepcopy(node, memo) for name, node in self.names.items()}
        copy.safe = {name: deepcopy(node, memo) for name, node in self.safe.items()}
        copy.changes = [
            entry._replace(node=deepcopy(entry.node, memo)) for entry in self.changes
        ]
        return copy

    def sync(self) -> None:
        """Make everything safe."""
        self.safe = dict(self.names)
        self.changes.clear()


def is_one_bit_missing(file: File, offset: int, data: bytes, torn: int) -> bool:
    """
    Return whether a torn write differs from the whole one in a single bit.

    The record is then taken for a damaged one, so that its key is a miss: an older value
    must not be returned if it was acknowledged.
    """
    end = len(data.rstrip(b"\0"))  # Of the record: zeros fill the page.
    rest, there = data[torn:end], file.data[offset + torn : offset + end]
    if len(there) < len(rest):
        return False
    wrong = int.from_bytes(rest) ^ int.from_bytes(there)
    return wrong.bit_count() == 1


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


def _lose_bytes(file: File, dice: random.Random, kept: float) -> File:
    """Return the file with some of the sectors written since the last sync."""
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
    left.held = min(file.held, len(data))
    return left


def lose(
    directory: Directory,
    dice: random.Random,
    kept: float,
    files: dict[int, File | Directory],
) -> Directory:
    """
    Return what is left of a directory after a power loss.

    Args:
        directory: With all below it.
        dice: Decides for each unsynced change whether it has reached the disk.
        kept: The probability of that.
        files: Filled with what is left of each node, by the id of the original.
    """
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
                else lose(node, dice, kept, files)
            )
        left.names[name] = files[id(node)]
    left.safe = dict(left.names)
    return left
