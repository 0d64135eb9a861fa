"""
Find records in a volume by reading it, without its index file.

A torn record at the end is normal: the process or the machine stopped while it was
written, and it was not acknowledged. Damage with records after it is an event. A scan
distinguishes them by looking for a record of the same use of the volume further on, and
by looking for a single wrong bit, which a torn record does not have. The offset and the
salt in each record header prevent that a copy of a record, stored as part of a value, is
taken for a record.

A part of the disk that cannot be read is not an empty one: a record may be there.

After a power loss, old records can lie behind a hole that is too wide to look across; the
next mount writes from the hole on, with another salt. So they are never valid again.

Each record says how much before it was not synced when it was written. So after a power
loss, a damaged value that was synced is told from one that was not: then its key has the
value from before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from volcache.store.format import (
    FIXED_BYTES,
    IDENTITY_BYTES,
    RECORD_PREFIX_BYTES_MAX,
    correct_header,
    decode_header,
    is_one_bit_wrong,
    prefix_length,
)
from volcache.store.volume import NO_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.files import FileSystem
    from volcache.store.format import RecordHeader
    from volcache.store.volume import Volume

# A start looks this far behind the end of the active volume for records that a power loss
# has cut off by a hole. Costs one read of that much at every start.
TAIL_WINDOW_BYTES: Final = 64 * 2**20
WHOLE_VOLUME: Final = 2**62
_CHUNK_BYTES: Final = 2**21
_SECTOR_BYTES: Final = 4096
_HEADER_BYTES: Final = 256


class Found(NamedTuple):
    """A record whose header is intact; `intact` is about its value."""

    header: RecordHeader
    intact: bool


class Gap(NamedTuple):
    """Bytes without a record, although there are records after them."""

    start: int
    end: int


class Torn(NamedTuple):
    """A record that was not completely written; nothing follows."""

    start: int


class Unreadable(NamedTuple):
    """Bytes that cannot be read where a record may be."""

    start: int
    end: int


class VolumeReader:
    """
    Reads a volume in large pieces.

    Attributes:
        unreadable: Ranges found so far that cannot be read; they read as zeros.
        has_lost: A power loss may have taken what was not synced.
    """

    def __init__(
        self,
        fs: FileSystem,
        volume: Volume,
        end: int = WHOLE_VOLUME,
        *,
        piece: int = _CHUNK_BYTES,
    ) -> None:
        """
        Read the data file of a volume.

        Args:
            fs: The file system.
            volume: Has the file.
            end: Nothing is read from here on, nor behind the end of the file.
            piece: Bytes that are read at a time.
        """
        self._fs = fs
        self._piece = piece
        self._fd = volume.fd
        self.identity_at = volume.identity_at
        ends = [*(segment.start for segment in volume.segments), WHOLE_VOLUME]
        self._segments = list(zip(volume.salts, ends, strict=True))
        self.file_length = 0 if volume.fd == NO_FILE else fs.stat(volume.fd).st_size
        self.length = min(end, self.file_length)
        self.unreadable: list[tuple[int, int]] = []
        self.has_lost = False
        self._synced_end: int | None = None
        self._start = 0
        self._buffer = b""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the volume, fewer at its end."""
        begin = offset - self._start
        end = begin + length
        if begin < 0 or end > len(self._buffer):
            self._buffer = b""  # Only one of them is in memory.
            self._buffer = self._read_through(offset, max(length, self._piece))
            self._start, begin, end = offset, 0, length
        return self._buffer[begin:end]

    def _read_through(self, offset: int, length: int) -> bytes:
        length = min(length, self.length - offset)
        if length <= 0:
            return b""
        try:
            return self._fs.pread(self._fd, length, offset)
        except OSError:
            end = offset + length
            first = offset - offset % _SECTOR_BYTES
            parts = (
                self._sector(max(at, offset), min(at + _SECTOR_BYTES, end))
                for at in range(first, end, _SECTOR_BYTES)
            )
            return b"".join(parts)

    def _sector(self, start: int, end: int) -> bytes:
        length = end - start
        try:
            return self._fs.pread(self._fd, length, start).ljust(length, b"\0")
        except OSError:
            self.unreadable.append((start, end))
            return bytes(length)

    def salts_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield the salt at an offset and where it ends, and those that follow."""
        for (_, salt), end in self._segments:
            if offset < end:
                yield salt, end

    def is_unreadable(self, start: int, end: int) -> bool:
        """Return whether some of these bytes cannot be read."""
        return any(first < end and start < last for first, last in self.unreadable)

    def may_hide_record(self, offset: int) -> bool:
        """Return whether the header of a record here may be in unreadable bytes."""
        if self.is_unreadable(offset, offset + IDENTITY_BYTES):
            return True
        if not self.begins_record(offset):
            return False
        length = max(FIXED_BYTES, prefix_length(self.read(offset, FIXED_BYTES)))
        return self.is_unreadable(offset, offset + length)

    def begins_record(self, offset: int) -> bool:
        """Return whether a record of this use of the volume was at least started here."""
        return self.read(offset, IDENTITY_BYTES) == self.identity_at(offset).prefix

    def header_at(self, offset: int) -> RecordHeader | None:
        """Return the header of a record here."""
        # Not the longest possible header: copying it for each record would cost more
        # than everything else. Few headers are longer than this.
        data = self.read(offset, _HEADER_BYTES)
        identity = self.identity_at(offset)
        if not data.startswith(identity.prefix):
            return None
        length = prefix_length(data)
        if length > len(data):
            data = self.read(offset, length)
        return self._whole(decode_header(data, identity, offset))

    def corrected_header_at(self, offset: int) -> RecordHeader | None:
        """Return the damaged header of a record here; see `correct_header`."""
        data = self.read(offset, RECORD_PREFIX_BYTES_MAX)
        return self._whole(correct_header(data, self.identity_at(offset), offset))

    def _whole(self, header: RecordHeader | None) -> RecordHeader | None:
        if header is None or header.offset + header.size > self.length:
            return None
        return header

    def value_of(self, header: RecordHeader) -> bytes:
        """Return the value of a record, not checked."""
        return self.read(header.offset + header.value_start, header.length)

    def find_header(self, offset: int, window: int) -> int | None:
        """Return the offset of the next record, at most `window` bytes further on."""
        limit = min(self.length, offset + window)
        for (start, _), end in self._segments:
            found = self._find_in_segment(max(offset, start), min(limit, end))
            if found is not None:
                return found
        return None

    def synced_end(self, start: int, window: int) -> int:
        """
        Return up to where records say that the volume was synced before them.

        They are read once only: what they say grows from one to the next.

        Args:
            start: Where the first one is.
            window: As in `find_header`.
        """
        if self._synced_end is None:
            self._synced_end, at = 0, self.find_header(start, window)
            while at is not None:
                header = self.header_at(at)
                assert header is not None  # noqa: S101 - It was found.
                self._synced_end = max(self._synced_end, at - header.unsynced)
                at = self.find_header(at + header.size, window)
        return self._synced_end

    def _find_in_segment(self, offset: int, limit: int) -> int | None:
        """Return the offset of the next record that begins before `limit`, if any."""
        prefix = self.identity_at(offset).prefix
        overlap = len(prefix) - 1
        while offset < limit:
            # The buffer is searched in place: there can be hundreds of damaged records.
            if not self._start <= offset < self._start + len(self._buffer) - overlap:
                self.read(offset, min(self._piece, self.length - offset))
            chunk, start = self._buffer, self._start
            at = chunk.find(prefix, offset - start)
            while 0 <= at < limit - start:
                if self.header_at(start + at) is not None:
                    return start + at
                at = chunk.find(prefix, at + 1)
            following = start + len(chunk) - overlap
            if following <= offset:
                return None
            offset = following
        return None


def scan_records(
    reader: VolumeReader, start: int, window: int
) -> Iterator[Found | Gap | Torn | Unreadable]:
    """
    Yield what lies in a volume from `start` on, in the order of its bytes.

    Args:
        reader: Of the volume.
        start: Where a record may begin.
        window: The scan ends after this many bytes without a record.
    """
    offset = start
    while offset < reader.length:
        header = reader.header_at(offset)
        is_corrected = header is None
        if header is None:
            header = reader.corrected_header_at(offset)
        if header is not None:
            found = _check_value(reader, header, window, is_corrected=is_corrected)
            yield found
            if isinstance(found, Torn):
                return
            offset += header.size
            continue
        following = reader.find_header(offset + 1, window)
        between = _between(reader, offset, following)
        if between is not None:
            yield between
        if following is None:
            return
        offset = following


def _between(
    reader: VolumeReader, offset: int, following: int | None
) -> Gap | Torn | Unreadable | None:
    """Return what bytes without a record are, up to the one that follows, if any."""
    if reader.may_hide_record(offset):
        return Unreadable(offset, following or reader.length)
    if following is not None:
        return Gap(offset, following)
    return Torn(offset) if reader.begins_record(offset) else None


def _check_value(
    reader: VolumeReader, header: RecordHeader, window: int, *, is_corrected: bool
) -> Found | Gap | Torn:
    """
    Return a record whose key is known, intact or damaged, or that it is torn or a gap.

    Args:
        reader: Of the volume.
        header: Of the record.
        window: A record behind a torn one is at most this many bytes further on.
        is_corrected: The header on the disk is damaged.
    """
    end = header.offset + header.size
    value = reader.value_of(header)
    if (
        crc32c(value) == header.checksum
        # What a get finds later decides; until then the record supersedes older ones.
        or reader.is_unreadable(header.offset, end)
    ):
        return Found(header, not is_corrected)
    if reader.find_header(end, window) is not None:
        is_lost = reader.has_lost and end > reader.synced_end(end, window)
        return Gap(header.offset, end) if is_lost else Found(header, intact=False)
    if not is_corrected and is_one_bit_wrong(value, header.checksum):
        return Found(header, intact=False)
    return Torn(header.offset)
