"""
Read volumes and index files without the core, as docs/FORMAT.md and scan.h define them.

A start or a check that reads so is the oracle of one with the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

from google_crc32c import value as crc32c

from support.index_files import read
from support.records import IDENTITY, decode_header, identity_of
from volcache.store import replay, volume_check
from volcache.store.files import FileSystem, read_range
from volcache.store.format import (
    FIXED_BYTES,
    RECORD_PREFIX_BYTES_MAX,
    VOLUME_HEADER_BYTES,
    Place,
    RecordHeader,
    prefix_length,
)
from volcache.store.index import Found, Gap, Torn, Unreadable
from volcache.store.native import Index
from volcache.store.volume import IndexContents, Volume

_SECTOR: Final = 4096
_POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C, reflected
_CORRECTED_BYTES: Final = 4096
_CORRECTED_VALUE_BYTES: Final = 2**20
_END: Final = 2**64 - 1


class PlainRecords:
    """What `Records` is, without records that are passed together."""

    def __init__(
        self,
        fs: FileSystem,
        volume: Volume,
        start: int,
        end: int = _END,
        window: int = _END,
        has_lost: bool = False,  # noqa: FBT001, FBT002
        **_: object,
    ) -> None:
        """Read the data file from the sector of the start on."""
        self.at, self._window, self._has_lost = start, window, has_lost
        self._place_at = volume.place_at
        self.length = min(end, 0 if volume.fd < 0 else fs.stat(volume.fd).st_size)
        self._bad: list[int] = []
        sectors = range(start - start % _SECTOR, self.length, _SECTOR)
        data = b"".join(self._sector(fs, volume.fd, at) for at in sectors)
        self._data = bytes(start - start % _SECTOR) + data

    def _sector(self, fs: FileSystem, fd: int, at: int) -> bytes:
        try:
            return fs.pread(fd, min(_SECTOR, self.length - at), at)
        except OSError:
            self._bad.append(at)
            return bytes(_SECTOR)

    @property
    def unreadable(self) -> tuple[int, int]:
        """As that of `Records`."""
        bad = [at for at in self._bad if at < self.length]
        return len(bad), bad[0] if bad else 0

    def expect(self, _: bytes, length: int) -> None:
        """Pass no records together."""
        self.length = min(self.length, length)
        self._data = self._data[: self.length]

    def skip_line(self) -> None:
        """Compare no lines."""

    def _is_bad(self, start: int, end: int) -> bool:
        return any(at < end and start < at + _SECTOR for at in self._bad)

    def _header_at(self, offset: int) -> RecordHeader | None:
        data = self._data[offset : offset + RECORD_PREFIX_BYTES_MAX]
        return self._whole(decode_header(data, self._place_at(offset)))

    def _whole(self, header: RecordHeader | None) -> RecordHeader | None:
        is_whole = header is not None and header.offset + header.size <= self.length
        return header if is_whole else None

    def _find(self, offset: int) -> int | None:
        limit = min(self.length, offset + self._window)
        while offset < limit:
            offset = self._data.find(b"VLR", offset)
            if not 0 <= offset < limit:
                return None
            if self._header_at(offset) is not None:
                return offset
            offset += 1
        return None

    def has_more(self, offset: int) -> bool:
        """As that of `Records`."""
        return self._find(offset) is not None

    def __iter__(self) -> Iterator[Found | Gap | Torn | Unreadable]:
        while self.at < self.length:
            found: Found | Gap | Torn | Unreadable | None
            start, header = self.at, self._header_at(self.at)
            is_corrected = header is None
            if header is None:
                data = self._data[start : start + RECORD_PREFIX_BYTES_MAX]
                header = self._whole(correct_header(data, self._place_at(start)))
            if header is not None:
                self.at += header.size
                found = self._judge(header, is_corrected=is_corrected)
            else:
                following = self._find(start + 1)
                found = self._between(start, following)
                self.at = following or self.length
            if found is not None:
                yield found
            if isinstance(found, Torn):
                return

    def _judge(self, header: RecordHeader, *, is_corrected: bool) -> Found | Gap | Torn:
        end = header.offset + header.size
        value = self._data[header.offset + header.value_start : end]
        if crc32c(value) == header.checksum or self._is_bad(header.offset, end):
            return Found(header, not is_corrected)
        if self._find(end) is not None:
            is_lost = self._has_lost and end > self._synced_end(end)
            return Gap(header.offset, end) if is_lost else Found(header, intact=False)
        if not is_corrected and is_one_bit_wrong(value, header.checksum):
            return Found(header, intact=False)
        return Torn(header.offset)

    def _synced_end(self, offset: int) -> int:
        end, at = 0, self._find(offset)
        while at is not None:
            header = self._header_at(at)
            assert header is not None
            end = max(end, at - header.unsynced)
            at = self._find(at + header.size)
        return end

    def _between(
        self, start: int, following: int | None
    ) -> Gap | Torn | Unreadable | None:
        data = self._data[start : start + FIXED_BYTES]
        is_begun = data.startswith(identity_of(self._place_at(start).salt))
        length = max(FIXED_BYTES, prefix_length(data)) if is_begun else IDENTITY.size
        if self._is_bad(start, start + length):
            return Unreadable(start, following or self.length)
        if following is not None:
            return Gap(start, following)
        return Torn(start) if is_begun else None


def correct_header(data: bytes, place: Place) -> RecordHeader | None:
    """Return a damaged header part: a bit is wrong, or what is written is not allowed."""
    found = decode_header(data, place, is_bounded=False)
    if found is not None:
        return found
    wrong = _different_bits(data[: IDENTITY.size], identity_of(place.salt))
    wrong += _different_bits(data[32:40], place.offset.to_bytes(8, "little"))
    if wrong > 1:
        return None  # Not a record of this place.
    length = min(max(prefix_length(data), FIXED_BYTES), _CORRECTED_BYTES)
    tried = bytearray(data[:_CORRECTED_BYTES])
    for bit in range(8 * min(length, len(tried))):
        tried[bit >> 3] ^= 1 << (bit & 7)
        header = decode_header(bytes(tried), place)
        if header is not None:
            return header
        tried[bit >> 3] ^= 1 << (bit & 7)
    return None


def _different_bits(one: bytes, other: bytes) -> int:
    both = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return both.bit_count()


def is_one_bit_wrong(value: bytes, checksum: int) -> bool:
    """Return whether a value would have this CRC-32C if one of its bits were flipped."""
    if len(value) > _CORRECTED_VALUE_BYTES:
        return False
    difference, syndrome = crc32c(value) ^ checksum, _POLYNOMIAL
    for _ in range(8 * len(value)):
        if syndrome == difference:
            return True
        syndrome = syndrome >> 1 ^ (_POLYNOMIAL if syndrome & 1 else 0)
    return False


def _load(self: IndexContents, index: Index, fs: FileSystem, fd: int) -> None:
    """Do what `IndexContents.replay` does."""
    self._data = read_range(fs, fd, 0, fs.stat(fd).st_size)
    seq = self._name.use.seq
    for entries in read(self):
        for key, offset, size in entries:
            if size:
                index.set(key, seq, offset, size)
            else:
                index.set(key, seq, VOLUME_HEADER_BYTES, 1, tombstone=True)


def _read_lines(self: IndexContents) -> tuple[bytes, bool]:
    """Do what `IndexContents.read_lines` does; the walk decodes what is in no order."""
    for _ in read(self):
        pass
    return self._data[: self.found.file_end], False


@contextmanager
def without_the_core() -> Iterator[None]:
    """Let files be read so meanwhile."""
    with (
        mock.patch.object(IndexContents, "replay", _load),
        mock.patch.object(IndexContents, "read_lines", _read_lines),
        mock.patch.object(replay, "Records", PlainRecords),
        mock.patch.object(volume_check, "Records", PlainRecords),
    ):
        yield
