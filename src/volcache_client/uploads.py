"""Values that are read from a file while they are sent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from volcache_client.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES: Final = 1 << 16


class SourceFailed(Exception):  # noqa: N818 - It carries the error to the caller.
    """The file could not be read; that is not a failure of the node."""

    def __init__(self, error: Exception) -> None:
        """Take what is raised to the caller."""
        super().__init__(str(error))
        self.error: Final = error


class Upload:
    """
    The rest of a binary file, from its current position.

    Attributes:
        size: Bytes; None: not known, since the file has no positions (a pipe).
        is_repeatable: Whether `blocks` may be called again.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        """
        Open a path; a file is used as it is, and stays open.

        Raises:
            InvalidArgumentError: It is neither a path nor a file.
            OSError: It cannot be opened.
        """
        self._is_ours: Final = isinstance(source, str | os.PathLike)
        if isinstance(source, str | os.PathLike):
            self._file: Any = open(source, "rb")  # noqa: SIM115, PTH123 - See `close`.
        elif hasattr(source, "read"):
            self._file = source
        else:
            raise InvalidArgumentError(
                f"{source!r} is neither a path nor a file opened as binary"
            )
        self._start = 0
        self.size: int | None = None
        try:
            self.is_repeatable = self._measure()
        except BaseException:
            self.close()
            raise

    def _measure(self) -> bool:
        seekable = getattr(self._file, "seekable", None)
        if seekable is None or not seekable():
            return False
        self._start = self._file.tell()
        self.size = max(0, self._file.seek(0, os.SEEK_END) - self._start)
        self._file.seek(self._start)
        return True

    def blocks(self) -> Iterator[bytes]:
        """
        Yield what is to be sent, from its beginning.

        Raises:
            SourceFailed: The file cannot be read, has less than `size`, or is not binary.
        """
        left = self.size
        try:
            if self.is_repeatable:
                self._file.seek(self._start)
            while left is None or left:
                wanted = BLOCK_BYTES if left is None else min(left, BLOCK_BYTES)
                block = self._read(wanted, left)
                if not block:
                    return
                if left is not None:
                    left -= len(block)
                yield block
        except (OSError, ValueError) as error:
            raise SourceFailed(error) from error

    def _read(self, wanted: int, left: int | None) -> bytes:
        block = self._file.read(wanted)
        if not isinstance(block, bytes):
            raise InvalidArgumentError("the file is not binary; open it with mode rb")
        if not block and left is not None:
            raise InvalidArgumentError(
                f"the file became shorter while it was sent: {left} of {self.size} bytes"
                " are missing"
            )
        return block

    def close(self) -> None:
        """Close the file if it was given as a path."""
        if self._is_ours:
            self._file.close()
