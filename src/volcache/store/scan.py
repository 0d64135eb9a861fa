"""
Find records in a volume by reading it, without its index file.

A torn record at the end is normal: the process or the machine stopped while it was
written, and it was not acknowledged. Damage with records after it is an event. A scan
distinguishes them by looking for a record of the same use of the volume further on. The
offset and the store id in each record header prevent that a copy of a record, stored as
part of a value, is taken for a record.

Mount counts identify *stale* records. After a power loss, old records can lie behind a
hole that is too wide to look across; the next mount writes from the hole on, and may end
exactly where an old record begins. Mount counts never decrease along a volume, so a
record with a lower one than the record before it is stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from volcache.store.format import decode_header, prefix_length
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
_CHUNK_BYTES: Final = 8 * 2**20
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


class VolumeReader:
    """Reads a volume in large pieces; unreadable sectors read as zeros."""

    def __init__(self, fs: FileSystem, volume: Volume, end: int = WHOLE_VOLUME) -> None:
        """Read the data file of `volume`, up to `end` or the end of the file."""
        self._fs = fs
        self._fd = volume.fd
        self._prefix = volume.identity.prefix
        self.identity = volume.identity
        self.file_length = 0 if volume.fd == NO_FILE else fs.size(volume.fd)
        self.length = min(end, self.file_length)
        self.unreadable_sectors = 0
        self._start = 0
        self._buffer = b""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the volume, fewer at its end."""
        begin = offset - self._start
        end = begin + length
        if begin < 0 or end > len(self._buffer):
            self._buffer = self._read_through(offset, max(length, _CHUNK_BYTES))
            self._start, begin, end = offset, 0, length
        return self._buffer[begin:end]

    def _read_through(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.length - offset))
        try:
            return self._fs.pread(self._fd, length, offset)
        except OSError:
            sectors = range(offset, offset + length, _SECTOR_BYTES)
            parts = (self._sector(at, offset + length - at) for at in sectors)
            return b"".join(parts)

    def _sector(self, offset: int, left: int) -> bytes:
        length = min(left, _SECTOR_BYTES)
        try:
            return self._fs.pread(self._fd, length, offset).ljust(length, b"\0")
        except OSError:
            self.unreadable_sectors += 1
            return bytes(length)

    def begins_record(self, offset: int) -> bool:
        """Return whether a record of this use of the volume was at least started here."""
        return self.read(offset, len(self._prefix)) == self._prefix

    def header_at(self, offset: int, mount_count: int) -> RecordHeader | None:
        """Return the header of a record here, if it has at least this mount count."""
        # Not the longest possible header: copying it for each record would cost more
        # than everything else. Few headers are longer than this.
        data = self.read(offset, _HEADER_BYTES)
        if not data.startswith(self._prefix):
            return None
        length = prefix_length(data)
        if length > len(data):
            data = self.read(offset, length)
        header = decode_header(data, self._prefix, offset)
        if header is None or header.mount_count < mount_count:
            return None
        return header if offset + header.size <= self.length else None

    def is_intact(self, header: RecordHeader) -> bool:
        """Return whether the value of a record has the right checksum."""
        value = self.read(header.offset + header.value_start, header.length)
        return len(value) == header.length and crc32c(value) == header.checksum

    def find_header(self, offset: int, mount_count: int, window: int) -> int | None:
        """Return the offset of the next record, at most `window` bytes further on."""
        limit = min(self.length, offset + window)
        overlap = len(self._prefix) - 1
        while offset < limit:
            # The buffer is searched in place: there can be hundreds of damaged records.
            if not self._start <= offset < self._start + len(self._buffer) - overlap:
                self.read(offset, min(_CHUNK_BYTES, self.length - offset))
            chunk, start = self._buffer, self._start
            at = chunk.find(self._prefix, offset - start)
            while at >= 0:
                if self.header_at(start + at, mount_count) is not None:
                    return start + at
                at = chunk.find(self._prefix, at + 1)
            following = start + len(chunk) - overlap
            if following <= offset:
                return None
            offset = following
        return None


def scan_records(
    reader: VolumeReader, start: int, window: int
) -> Iterator[Found | Gap | Torn]:
    """
    Yield what lies in a volume from `start` on, in the order of its bytes.

    Args:
        reader: Of the volume.
        start: Where a record may begin.
        window: The scan ends after this many bytes without a record.
    """
    offset, mount_count = start, 0
    while offset < reader.length:
        header = reader.header_at(offset, mount_count)
        if header is not None:
            end = offset + header.size
            intact = reader.is_intact(header)
            if not intact and reader.find_header(end, mount_count, window) is None:
                yield Torn(offset)
                return
            yield Found(header, intact)
            offset, mount_count = end, header.mount_count
            continue
        following = reader.find_header(offset + 1, mount_count, window)
        if following is None:
            if reader.begins_record(offset):
                yield Torn(offset)
            return
        yield Gap(offset, following)
        offset = following
