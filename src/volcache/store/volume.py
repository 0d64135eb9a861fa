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
    volume_identity,
)
from volcache.store.index_file import IndexFile
from volcache.store.index_format import IndexName
from volcache.store.manifest import ListedVolume

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from volcache.store.files import FileSystem
    from volcache.store.format import Segment, VolumeIdentity, VolumeUse
    from volcache.store.index_format import Entry
    from volcache.store.manifest import VolumeState

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
    A volume, as it is used from one start to the next.

    Attributes (read-only for others):
        use: Its id, sequence number, ring and salt; `id` and `seq` are copies.
        identity: Of the records from `identity_start` on, as `format.decode_record`
            takes it; `identity_at` returns that of records before.
        segments: Where later mounts have gone on, in order; the last is being written.
        fd: Descriptor of the data file, `NO_FILE` if it cannot be opened.
        end: Offset of the next record.
        capacity: Records may be written up to this offset; 0 if none may.
        started_ms: When it was started, milliseconds since the epoch; 0: not known.
        is_retired: Nothing is appended again, because it is full or a sync failed.
        is_sealed: Its index file is complete.
    """

    __slots__ = (
        "_fs",
        "_identities",
        "_index_batch",
        "_index_checksum",
        "_index_file",
        "_pending",
        "_pwritev",
        "_synced_end",
        "_unnamed",
        "_written_end",
        "capacity",
        "end",
        "fd",
        "id",
        "identity",
        "identity_start",
        "is_retired",
        "is_sealed",
        "segments",
        "seq",
        "started_ms",
        "store_id",
        "use",
    )

    def __init__(
        self,
        fs: FileSystem,
        fd: int,
        *,
        use: VolumeUse,
        store_id: int,
        segments: Iterable[Segment] = (),
        started_ms: int = 0,
    ) -> None:
        """Describe a use; nothing is read or written."""
        self._fs = fs
        self._pwritev = fs.pwritev
        self.fd = fd
        self.use = use
        self.id = use.volume
        self.seq = use.seq
        self.store_id = store_id
        self.segments: list[Segment] = []
        self._unnamed: list[Segment] = []  # segments that the index file does not name
        self.identity = volume_identity(use.volume, use.salt)
        self.identity_start = 0
        # By where the records with it begin, in order; the last one is `identity`.
        self._identities = [(0, self.identity)]
        for segment in segments:
            self.add_segment(segment)
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
        self._index_checksum: int | None = None  # of the last checkpoint; None: unknown
        self._pending: list[Entry] = []  # records without an entry in the index file
        self._index_batch = _INDEX_BATCH  # this many pending entries are written

    @property
    def index_name(self) -> IndexName:
        """The first line of its index file."""
        return IndexName(self.use, self.store_id)

    @property
    def last_salt(self) -> int:
        """The salt of the records that are appended."""
        return self.segments[-1].salt if self.segments else self.use.salt

    def add_segment(self, segment: Segment) -> None:
        """Let the records from its start on have its salt; nothing is written."""
        # Those that got no record, or lost them by a power loss, are listed no more.
        self.segments = [one for one in self.segments if one.start < segment.start]
        self._unnamed = [one for one in self._unnamed if one in self.segments]
        self.segments.append(segment)
        self._unnamed.append(segment)
        self.identity = volume_identity(self.id, segment.salt)
        self.identity_start = segment.start
        before = [one for one in self._identities if one[0] < segment.start]
        self._identities = [*before, (segment.start, self.identity)]

    def identity_at(self, offset: int) -> VolumeIdentity:
        """Return the identity of a record at an offset."""
        found = reversed(self._identities)
        return next(identity for start, identity in found if start <= offset)

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The entries of records that are not in the index file yet."""
        return tuple(self._pending)

    # --- Starting and resuming -----------------------------------------------------

    def start(
        self, now_ms: int, *, mount_count: int, oldest_seq: int, previous_salt: int
    ) -> None:
        """
        Write the header, which is used only if META.txt is lost.

        Args:
            now_ms: The time, milliseconds since the epoch.
            mount_count: The present one.
            oldest_seq: Of the oldest valid volume.
            previous_salt: Of the volume with the previous sequence number; 0: there is
                none.

        Raises:
            OSError: The header may be torn; the volume is valid by META.txt.
        """
        header = VolumeHeader(
            self.use, self.store_id, mount_count, now_ms, oldest_seq, previous_salt
        )
        data = encode_volume_header(header)
        if self._fs.pwritev(self.fd, [data], 0) != len(data):
            message = f"header of volume {self.id} was written in part"
            raise OSError(message)
        self.started_ms = now_ms

    def resume(
        self,
        *,
        end: int,
        pending: Iterable[Entry],
        sealed: bool,
        index_checksum: int | None,
        named: Collection[Segment],
    ) -> None:
        """
        Take over what recovery has found; nothing is read or written.

        Args:
            end: The end of the last record.
            pending: Records that are not in the index file.
            sealed: The index file is complete.
            index_checksum: Of the last valid checkpoint in the index file.
            named: The segments that the index file names.
        """
        self.end = end
        self._pending = list(pending)
        self.is_sealed = sealed
        self._index_checksum = index_checksum
        self._unnamed = [one for one in self.segments if one not in named]

    def trust_synced(self) -> None:
        """Take over from META.txt that all of it is on the disk."""
        self._synced_end = self.end

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
        checksum, self._index_checksum = self._index_checksum, None
        if valid_end and checksum is not None:
            self._index_file = IndexFile.append_to(self._fs, path, valid_end, checksum)
        else:
            self._index_file = IndexFile.create(self._fs, path, self.index_name)
            self._unnamed = list(self.segments)
        self._index_checksum = self._index_file.checksum

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
            self._index_checksum = None
            return
        if not (self._pending or sealed):
            return
        try:
            # One that has no record yet may be replaced by that of the next mount.
            segments = [one for one in self._unnamed if one.start < self.end]
            self._index_file.append(
                self._pending, self.end, sealed=sealed, segments=segments
            )
        except OSError:
            self._index_batch = 2 * max(_INDEX_BATCH, len(self._pending))
            raise
        self._index_batch = _INDEX_BATCH
        self._pending = []
        self._unnamed = self._unnamed[len(segments) :]
        self._index_checksum = self._index_file.checksum

    @property
    def has_index_backlog(self) -> bool:
        """Whether the last write of the index file has failed."""
        return self._index_batch != _INDEX_BATCH

    def close_index_file(self) -> None:
        """Close the index file; the next start adds entries that are still pending."""
        if self._pending:
            self._index_checksum = None  # The file is not complete.
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
        except OSError:
            self._index_checksum = None
            raise
        finally:
            self._pending = []

    def listed(self, *, is_open: bool) -> ListedVolume:
        """Return its line for META.txt; `is_open`: records may still be appended."""
        if is_open:
            return ListedVolume(self.use, segments=tuple(self.segments))
        is_synced = self._synced_end == self.end and (
            self._index_file is None or self._index_file.is_synced
        )
        state: VolumeState = "synced" if is_synced else "sealed"
        return ListedVolume(
            self.use, state, self.end, self._index_checksum, tuple(self.segments)
        )

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
            try:
                index_file.sync()
            except OSError:
                self._index_checksum = None
                raise
