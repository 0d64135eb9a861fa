"""
The files of a folder and of the folders in it, with their paths as bytes.

Links are not followed and only regular files are opened, so that nothing outside of the
folder is read and no read blocks. What cannot be read is yielded with the reason; no
error is raised.
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
_STEP_BYTES: Final = 64 * 1024  # Per read, of a file that grows while it is read.
_NOT_REGULAR: Final = "is not a regular file"
_WHY: Final = {stat.S_IFREG: "", stat.S_IFLNK: "is a symbolic link"}


class SourceFile(NamedTuple):
    """A regular file, or something else with the reason why it is not one."""

    path: bytes  # Relative to the folder, without a leading slash.
    file: bytes  # The same with the folder in front.
    size: int
    why: str  # Empty: a regular file.


def walk(folder: bytes) -> Iterator[SourceFile]:
    """
    Yield everything below a folder that is not a folder, and unreadable folders.

    In the order of their names; the files of a folder come before its folders.
    """
    root = folder.rstrip(b"/") + b"/"
    waiting = [root]
    while waiting:
        path = waiting.pop()
        folders = []
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            yield SourceFile(path[len(root) :], path, 0, cannot_be_read(error))
            continue
        for entry in entries:
            file, size = entry.path, 0
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                why = cannot_be_read(error)
            else:
                if stat.S_ISDIR(status.st_mode):
                    folders.append(file)
                    continue
                size = status.st_size
                why = _WHY.get(stat.S_IFMT(status.st_mode), _NOT_REGULAR)
            yield SourceFile(file[len(root) :], file, size, why)
        waiting += reversed(folders)


def read_regular_file(path: bytes, size_max: int) -> bytes:
    """
    Return the content of a file.

    Args:
        path: Of a regular file.
        size_max: Most bytes that are read, also of a file that grows meanwhile.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        ValueTooLargeError: It has more than `size_max` bytes.
    """
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR)
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


def cannot_be_read(error: OSError) -> str:
    """Return the reason why something cannot be read."""
    return f"cannot be read: {error.strerror or error}"
