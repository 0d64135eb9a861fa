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
    - The bytes after `end` are undefined and may be overwritten. After an append that
      failed they may be those of the record: then they have to be erased, or META.txt has
      to say where the volume ends, before anything else is acknowledged.

Locking: the caller holds the lock of the store, except for `sync`.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from volcache.store.files import STAT_BLOCK_BYTES, read_range, write_all
from volcache.store.format import (
    RECORD_OVERHEAD_BYTES,
    VERSION,
    VOLUME_HEADER_BYTES,
    Place,
    VolumeHeader,
    encode_volume_header,
)
from volcache.store.index import Loaded
from volcache.store.index_format import (
    IndexName,
    decode_index_header,
    encode_index_header,
    encode_segments,
)
from volcache.store.manifest import ListedVolume
from volcache.store.native import Writer, read_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from volcache.store.files import FileSystem
    from volcache.store.format import Segment, VolumeUse
    from volcache.store.manifest import VolumeState
    from volcache.store.native import Index

NO_FILE: Final = -1  # The descriptor of a volume whose data file cannot be opened.
# Entries are written to the index file this many at a time: about 13 KB, one write per
# 512 puts. Entries not yet written are found by a scan at the next start.
_INDEX_BATCH: Final = 512
# The first block, with the name of the file, is shorter.
HEAD_BYTES: Final = 4096
_CHECKPOINT: Final = b"\n# checkpoint "


class VolumeIndex(Writer):
    """
    The entries of a volume: those that are pending, and its index file.

    Attributes (read-only for others):
        use: Its id, sequence number, ring and salt.
        id, seq: As in its `use`.
        segments: Where later mounts have gone on, in order; the last is being written.
    """

    def __init__(
        self,
        fs: FileSystem,
        fd: int,  # noqa: ARG002 - For `Writer`.
        *,
        use: VolumeUse,
        store_id: int,
    ) -> None:
        """Describe a use without an index file."""
        self._fs = fs
        self.use, self.store_id = use, store_id
        self.id, self.seq = use.volume, use.seq
        self.segments: list[Segment] = []
        self._unnamed: list[Segment] = []  # segments that the index file does not name
        self.pending_max = _INDEX_BATCH
        self._index_fd: int | None = None
        self._is_index_known = False  # `index_checksum` is that of the complete file.
        self._index_synced_end = -1

    @property
    def index_name(self) -> IndexName:
        """The first line of its index file."""
        return IndexName(self.use, self.store_id)

    @property
    def is_index_due(self) -> bool:
        """Whether enough entries are pending to write them to the index file."""
        return self.pending >= self.pending_max

    def open_index_file(self, path: str, valid_end: int) -> None:
        """
        Open the index file for appending, or create it.

        Args:
            path: Of the index file.
            valid_end: Length of its valid part; 0: create a new file.

        Raises:
            IsADirectoryError: A directory is in its place, and stays.
            OSError: There is no index file, or an empty or torn one, which is ignored
                when read: the next start scans the volume.
        """
        fs, is_new = self._fs, not (valid_end and self._is_index_known)
        self._is_index_known = False
        block, checksum = encode_index_header(self.index_name)
        if is_new:
            try:
                fs.unlink(path)
            except IsADirectoryError as error:
                why = "is a directory in the place of a file, move it away"
                raise IsADirectoryError(errno.EISDIR, why, path) from error
        fd = fs.open(path, create=is_new)
        try:
            if is_new:
                write_all(fs, fd, block, 0)
            elif fs.stat(fd).st_size > valid_end:
                fs.truncate(fd, valid_end)
        except BaseException:
            fs.close(fd)
            raise
        if is_new:
            self.index_checksum, self._unnamed = checksum, list(self.segments)
        self._index_fd, self._is_index_known = fd, True
        self.set_index_file(fd, len(block) if is_new else valid_end)
        self.is_indexed = not self._unnamed

    def write_index(self, *, sealed: bool = False) -> None:
        """
        Write the pending entries to the index file, as one block.

        If that fails they stay pending, and the next attempt is due when there are twice
        as many: to format all of them again with every put would stall the service.

        Raises:
            OSError: Nothing was taken from the pending entries.
        """
        if not (self.pending or sealed):
            return
        if self._index_fd is None:
            # It could not be created. The next start finds these records by a scan.
            self.clear()
            self._is_index_known = False
            return
        try:
            self._append_block(self.lines, self.end, sealed=sealed)
        except OSError:
            self.is_indexed = False
            self.pending_max = 2 * max(_INDEX_BATCH, self.pending)
            raise
        self.pending_max = _INDEX_BATCH
        self.clear()

    def _append_block(self, lines: bytes, end: int, *, sealed: bool) -> None:
        # One that has no record yet may be replaced by that of the next mount.
        segments = [one for one in self._unnamed if one.start < end]
        self.append_block(encode_segments(segments) + lines, end, sealed)
        self._unnamed = self._unnamed[len(segments) :]
        self._is_index_known, self.is_indexed = True, not self._unnamed

    def write_spilled(self, blocks: Iterable[tuple[bytes, int]]) -> None:
        """
        Write entries to the index file that come before those pending.

        Args:
            blocks: The lines of entries, and the end of the last record of each.

        Raises:
            OSError: There is no longer an index file: the next start scans the rest.
        """
        try:
            for lines, end in blocks:
                if self._index_fd is not None:
                    self._append_block(lines, end, sealed=False)
        except OSError:
            self._is_index_known = False
            with suppress(OSError):
                self.close_index_file()
            raise

    @property
    def has_index_backlog(self) -> bool:
        """Whether the last write of the index file has failed."""
        return self.pending_max != _INDEX_BATCH

    def close_index_file(self) -> None:
        """
        Close the index file; the next start adds entries that are still pending.

        Raises:
            OSError: It is closed, but may lack what was written since the last sync.
        """
        if self.pending:
            self._is_index_known = False  # The file is not complete.
        self.clear()
        self.is_indexed = False
        fd, self._index_fd = self._index_fd, None
        if fd is None:
            return
        try:
            self._fs.close(fd)
        except OSError:
            self._is_index_known = False
            raise


