"""
Values as a tar archive: one member for each, read and written as a stream.

What a tar archive does not know of a value is in PAX records, so `tar` lists and unpacks
it. The records are in docs/FORMAT.md. An archive may come from anywhere: nothing in it
names a file that is written, and memory is bounded whatever its headers say.
"""

from __future__ import annotations

import tarfile
from tarfile import BLOCKSIZE, HeaderError, TarInfo
from typing import IO, TYPE_CHECKING, Final, NamedTuple, NoReturn, Self

from volcache.checksum import crc32c
from volcache.cli.command import FileError
from volcache.store.format import TIME_END
from volcache.store.index_format import decode_key, encode_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from volcache.store.format import Record

# Extended attributes for tar: it neither warns of them nor drops them if it is asked.
_PREFIX: Final = "SCHILY.xattr.user.volcache."
_CHECKSUM: Final = "checksum"
_TEXTS: Final = ("content_type", "content_encoding", "cache_control")
_ENCODING: Final = ("utf-8", "surrogateescape")  # Names are bytes.
_END: Final = bytes(BLOCKSIZE)
_HEADER_BYTES_MAX: Final = 1 << 20  # Of the records of a member.
_PADDING_BYTES_MAX: Final = 1 << 20  # Behind the end, which are read.
_PIECE_BYTES: Final = 1 << 16
_PLACES_MAX: Final = 8  # Digits of the length of a record.
_NO_PATH: Final = {b"", b".", b".."}
_REGULAR: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_RECORDS: Final = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
# Without data, whatever their size is.
_EMPTY: Final = {
    tarfile.LNKTYPE: "is a hard link; tar --hard-dereference writes its contents",
    tarfile.SYMTYPE: "is a symbolic link",
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "is a device"),
    tarfile.FIFOTYPE: "is a pipe",
    tarfile.DIRTYPE: "is a folder",
}
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
}


class LeftOutError(Exception):
    """A value cannot be exported or imported; the message is the reason."""


class ArchivedValue(NamedTuple):
    """What is known of a value beside its bytes."""

    key: bytes
    content_type: bytes
    content_encoding: bytes
    cache_control: bytes
    expires_ms: int  # Milliseconds since 1970; 0: never.
    flags: int

    def encode(self) -> dict[str, str]:
        """Return the records, without their prefix and the checksum."""
        texts = {name: getattr(self, name).decode("latin-1") for name in _TEXTS}
        numbers = {"expires_ms": str(self.expires_ms), "flags": str(self.flags)}
        return {"key": encode_key(self.key), **texts, **numbers}

    @classmethod
    def decode(cls, records: Mapping[str, str]) -> Self:
        """
        Return what records say.

        Raises:
            ValueError, LookupError: They are not the records of a value.
        """
        expires_ms, flags = int(records["expires_ms"]), int(records["flags"])
        if not (0 <= expires_ms < TIME_END and 0 <= flags < 1 << 32):
            raise ValueError
        key = decode_key(records["key"].encode("ascii"))
        texts = {name: records[name].encode("latin-1") for name in _TEXTS}
        return cls(key=key, **texts, expires_ms=expires_ms, flags=flags)


def _checksum(records: Mapping[str, str], value: bytes) -> str:
    lines = (f"{name}={records[name]}\n" for name in sorted(records))
    return f"{crc32c(''.join(lines).encode(*_ENCODING), crc32c(value)):08x}"


def write_value(file: IO[bytes], key: bytes, record: Record) -> None:
    """
    Write a value as a member.

    Raises:
        OSError: The file cannot be written.
    """
    value = record.value
    fields = (getattr(record, name) for name in ArchivedValue._fields[1:])
    records = ArchivedValue(key, *fields).encode()
    records[_CHECKSUM] = _checksum(records, value)
    is_path = b"\0" not in key and not _NO_PATH & set(key.split(b"/"))
    name = key if is_path else encode_key(key).replace("/", "%2F").encode()
    member = TarInfo(name.decode(*_ENCODING))
    member.size, member.mtime = len(value), record.stored_us / 1_000_000
    member.pax_headers = {f"{_PREFIX}{name}": text for name, text in records.items()}
    file.write(member.tobuf(tarfile.PAX_FORMAT, *_ENCODING))
    file.write(value)
    file.write(bytes(-len(value) % BLOCKSIZE))


def write_end(file: IO[bytes]) -> None:
    """
    Write the end: an archive without it is refused.

    Raises:
        OSError: The file cannot be written.
    """
    file.write(_END * 2)


class Member(NamedTuple):
    """Something in an archive."""

    name: bytes
    size: int
    why: str  # It cannot be imported; empty: a regular file.
    records: dict[str, str]  # Those of a value; empty: no export has written it.

    def value_of(self, data: bytes) -> ArchivedValue | None:
        """
        Return what is known of a value beside its bytes; None: nothing.

        Raises:
            LeftOutError: It is not as it was written.
        """
        if not self.records:
            return None
        records = dict(self.records)
        expected = records.pop(_CHECKSUM, "")
        if _checksum(records, data) != expected:
            raise LeftOutError("is not what was exported: its checksum is wrong")
        try:
            return ArchivedValue.decode(records)
        except (ValueError, LookupError):
            raise LeftOutError("its records are not those of an export") from None


