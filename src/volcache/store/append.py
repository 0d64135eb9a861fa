"""
Appending to the head: the bytes of a record, and its line in the index file.

Knows where a record ends and when lines are due, neither what is in a record nor the
index in memory.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.errors import StoreIOError
from volcache.store.files import write_all

if TYPE_CHECKING:
    from volcache.store.cycle import VolumeCycle
    from volcache.store.files import FileSystem
    from volcache.store.stats import StoreStats
    from volcache.store.volume import Volume

# Lines of the index file are written this many at a time: 13 KB or so, a write for every
# 512 puts. What is not written is found again by scanning the tail of the volume.
_INDEX_BATCH: Final = 512
# Blocks of ext4 and XFS, and pages of x86 and most ARM.
_PAGE_BYTES: Final = 4096
_ZEROS: Final = bytes(_PAGE_BYTES)


class Appender:
    """Writes behind what the head holds."""

    def __init__(
        self,
        fs: FileSystem,
        cycle: VolumeCycle,
        stats: StoreStats,
        *,
        syncs_each: bool,
    ) -> None:
        """
        Write nothing yet.

        Args:
            fs: The disk.
            cycle: Told of a volume that could not be synced.
            stats: Where writes and errors are counted.
            syncs_each: Whether a record survives a power loss when `append` returns.
        """
        self._fs = fs
        self._pwritev = fs.pwritev
        self._cycle = cycle
        self._stats = stats
        self._observe = stats.writes.observe
        self._syncs_each = syncs_each
        self._index_batch = _INDEX_BATCH  # Lines that make the next write of them due.

    def append(
        self,
        head: Volume,
        entry: tuple[bytes, int, int],
        buffers: tuple[bytes, ...],
        size: int,
    ) -> None:
        """
        Write a record at the end of the head; its line follows with others.

        The page it ends in is written to its end. A page of which a part is written has
        first to be read from the disk, unless it is in memory: a slot that is used again
        is not, and each page would cost a read. One that is written whole does not.

        Args:
            head: Must have room for it.
            entry: What its line says: key, offset, size.
            buffers: The record in pieces.
            size: Their length, all together.

        Raises:
            StoreIOError: The head ends where it ended; the next record is written over
                what came of this one.
        """
        offset = head.end
        end = offset + size
        filled = head.filled
        if end > filled:
            filled = min(end + -end % _PAGE_BYTES, head.capacity)
            buffers = (*buffers, _ZEROS[: filled - end])
            size = filled - offset
        try:
            began = perf_counter_ns()
            written = self._pwritev(head.fd, buffers, offset)
            if written != size:  # The system cut it short.
                rest = b"".join(buffers)[written:]
                write_all(self._fs, head.fd, rest, offset + written)
            self._observe(began, perf_counter_ns() - began)
        except OSError as error:
            self._stats.note_write_error(error)
            message = f"disk refused to write: {error.strerror or error}"
            raise StoreIOError(message) from error
        if self._syncs_each:
            self._sync(head, end)
        head.filled = filled
        head.end = end
        pending = head.pending
        pending.append(entry)
        if len(pending) >= self._index_batch:
            self.write_index(head)

    def append_tombstone(self, head: Volume, key: bytes, tombstone: bytes) -> None:
        """
        Write a tombstone, and its line at once; else as `append`.

        A line that could not be written comes with the next that can.
        """
        self.append(head, (key, 0, 0), (tombstone,), len(tombstone))
        if self._index_batch == _INDEX_BATCH:
            self.write_index(head)

    def _sync(self, head: Volume, end: int) -> None:
        try:
            self._fs.sync(head.fd)
        except OSError as error:
            self._cycle.note_sync_error(head, error)
            message = f"disk refused to sync: {error.strerror or error}"
            raise StoreIOError(message) from error
        head.synced_end = end

    def write_index(self, head: Volume) -> None:
        """
        Write pending lines; when that fails they stay pending.

        They are tried again when they are twice as many: to word all of them with every
        put would take the service down, and a start finds the records by scanning.
        """
        try:
            head.index()
        except OSError as error:
            self._index_batch = 2 * max(_INDEX_BATCH, len(head.pending))
            self._stats.note_index_error(error, volume=head.id)
        else:
            self._index_batch = _INDEX_BATCH