class Volume(VolumeIndex):
    """
    A volume, as it is used from one start to the next.

    Attributes (read-only for others):
        started_ms: When it was started, milliseconds since the epoch; 0: not known.
        is_retired: Nothing is appended again, because it is full or sealed, or a sync
            failed.
        is_sealed: Its index file is complete.
        born: What had been appended to its ring when it was started: bytes of records, and
            what is left free at the ends of volumes.
    """

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
        super().__init__(fs, fd, use=use, store_id=store_id)
        for segment in segments:
            self.add_segment(segment)
        self._header = b""  # to be written
        self.started_ms = started_ms
        self.is_retired = False
        self.is_sealed = False
        self.born = 0

    @property
    def appended(self) -> int:
        """What was appended to its ring up to its end, as `born` counts it."""
        return self.born + self.end - VOLUME_HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """How many bytes of the disk its data file takes."""
        return self._fs.stat(self.fd).st_blocks * STAT_BLOCK_BYTES

    def add_segment(self, segment: Segment) -> None:
        """Let the records from its start on have its salt; nothing is written."""
        # Those that got no record, or lost them by a power loss, are listed no more.
        self.segments = [one for one in self.segments if one.start < segment.start]
        self._unnamed = [one for one in self._unnamed if one in self.segments]
        self.segments.append(segment)
        self._unnamed.append(segment)
        self.is_indexed = False
        self.salt = segment.salt

    def place_at(self, offset: int) -> Place:
        """Return what a record at an offset has to name."""
        salts = reversed(self.salts)
        salt = next(salt for start, salt in salts if start <= offset)
        return Place(salt, self.id, offset)

    @property
    def salts(self) -> list[tuple[int, int]]:
        """From which offset on records have which salt."""
        return [(0, self.use.salt), *self.segments]

    # --- Starting and resuming -----------------------------------------------------

    def start(
        self, now_ms: int, *, mount_count: int, oldest_seq: int, previous_salt: int
    ) -> None:
        """
        Write the header, which is used only if META.txt is lost.

        Args:
            now_ms: The time, milliseconds since the epoch.
            mount_count: The present one.
            oldest_seq: Of the oldest valid volume, whatever its ring.
            previous_salt: Of the volume before it in its ring; 0: there is none.

        Raises:
            OSError: The header may be torn; the volume is valid by META.txt.
        """
        header = VolumeHeader(
            self.use, self.store_id, mount_count, now_ms, oldest_seq, previous_salt
        )
        self.started_ms = now_ms
        self._header = encode_volume_header(header)
        self.write_header()

    @property
    def lacks_header(self) -> bool:
        """Whether its header could not be written."""
        return bool(self._header)

    def write_header(self) -> None:
        """
        Write the header that could not be written when it was started.

        Raises:
            OSError: The header may be torn.
        """
        write_all(self._fs, self.fd, self._header, 0)
        self._header = b""

    def resume(self, end: int, found: Loaded) -> None:
        """
        Take over what recovery has found; nothing is read or written.

        The entries of records that the index file does not have are pending already.

        Args:
            end: The end of the last record.
            found: In the index file.
        """
        self.end = end
        self.is_sealed = self.is_retired = found.is_sealed
        self._is_index_known = found.checksum is not None
        self.index_checksum = found.checksum or 0
        self._unnamed = self.segments[found.named :]

    def allocate(self, length: int, capacity: int) -> None:
        """
        Give the file its length, and disk space for the first `capacity` bytes of it.

        Records may be written up to there. The rest is a hole, or of an earlier use.

        Raises:
            OSError: Nothing has changed, except that the file may be longer.
        """
        present = self._fs.stat(self.fd)
        if present.st_size < length and capacity < length:
            self._fs.truncate(self.fd, length)
        if present.st_blocks * STAT_BLOCK_BYTES < length or present.st_size < length:
            self._fs.allocate(self.fd, capacity, self.capacity)
        self.set_room(length, capacity)

    @property
    def room(self) -> int:
        """The bytes that can be appended, if the disk has space for them."""
        return max(0, self.length - self.end) if self.capacity else 0

    @property
    def unallocated(self) -> int:
        """The bytes of it for which disk space is not allocated yet."""
        return self.length - self.capacity if self.capacity else 0

    def trim(self) -> None:
        """
        Cut the file to its length: `volume_size` was larger when it was last used.

        Raises:
            OSError: The file keeps its length.
        """
        if self.capacity and self._fs.stat(self.fd).st_size > self.length:
            self._fs.truncate(self.fd, self.length)

    # --- Appending -----------------------------------------------------------------

    def erase_refused(self, *, sync: bool) -> None:
        """
        Overwrite the header of a record that an append has left behind the end.

        Args:
            sync: Return only when that is on the disk.

        Raises:
            OSError: A start may find the record.
        """
        write_all(self._fs, self.fd, bytes(RECORD_OVERHEAD_BYTES), self.end)
        if sync:
            self._fs.sync(self.fd)

    # --- The end -------------------------------------------------------------------

    def retire(self) -> None:
        """Append nothing from now on."""
        self.is_retired = True
        self.set_room(self.length, 0)

    def seal(self) -> None:
        """
        Retire the volume and complete its index file.

        Raises:
            OSError: The index file is not complete; the next start scans the volume. The
                entries stay pending: the rotation may fail as well, and seal it again.
        """
        self.retire()
        if self.is_sealed:
            return
        try:
            self.write_index(sealed=True)
        except OSError:
            self._is_index_known = False
            raise
        self.is_sealed = True

    def listed(self, *, is_open: bool) -> ListedVolume:
        """Return its line for META.txt; `is_open`: records may still be appended."""
        if is_open:
            return ListedVolume(self.use, segments=tuple(self.segments))
        is_synced = self.synced_end >= self.end and (
            self._index_fd is None or self.index_end == self._index_synced_end
        )
        state: VolumeState = "synced" if is_synced else "sealed"
        checksum = self.index_checksum if self._is_index_known else None
        return ListedVolume(self.use, state, self.end, checksum, tuple(self.segments))

    def invalidate(self) -> None:
        """
        Overwrite the header, so that the volume is not used if META.txt is lost.

        Raises:
            OSError: The header may be there.
        """
        self._fs.pwritev(self.fd, [bytes(VOLUME_HEADER_BYTES)], 0)

    def sync(self) -> None:
        """
        Return when all records up to now, and their entries, are on the disk.

        May be called by another thread than the one that appends.

        Raises:
            OSError: Records written since the last sync may be lost. The kernel may have
                dropped them, so a second sync proves nothing: retire the volume.
        """
        end = self.end
        if end != self.synced_end:
            self._fs.sync(self.fd)
            self.synced_end = end
        fd, end = self._index_fd, self.index_end
        if fd is not None and end != self._index_synced_end:
            try:
                self._fs.sync(fd)
            except OSError:
                self._is_index_known = False
                raise
            self._index_synced_end = end


