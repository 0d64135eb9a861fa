"""
One use of one volume: its data file, its index file and how far both are written.

`Volume` is the only writer of its fields. It raises what the disk refuses; whoever calls it
decides what follows. The data file stays open when the use ends, and serves the next one.

Life cycle: a volume is started (`start`) or found at startup (`resume`), appended to while
it is active, and then sealed (`seal`). One that failed a sync is retired (`retire`):
nothing is appended to it again.

Invariants:
    - The bytes from `VOLUME_HEADER_BYTES` to `end` are records of this use, one after the
      other, except where recovery has found damage.
    - `end` never decreases.
    - Every record before `end` is in the index file or in the pending entries.
    - The bytes after `end` are undefined and may be overwritten.

Locking: the caller holds the lock of the store, except for `sync`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.store.files import write_all
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    encode_volume_header,
    make_seq,
    volume_identity,
)
from volcache.store.index_file import IndexFile
from volcache.store.index_format import IndexName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volcache.store.files import FileSystem
    from volcache.store.index_format import Entry
    from volcache.store.manifest import Manifest

NO_FILE: Final = -1  # The descriptor of a volume whose data file cannot be opened.
# Entries are written to the index file this many at a time: about 13 KB, one write per
# 512 puts. Entries not yet written are found by a scan at the next start.
_INDEX_BATCH: Final = 512
# The block size of ext4 and XFS, and the page size of x86 and most ARM.
_PAGE_BYTES: Final = 4096
_ZEROS: Final = bytes(_PAGE_BYTES)


class SyncFailedError(OSError):
    """A sync failed: the volume must be retired."""


class Volume:
    """
    A volume in one generation.

    Attributes (read-only for others):
        id, generation, store_id: Which use of which volume this is.
        seq: The sequence number; volumes started later have higher ones.
        identity: As `format.decode_record` takes it.
        fd: Descriptor of the data file, `NO_FILE` if it cannot be opened.
        end: Offset of the next record.
        capacity: Records may be written up to this offset; 0 if none may.
        started_ms: When it was started, milliseconds since the epoch; 0: not known.
        is_retired: Nothing is appended again, because it is full or a sync failed.
        is_sealed: Its index file is complete.
    """

    __slots__ = (
        "_fs",
        "_index_batch",
        "_index_file",
        "_pending",
        "_pwritev",
        "_synced_end",
        "_written_end",
        "capacity",
        "end",
        "fd",
        "generation",
        "id",
        "identity",
        "is_retired",
        "is_sealed",
        "seq",
        "started_ms",
        "store_id",
    )

    def __init__(
        self,
        fs: FileSystem,
        fd: int,
        *,
        volume: int,
        generation: int,
        store_id: int,
        started_ms: int = 0,
    ) -> None:
        """Describe a use; nothing is read or written."""
        self._fs = fs
        self._pwritev = fs.pwritev
        self.fd = fd
        self.id = volume
        self.generation = generation
        self.store_id = store_id
        self.seq = make_seq(generation, volume)
        self.identity = volume_identity(
            generation=generation, store_id=store_id, volume=volume
        )
        self.end = VOLUME_HEADER_BYTES
        # Whole pages are written up to here: the kernel has them in memory and does not
        # read them from the disk for a record that covers part of one.
        self._written_end = 0
        self._synced_end = 0
        self.started_ms = started_ms
        self.capacity = 0
        self.is_retired = False
        self.is_sealed = False
        self._index_file: IndexFile | None = None
        self._pending: list[Entry] = []  # records without an entry in the index file
        self._index_batch = _INDEX_BATCH  # this many pending entries are written

    @property
    def index_name(self) -> IndexName:
        """The first line of its index file."""
        return IndexName(self.id, self.generation, self.store_id)

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The entries of records that are not in the index file yet."""
        return tuple(self._pending)

    # --- Starting and resuming -----------------------------------------------------

    def start(self, manifest: Manifest, now_ms: int) -> None:
        """
        Write the header: from now on, records of earlier uses are invalid.

        Raises:
            OSError: The header may be torn; recovery rewrites it from META.txt.
        """
        header = VolumeHeader(
            self.generation,
            self.store_id,
            self.id,
            manifest.mount_count,
            now_ms,
            manifest.oldest_seq,
        )
        data = encode_volume_header(header)
        if self._fs.pwritev(self.fd, [data], 0) != len(data):
            message = f"header of volume {self.id} was written in part"
            raise OSError(message)
        self.started_ms = now_ms

    def resume(self, *, end: int, pending: Iterable[Entry], sealed: bool) -> None:
        """
        Take over what recovery has found; nothing is read or written.

        Args:
            end: The end of the last record.
            pending: Records that are not in the index file.
            sealed: The index file is complete.
        """
        self.end = end
        self._pending = list(pending)
        self.is_sealed = sealed

    def allocate(self, length: int) -> None:
        """
        Allocate disk space for `length` bytes; records may be written up to there.

        Raises:
            OSError: Nothing has changed, except that the file may be longer.
        """
        self._fs.allocate(self.fd, length)
        self.capacity = length

    def trim(self) -> None:
        """
        Cut the file to its capacity: `volume_size` was larger when it was last used.

        Raises:
            OSError: The file keeps its length.
        """
        if self.capacity and self._fs.size(self.fd) > self.capacity:
            self._fs.truncate(self.fd, self.capacity)

    # --- Appending -----------------------------------------------------------------

    def append(
        self,
        entry: Entry,
        buffers: tuple[bytes, ...],
        size: int,
        sync: bool,  # noqa: FBT001 - By position: a keyword takes 0.1 us more.
    ) -> bool:
        """
        Write a record at `end`; its entry in the index file follows later.

        It survives a process crash when this returns, a power loss after a sync.

        The page that the record ends in is written completely. To write part of a page
        that is not in memory, the kernel would first read it from the disk: one read for
        each page of a volume that is used again.

        Args:
            entry: The entry for the index file.
            buffers: The record, in pieces.
            size: Their total length; `end + size` is at most `capacity`.
            sync: Return only when the record is on the disk.

        Returns:
            Whether enough entries are pending to write them to the index file.

        Raises:
            SyncFailedError: `end` has not moved; the volume must be retired.
            OSError: `end` has not moved; the next record overwrites this one.
        """
        offset = self.end
        end = offset + size
        written_end = self._written_end
        if end > written_end:
            written_end = min(end + -end % _PAGE_BYTES, self.capacity)
            buffers = (*buffers, _ZEROS[: written_end - end])
            size = written_end - offset
        written = self._pwritev(self.fd, buffers, offset)
        if written != size:  # The kernel wrote only a part.
            rest = b"".join(buffers)[written:]
            write_all(self._fs, self.fd, rest, offset + written)
        if sync:
            try:
                self._fs.sync(self.fd)
            except OSError as error:
                raise SyncFailedError(error.errno, error.strerror) from error
            self._synced_end = end
        self._written_end = written_end
        self.end = end
        pending = self._pending
        pending.append(entry)
        return len(pending) >= self._index_batch

    # --- The index file ------------------------------------------------------------

    def open_index_file(self, path: str, valid_end: int) -> None:
        """
        Open the index file for appending, or create it.

        Args:
            path: Of the index file.
            valid_end: Length of its valid part; 0: create a new file.

        Raises:
            OSError: There is no index file; the next start scans the volume.
        """
        if valid_end:
            self._index_file = IndexFile.append_to(self._fs, path, valid_end)
        else:
            self._index_file = IndexFile.create(self._fs, path, self.index_name)

    def write_index(self, *, sealed: bool = False) -> None:
        """
        Write the pending entries to the index file, as one block.

        If that fails they stay pending, and the next attempt is due when there are twice
        as many: to format all of them again with every put would stall the service.

        Raises:
            OSError: Nothing was taken from the pending entries.
        """
        if self._index_file is None:
            # It could not be created. The next start finds these records by a scan.
            self._pending = []
            return
        if not (self._pending or sealed):
            return
        try:
            self._index_file.append(self._pending, self.end, sealed=sealed)
        except OSError:
            self._index_batch = 2 * max(_INDEX_BATCH, len(self._pending))
            raise
        self._index_batch = _INDEX_BATCH
        self._pending = []

    @property
    def has_index_backlog(self) -> bool:
        """Whether the last write of the index file has failed."""
        return self._index_batch != _INDEX_BATCH

    def close_index_file(self) -> None:
        """Close the index file; the next start adds entries that are still pending."""
        self._pending = []
        index_file, self._index_file = self._index_file, None
        if index_file is not None:
            index_file.close()

    # --- The end -------------------------------------------------------------------

    def retire(self) -> None:
        """Append nothing from now on."""
        self.is_retired = True
        self.capacity = 0

    def seal(self) -> None:
        """
        Retire the volume and complete its index file.

        Raises:
            OSError: The index file is not complete; the next start scans the volume.
        """
        self.retire()
        if self.is_sealed:
            return
        try:
            self.write_index(sealed=True)
            self.is_sealed = True
        finally:
            self._pending = []

    def sync(self) -> None:
        """
        Return when all records up to now, and their entries, are on the disk.

        May be called by another thread than the one that appends.

        Raises:
            OSError: Records written since the last sync may be lost. The kernel may have
                dropped them, so a second sync proves nothing: retire the volume.
        """
        end = self.end
        if end != self._synced_end:
            self._fs.sync(self.fd)
            self._synced_end = end
        index_file = self._index_file
        if index_file is not None:
            index_file.sync()
