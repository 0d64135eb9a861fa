"""
The files of a folder, one after the other, by their paths as bytes.

Follows no link and opens nothing but regular files, so that nothing outside of the folder
is read and nothing is waited for. What cannot be had is told, never raised.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import ValueTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_STEP_BYTES: Final = 64 * 1024  # at a time, of a file that grows while it is read


class Entry(NamedTuple):
    """A file of a folder, or why something in it is none."""

    path: bytes  # below the folder, without a slash before it
    file: bytes  # the same with the folder before it
    size: int
    why: str  # Empty: it is a file.


def walk(folder: bytes) -> Iterator[Entry]:
    """
    Yield what is in a folder and below it, folders themselves only if unreadable.

    In the order of the names, the files of a folder before those of folders in it.
    """
    root = folder.rstrip(b"/") + b"/"
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            yield Entry(path[len(root) :], path, 0, unreadable(error))
            continue
        folders = []
        for entry in entries:
            if _is_folder(entry):
                folders.append(entry.path)
            else:
                size, why = _look_at(entry)
                yield Entry(entry.path[len(root) :], entry.path, size, why)
        waiting += reversed(folders)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False  # `_look_at` meets the error again, and says it.


def _look_at(entry: os.DirEntry[bytes]) -> tuple[int, str]:
    """Return the length of a file, or why it is none."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return 0, unreadable(error)
    if stat.S_ISLNK(status.st_mode):
        return 0, "is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return 0, "is no regular file"
    return status.st_size, ""


def read_value(path: bytes, size_max: int) -> bytes:
    """
    Return all of a file.

    Args:
        path: Of a regular file.
        size_max: The most that is read, also of a file that grows meanwhile.

    Raises:
        OSError: It cannot be read, or is something else by now.
        ValueTooLargeError: It has more than `size_max` bytes.
    """
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        parts: list[bytes] = []
        length, step = status.st_size, status.st_size + 1
        if length <= size_max:
            length = 0
            while length <= size_max and (part := os.read(fd, step)):
                parts.append(part)
                length += len(part)
                step = _STEP_BYTES
    finally:
        os.close(fd)
    if length > size_max:
        raise ValueTooLargeError(size=length, limit=size_max)
    return b"".join(parts)


def unreadable(error: OSError) -> str:
    """Return in words why something cannot be read."""
    return f"cannot be read: {error.strerror or error}"
