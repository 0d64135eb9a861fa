"""
Append records to one volume, and keep their entries for its index file.

`Writer` is the interface, `PythonWriter` the implementation in Python; the native one, see
`native.py`, writes the same bytes by the same system calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from google_crc32c import value as crc32c

from volcache.store.files import write_all
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    encode_record,
    volume_identity,
)
from volcache.store.index_format import encode_entries

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.index_format import Entry

# The block size of ext4 and XFS, and the page size of x86 and most ARM.
_PAGE_BYTES: Final = 4096
_ZEROS: Final = bytes(_PAGE_BYTES)


class SyncFailedError(OSError):
    """A sync failed: the volume must be retired."""


class Writer(Protocol):
    """
    The end of a volume and the entries of records that its index file does not have.

    Attributes:
        fd: Descriptor of the data file.
        end: Offset of the next record.
        capacity: Records may be written up to this offset; 0 if none may.
        salt: Of the records that are appended.
    """

    fd: int
    end: int
    capacity: int
    salt: int

    @property
    def pending(self) -> int:
        """The number of entries that are kept."""

    @property
    def lines(self) -> bytes:
        """The entries that are kept, as lines of an index file."""

    def clear(self) -> None:
        """Keep no entries."""

    def add_entry(self, key: bytes, offset: int, size: int) -> None:
        """Keep an entry; offset and size are 0 for a deletion."""

    def append(
        self,
        key: bytes,
        value: bytes,
        content_type: bytes,
        content_encoding: bytes,
        cache_control: bytes,
        stored_us: int,
        expires_ms: int,
        flags: int,
        is_tombstone: bool,  # noqa: FBT001 - By position, for the native one.
        sync: bool,  # noqa: FBT001
    ) -> tuple[int, int, int]:
        """
        Write a record at `end` and keep its entry.

        The page that the record ends in is written completely. To write part of a page
        that is not in memory, the kernel would first read it from the disk: one read for
        each page of a volume that is used again.

        Args:
            key: And the others: as in `format.encode_record`.
            value: The record fits before `capacity`.
            content_type: At most 255 bytes.
            content_encoding: Likewise.
            cache_control: Likewise.
            stored_us: Microseconds since the epoch.
            expires_ms: Milliseconds since the epoch; 0 = never.
            flags: 32 bits.
            is_tombstone: The record of a deletion; `value` is empty.
            sync: Return only when the record is on the disk.

        Returns:
            Offset and size of the record, and the CRC-32C of the value.

        Raises:
            SyncFailedError: `end` has not moved; the volume must be retired.
            OSError: `end` has not moved; the next record overwrites this one.
        """


class PythonWriter:
    """Implements `Writer`."""

    def __init__(self, fs: FileSystem, fd: int, volume: int) -> None:
        """Write after the header of a volume; `capacity` is 0."""
        self._fs = fs
        self._volume = volume
        self._entries: list[Entry] = []
        # Whole pages are written up to here: the kernel has them in memory and does not
        # read them from the disk for a record that covers part of one.
        self._written_end = 0
        self.fd = fd
        self.end = VOLUME_HEADER_BYTES
        self.capacity = 0
        self.salt = 0

    @property
    def pending(self) -> int:
        return len(self._entries)

    @property
    def lines(self) -> bytes:
        return encode_entries(self._entries)

    def clear(self) -> None:
        self._entries = []

    def add_entry(self, key: bytes, offset: int, size: int) -> None:
        self._entries.append((key, offset, size))

    def append(
        self,
        key: bytes,
        value: bytes,
        content_type: bytes,
        content_encoding: bytes,
        cache_control: bytes,
        stored_us: int,
        expires_ms: int,
        flags: int,
        is_tombstone: bool,  # noqa: FBT001
        sync: bool,  # noqa: FBT001
    ) -> tuple[int, int, int]:
        offset, length, checksum = self.end, len(value), crc32c(value)
        header = encode_record(
            volume_identity(self._volume, self.salt),
            offset,
            stored_us,
            expires_ms,
            content_type,
            content_encoding,
            cache_control,
            key,
            length,
            checksum,
            flags,
            int(is_tombstone),
        )
        size = len(header) + length
        end = offset + size
        if end > self.capacity:
            raise ValueError("the record is longer than the rest of the volume")
        buffers = (header, value) if length else (header,)
        written_end = self._written_end
        if end > written_end:
            written_end = min(end + -end % _PAGE_BYTES, self.capacity)
            if written_end > end:
                buffers = (*buffers, _ZEROS[: written_end - end])
        self._write(buffers, offset, sync=sync)
        self._written_end = written_end
        self.end = end
        self._entries.append((key, 0, 0) if is_tombstone else (key, offset, size))
        return offset, size, checksum

    def _write(self, buffers: tuple[bytes, ...], offset: int, *, sync: bool) -> None:
        written = self._fs.pwritev(self.fd, buffers, offset)
        if written != sum(map(len, buffers)):  # The kernel wrote only a part.
            rest = b"".join(buffers)[written:]
            write_all(self._fs, self.fd, rest, offset + written)
        if sync:
            try:
                self._fs.sync(self.fd)
            except OSError as error:
                raise SyncFailedError(error.errno, error.strerror) from error