# --- Index files -------------------------------------------------------------------


class IndexContents:
    """
    The valid part of an index file: its blocks up to the first damaged one.

    Attributes:
        is_ours: Its first line is right.
        length: Of the data given, in bytes.
        found: What is in the valid part.
    """

    def __init__(
        self, data: bytes, name: IndexName, segments: Collection[Segment]
    ) -> None:
        """
        Check the first line; `read_lines` checks the rest.

        Args:
            data: The file, or its first block.
            name: What the first line must be.
            segments: Of the volume: a block that does not fit them was written for a copy
                of the mount point, and ends the valid part.
        """
        self._name = name
        self._segments = segments
        self.is_ours = decode_index_header(data) == (VERSION, name)
        self._data = data
        self.length = len(data)
        self._after = b""
        self.found = Loaded()

    def replay(self, index: Index, fs: FileSystem, fd: int) -> None:
        """
        Set the positions of all entries of a file in an index; it cannot be read again.

        Args:
            index: Is filled.
            fs: The file system.
            fd: Of the file, whose first block is the data given before.

        Raises:
            OSError: The file cannot be read; some positions may have been set.
        """
        if self.is_ours:
            self.found = index.load(self._name.use.seq, fd, self._segments)
            self._data = b""
            after = read_range(fs, fd, self.found.file_end, fs.stat(fd).st_size)
            self._after = after if _CHECKPOINT in after else b""

    def read_lines(self) -> tuple[bytes, bool]:
        """
        Find the valid part; `found` says what it has.

        Returns:
            Its lines, and whether the entries are in the order of the volume.
        """
        if not self.is_ours:
            return b"", True
        self.found, is_in_order = read_lines(self._data, self._segments)
        return self._data[: self.found.file_end], is_in_order

    @property
    def is_whole(self) -> bool:
        """Whether at most a torn block follows the valid part."""
        after = self._after or self._data[self.found.file_end :]
        return self.is_ours and _CHECKPOINT not in after
