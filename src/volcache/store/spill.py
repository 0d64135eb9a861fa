"""
Entries of records that a start has scanned, until they can be written to the index files.

No index file is changed before all volumes are known to belong together. So that memory
does not hold the entries of all records until then, they wait in a file without a name on
the disk of the store, which is gone when it is closed. If that disk does not take them,
they stay in memory.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.volume import Volume

_SPILLED_BYTES: Final = 1 << 18


class Spill:
    """The entries of all volumes of one start, in one file."""

    def __init__(self, folder: str) -> None:
        """Write nothing yet; `folder` is on the disk of the store."""
        self.drops = False  # Entries are dropped: no index file is written.
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._length = 0
        # By sequence number: offset and length in the file, records, end of the last.
        self._blocks = defaultdict[int, list[tuple[int, int, int, int]]](list)

    def take(self, volume: Volume, end: int) -> None:
        """Take over the pending entries of a volume, up to a record, if they are many."""
        lines, records = volume.lines, volume.pending
        if len(lines) < _SPILLED_BYTES:
            return
        if self.drops:
            volume.clear()
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - `close` closes it.
            self._file.seek(self._length)
            if self._file.write(lines) != len(lines):
                return
        except OSError:
            return
        self._blocks[volume.seq].append((self._length, len(lines), records, end))
        self._length += len(lines)
        volume.clear()

    def records(self, seq: int) -> int:
        """Return of how many records of a volume entries were taken over."""
        return sum(records for _, _, records, _ in self._blocks.get(seq, ()))

    def blocks(self, seq: int) -> Iterator[tuple[bytes, int]]:
        """
        Yield what `Volume.write_spilled` takes.

        Raises:
            OSError: It cannot be read.
        """
        for offset, length, _, end in self._blocks.get(seq, ()):
            assert self._file is not None  # noqa: S101 - It has the block.
            self._file.seek(offset)
            lines = self._file.read(length)
            if len(lines) != length:
                message = "entries of scanned records are incomplete"
                raise OSError(message)
            yield lines, end

    def close(self) -> None:
        """Drop all entries."""
        if self._file is not None:
            self._file.close()
