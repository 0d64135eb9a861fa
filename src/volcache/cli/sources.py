"""
What `volcache load` reads: a folder, a tar archive, a list of files, or CacheFS' data.

Each is read once, in an order that is the same the next time. An archive or a list may come
from standard input. Values are read one at a time.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from volcache.cli.archive import ArchivedValue, LeftOutError, read_members
from volcache.cli.command import FileError
from volcache.cli.streams import STANDARD, reading, source_name
from volcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAGIC: Final = slice(257, 262)  # Of a header of tar: "ustar".
_MAGIC_TEXT: Final = b"ustar"


class Entry(NamedTuple):
    """A value that may be loaded."""

    name: bytes
    size: int
    why: str  # It cannot be loaded; empty: it can.
    read: Callable[[], bytes]  # Raises OSError, LeftOutError.
    # What else is known of it, after it was read.
    known: Callable[[bytes], ArchivedValue | None] = lambda _: None


class Source(NamedTuple):
    """Entries, and how far they are read."""

    entries: Iterator[Entry]
    total: int = 0  # Bytes of an archive; 0: unknown.
    position: Callable[[], int] = int  # Of `total`.


@contextmanager
def opened(name: str) -> Iterator[Source]:
    """
    Yield what a source has.

    Args:
        name: A folder, a file, or `-`: an archive or a list on standard input.

    Raises:
        ConfigError: It is a mount point of volcache, or a terminal.
        FileError: It cannot be read.
    """
    if name != STANDARD and Path(name).is_dir():
        path = os.fsencode(name)
        is_store = all(
            Path(name, one).exists() for one in ("META.txt", "data", "index")
        )
        yield Source(_of_cachefs(path) if is_store else _of_folder(path))
        return
    if name == STANDARD and sys.stdin is not None and sys.stdin.isatty():
        raise ConfigError("files are not read from a terminal; give SOURCE or a pipe")
    with reading(name) as file:
        head = file.peek(_MAGIC.stop) if hasattr(file, "peek") else b""
        if name == STANDARD and head[_MAGIC] != _MAGIC_TEXT:
            yield Source(_of_list(file))
            return
        total = 0 if name == STANDARD else os.fstat(file.fileno()).st_size
        yield Source(_of_archive(file, source_name(name)), total, file.tell)


def _of_archive(file: IO[bytes], name: str) -> Iterator[Entry]:
    for one in read_members(file, name):
        key = one.name.removeprefix(b"./")
        yield Entry(key, one.size, one.why, one.read, one.value_of)


def _of_list(file: IO[bytes]) -> Iterator[Entry]:
    """Yield the files that lines name; the lines are the keys."""
    for line in file:
        if path := line.rstrip(b"\n"):
            yield _of_file(path, path.removeprefix(b"./").lstrip(b"/"))


def _of_folder(folder: bytes) -> Iterator[Entry]:
    """Yield the files below a folder, sorted by name in each folder."""
    waiting = [folder]
    while waiting:
        below = waiting.pop()
        try:
            found = sorted(os.scandir(below), key=lambda one: one.name)
        except OSError as error:
            raise FileError(os.fsdecode(below), "read", error) from error
        for one in found:
            if not one.is_dir(follow_symlinks=False):
                yield _of_file(one.path, os.path.relpath(one.path, folder))
        waiting += (
            one.path for one in reversed(found) if one.is_dir(follow_symlinks=False)
        )


def _of_file(path: bytes, name: bytes) -> Entry:
    read = partial(Path(os.fsdecode(path)).read_bytes)
    try:
        info = os.stat(path)  # noqa: PTH116 - It is bytes.
    except OSError as error:
        return Entry(name, 0, f"cannot be read: {error.strerror}", read)
    why = "" if S_ISREG(info.st_mode) else "is not a regular file"
    return Entry(name, info.st_size, why, read)


# --- CacheFS -----------------------------------------------------------------------


def _of_cachefs(folder: bytes) -> Iterator[Entry]:
    """
    Yield what the volumes of CacheFS have, the oldest first.

    META.txt has the number of the volume that is being written, which has no index: its
    values cannot be found. A line of the index of another one is `key offset size`, where
    the record begins with the key; a line with the size 0 is a deletion. The volumes were
    written in turn, so an entry of a later one counts.

    Raises:
        ConfigError: META.txt is not that of CacheFS.
        FileError: An index cannot be read.
    """
    try:
        active = int(Path(os.fsdecode(folder), "META.txt").read_bytes()[:20])
    except ValueError:
        raise ConfigError(
            f"{os.fsdecode(folder)}: META.txt is not that of CacheFS; of a mount point of"
            " volcache, load what volcache export writes"
        ) from None
    found: dict[bytes, tuple[int, int, int]] = {}
    names = [one.name for one in os.scandir(folder + b"/index")]
    numbers = [int(name) for name in names if name.isdigit()]
    for number in sorted(numbers, key=lambda one: (one < active, one)):
        if number != active:
            _add_index(folder, number, found)
    for key, (number, offset, size) in found.items():
        read = partial(_cachefs_value, folder, number, offset, size, key)
        yield Entry(key, max(0, size - len(key)), "", read)


def _add_index(
    folder: bytes, number: int, found: dict[bytes, tuple[int, int, int]]
) -> None:
    path = folder + b"/index/%d" % number
    try:
        lines = Path(os.fsdecode(path)).read_bytes().split(b"\n")
    except OSError as error:
        raise FileError(os.fsdecode(path), "read", error) from error
    for line in filter(None, lines):
        key, *numbers = line.rsplit(b" ", 2)
        if len(numbers) != 2 or not all(map(bytes.isdigit, numbers)):  # noqa: PLR2004
            raise FileError(
                os.fsdecode(path), "read", OSError(f"{line[:80]!r} is not an entry")
            )
        offset, size = map(int, numbers)
        # It writes a deletion with one more zero.
        found.pop(key if size else key.removesuffix(b" 0"), None)
        if size:
            found[key] = number, offset, size


def _cachefs_value(
    folder: bytes, number: int, offset: int, size: int, key: bytes
) -> bytes:
    with Path(os.fsdecode(folder), "data", str(number)).open("rb") as file:
        file.seek(offset)
        record = file.read(size)
    if len(record) != size or not record.startswith(key):
        raise LeftOutError("its volume was overwritten, or is damaged")
    return record[len(key) :]