class ArchiveReader:
    """
    Reads an archive once, from its beginning to its end.

    Attributes:
        position: How many bytes were read.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        """
        Read nothing yet.

        Args:
            file: Returns less than it is asked for at its end only.
            name: Of the file, for errors.
        """
        self._file, self._name = file, name
        self._place = "at its beginning"
        self._left = self._padding = 0  # Of the present member.
        self.position = 0

    def members(self) -> Iterator[Member]:
        """
        Yield what is in the archive, without folders.

        Raises:
            FileError: It cannot be read, ends too early, or is damaged.
        """
        while (member := self._next()) is not None:
            self._place = f"in the member {encode_key(member.name)}"
            yield member
            self._skip(self._left + self._padding)
            self._left = self._padding = 0
            self._place = f"behind the member {encode_key(member.name)}"

    def read(self) -> bytes:
        """
        Return the data of the present member, as many bytes as its size.

        Raises:
            FileError: It cannot be read, or ends too early.
        """
        size, self._left = self._left, 0
        return self._exactly(size)

    def _next(self) -> Member | None:
        records: dict[bytes, bytes] = {}
        long_name = b""
        while (block := self._exactly(BLOCKSIZE)) != _END:
            info = self._header(block)
            size = _number(records.get(b"size", b"")) or info.size
            if info.type in _RECORDS:
                records = self._records(info.size)
            elif info.type == tarfile.GNUTYPE_LONGNAME:
                long_name = self._extension(info.size).partition(b"\0")[0]
            elif info.type in {tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK}:
                self._skip(info.size + -info.size % BLOCKSIZE)
            elif info.isdir():
                records, long_name = {}, b""
            else:
                self._left = 0 if info.type in _EMPTY else size
                self._padding = -self._left % BLOCKSIZE
                name = records.get(b"path") or long_name or info.name.encode(*_ENCODING)
                return Member(name, size, _why_not(info, records), _own(records))
        self._finish()
        return None

    def _header(self, block: bytes) -> TarInfo:
        try:
            info = TarInfo.frombuf(block, *_ENCODING)
        except HeaderError as error:
            if self.position > BLOCKSIZE:
                self._refuse(f"it is damaged {self._place}: {error}")
            for start, name in _COMPRESSED.items():
                if block.startswith(start):
                    self._refuse(f"it is compressed; pass it through {name} -dc first")
            self._refuse("it is not a tar archive")
        if info.size < 0:
            self._refuse(f"it is damaged {self._place}: a size below 0")
        if info.type == tarfile.GNUTYPE_SPARSE:
            self._refuse(f"{info.name!a} is sparse; use tar without --sparse")
        return info

    def _extension(self, size: int) -> bytes:
        if size > _HEADER_BYTES_MAX:
            allowed = f"allowed are {_HEADER_BYTES_MAX}"
            self._refuse(f"a header {self._place} has {size} bytes; {allowed}")
        return self._exactly(size + -size % BLOCKSIZE)[:size]

    def _records(self, size: int) -> dict[bytes, bytes]:
        data, found, start = self._extension(size), dict[bytes, bytes](), 0
        while start < size:
            digits, _, _ = data[start : start + _PLACES_MAX].partition(b" ")
            length = _number(digits)
            record = data[start + len(digits) + 1 : start + length]
            name, is_record, value = record.partition(b"=")
            if not (is_record and value.endswith(b"\n") and start + length <= size):
                self._refuse(f"it is damaged {self._place}: a record")
            found[name] = value[:-1]
            start += length
        return found

    def _finish(self) -> None:
        """Read what is behind the end: more zeros, as tar writes them."""
        self._place = "behind its end"
        for _ in range(_PADDING_BYTES_MAX // _PIECE_BYTES):
            data = self._read(_PIECE_BYTES)
            if data.strip(b"\0"):
                self._refuse("data follow its end; it may be several archives")
            if not data:
                return

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._exactly(min(size, _PIECE_BYTES)))

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            self._refuse(f"it ends {self._place}" if self.position else "it is empty")
        return data

    def _read(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise FileError(self._name, "read", error) from error
        self.position += len(data)
        return data

    def _refuse(self, what: str) -> NoReturn:
        raise FileError(self._name, "read", OSError(what))


def _number(digits: bytes) -> int:
    """Return a number; 0 if it is none."""
    return int(digits) if digits.isdigit() and len(digits) <= 18 else 0  # noqa: PLR2004


def _why_not(info: TarInfo, records: Mapping[bytes, bytes]) -> str:
    if any(name.startswith(b"GNU.sparse.") for name in records):
        return "is sparse; use tar without --sparse"
    if info.type in _REGULAR:
        return ""
    return _EMPTY.get(info.type, "is not a regular file")


def _own(records: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the records of an export, without their prefix."""
    prefix = _PREFIX.encode()
    return {
        name.removeprefix(prefix).decode("latin-1"): value.decode(*_ENCODING)
        for name, value in records.items()
        if name.startswith(prefix)
    }
