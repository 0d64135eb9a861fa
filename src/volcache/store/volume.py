"""
One life of one volume: where it lies, how far it is written, what is not yet indexed.

Holds the descriptor of the data file, which it does not own: the descriptor outlives the
life and serves the next one. Knows nothing of keys in other volumes, nor of rotation.

Invariants:
    - The bytes from `VOLUME_HEADER_BYTES` to `end` are records of this life, one behind
      the other, but for what recovery has found damaged.
    - `end` never decreases.
    - Every record before `end` is in the index file or in `pending`.
    - What lies between `end` and `filled` means nothing and may be overwritten.

Appending to the head: the bytes of a record, and its line in the index file.

Knows where a record ends and when lines are due, neither what is in a record nor the
index in memory.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.errors import StoreIOError
from volcache.store.files import write_all
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    encode_volume_header,
    volume_identity,
)
from volcache.store.index import SEQ_SHIFT, make_seq
from volcache.store.index_format import IndexName

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.index_file import IndexFile
    from volcache.store.index_format import Meta
    from volcache.store.log import CircularLog
    from volcache.store.stats import StoreStats


class Volume:
    """A volume in one generation."""

    __slots__ = (
        "base",
        "capacity",
        "end",
        "fd",
        "filled",
        "generation",
        "id",
        "identity",
        "index_file",
        "name",
        "pending",
        "retired",
        "sealed",
        "seq",
        "started_ms",
        "store_id",
        "synced_end",
    )

    def __init__(self, *, fd: int, volume: int, generation: int, store_id: int) -> None:
        """Describe a life; nothing is read or written."""
        self.fd = fd
        self.id = volume
        self.generation = generation
        self.store_id = store_id
        self.seq = make_seq(generation, volume)
        self.base = self.seq << SEQ_SHIFT  # of every position in this life
        self.name = volume_identity(
            generation=generation, store_id=store_id, volume=volume
        )
        self.identity = self.name.identity
        self.end = VOLUME_HEADER_BYTES
        # How far whole pages were written: the system has them in memory, and need not
        # read them from the disk to take a record that covers a part of one.
        self.filled = 0
        self.synced_end = 0
        self.started_ms = 0  # Epoch, as its header says; 0 when that is not known.
        # How far it may be written: 0 until its room is allocated, and when retired.
        self.capacity = 0
        self.retired = False  # Not to be written any more, full or failed.
        self.sealed = False  # Its index file says that it is complete.
        self.index_file: IndexFile | None = None
        # Key, offset, size of the records that have no line in the index file yet.
        self.pending: list[tuple[bytes, int, int]] = []

    @property
    def index_name(self) -> IndexName:
        """The first line of its index file."""
        return IndexName(self.id, self.generation, self.store_id)

    def write_header(self, fs: FileSystem, meta: Meta, started_ms: int) -> None:
        """
        Begin the life on the disk: from here on older records do not exist.

        Raises:
            OSError: The header may be torn, which a boot mends from META.txt.
        """
        header = VolumeHeader(
            self.generation,
            self.store_id,
            self.id,
            meta.mount_count,
            started_ms,
            meta.oldest_seq,
        )
        data = encode_volume_header(header)
        if fs.pwritev(self.fd, [data], 0) != len(data):
            message = f"header of volume {self.id} was written in part"
            raise OSError(message)
        self.started_ms = started_ms

    def index(self, *, sealed: bool = False) -> None:
        """
        Write what is pending to the index file, as one block.

        Raises:
            OSError: Nothing was taken from `pending`.
        """
        if self.index_file is None:
            # It could not be made. The next start finds these records by scanning.
            self.pending = []
            return
        if self.pending or sealed:
            self.index_file.append(self.pending, self.end, sealed=sealed)
            self.pending = []

    def sync(self, fs: FileSystem) -> None:
        """
        Return when all records up to now, and the lines about them, are on the disk.

        May be called by another thread than the one that writes.

        Raises:
            OSError: Nothing is known of what was written since the last sync. The
                system may have dropped it, so it must not be tried again.
        """
        end = self.end
        if end != self.synced_end:
            fs.sync(self.fd)
            self.synced_end = end
        if self.index_file is not None:
            self.index_file.sync()


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
        log: CircularLog,
        stats: StoreStats,
        *,
        syncs_each: bool,
    ) -> None:
        """
        Write nothing yet.

        Args:
            fs: The disk.
            log: Told of a volume that could not be synced.
            stats: Where writes and errors are counted.
            syncs_each: Whether a record survives a power loss when `append` returns.
        """
        self._fs = fs
        self._pwritev = fs.pwritev
        self._log = log
        self._stats = stats
        self._observe = stats.writes.observe
        self._syncs_each = syncs_each
        self._index_batch = _INDEX_BATCH  # Lines that make the next write of them due.

    def append(
        self,
        active: Volume,
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
            active: Must have room for it.
            entry: What its line says: key, offset, size.
            buffers: The record in pieces.
            size: Their length, all together.

        Raises:
            StoreIOError: The head ends where it ended; the next record is written over
                what came of this one.
        """
        offset = active.end
        end = offset + size
        filled = active.filled
        if end > filled:
            filled = min(end + -end % _PAGE_BYTES, active.capacity)
            buffers = (*buffers, _ZEROS[: filled - end])
            size = filled - offset
        try:
            started_ns = perf_counter_ns()
            written = self._pwritev(active.fd, buffers, offset)
            if written != size:  # The system cut it short.
                rest = b"".join(buffers)[written:]
                write_all(self._fs, active.fd, rest, offset + written)
            self._observe(started_ns, perf_counter_ns() - started_ns)
        except OSError as error:
            self._stats.count_write_error(error)
            message = f"disk refused to write: {error.strerror or error}"
            raise StoreIOError(message) from error
        if self._syncs_each:
            self._sync(active, end)
        active.filled = filled
        active.end = end
        pending = active.pending
        pending.append(entry)
        if len(pending) >= self._index_batch:
            self.write_index(active)

    def append_tombstone(self, active: Volume, key: bytes, tombstone: bytes) -> None:
        """
        Write a tombstone, and its line at once; else as `append`.

        A line that could not be written comes with the next that can.
        """
        self.append(active, (key, 0, 0), (tombstone,), len(tombstone))
        if self._index_batch == _INDEX_BATCH:
            self.write_index(active)

    def _sync(self, active: Volume, end: int) -> None:
        try:
            self._fs.sync(active.fd)
        except OSError as error:
            self._log.count_sync_error(active, error)
            message = f"disk refused to sync: {error.strerror or error}"
            raise StoreIOError(message) from error
        active.synced_end = end

    def write_index(self, active: Volume) -> None:
        """
        Write pending lines; when that fails they stay pending.

        They are tried again when they are twice as many: to word all of them with every
        put would take the service down, and a start finds the records by scanning.
        """
        try:
            active.index()
        except OSError as error:
            self._index_batch = 2 * max(_INDEX_BATCH, len(active.pending))
            self._stats.count_index_error(error, volume=active.id)
        else:
            self._index_batch = _INDEX_BATCH
