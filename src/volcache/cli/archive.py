"""
Values as a tar archive: one member for each, read and written as a stream.

What a tar archive does not know of a value is in PAX records, so `tar` lists and unpacks
it. The records are in docs/FORMAT.md. An archive may come from anywhere: nothing in it
names a file that is written, and memory is bounded whatever its headers say.
"""

from __future__ import annotations

import tarfile
from functools import partial
from tarfile import BLOCKSIZE, HeaderError, ReadError, TarError, TarFile, TarInfo
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self

from volcache.checksum import crc32c
from volcache.cli.command import FileError
from volcache.store.format import TIME_END
from volcache.store.index_format import decode_key, encode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from volcache.store.format import Record

# Extended attributes for tar: it neither warns of them nor drops them if it is asked.
_PREFIX: Final = "SCHILY.xattr.user.volcache."
_CHECKSUM: Final = "checksum"
_TEXTS: Final = ("content_type", "content_encoding", "cache_control")
_ENCODING: Final = ("utf-8", "surrogateescape")  # Names are bytes.
_END: Final = bytes(BLOCKSIZE)
_HEADER_BYTES_MAX: Final = 1 << 20  # Of the records or the long name of a member.
_EXTENSIONS: Final = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_PADDING_BYTES_MAX: Final = 1 << 20  # Behind the end, which are read.
_NO_PATH: Final = {b"", b".", b".."}


class LeftOutError(Exception):
    """A value cannot be exported or loaded; the message is the reason."""


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
    why: str  # It is not a value; empty: it is.
    read: Callable[[], bytes]  # Before the next one; raises FileError.
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


class _Header(TarInfo):
    """The header of a member. One that is wrong is an error, and not the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            found = super().frombuf(buf, encoding, errors)
        except HeaderError as error:
            if buf == _END:
                raise
            raise ReadError(str(error)) from error
        is_long = found.type in _EXTENSIONS and found.size > _HEADER_BYTES_MAX
        if found.size < 0 or is_long:
            raise ReadError(f"a header of {found.size} bytes")
        return found


def read_members(file: IO[bytes], name: str) -> Iterator[Member]:
    """
    Yield what is in an archive, without folders.

    Args:
        file: Returns less than it is asked for at its end only.
        name: Of the file, for errors.

    Raises:
        FileError: It cannot be read, ends too early, or is damaged.
    """
    encoding, errors = _ENCODING
    place = "no tar archive (a compressed one: pass it through gzip -dc)"
    try:
        with tarfile.open(
            fileobj=file, mode="r|", tarinfo=_Header, encoding=encoding, errors=errors
        ) as tar:
            for info in tar:
                # It would keep all.
                tar.members.clear()  # type: ignore[attr-defined]
                key = info.name.encode(*_ENCODING)
                place = f"damaged behind the member {encode_key(key)}"
                if not info.isdir():
                    read = partial(_read, tar, info, name)
                    yield Member(key, info.size, _why_not(info), read, _own(info))
            if tar.fileobj.read(_PADDING_BYTES_MAX).strip(b"\0"):
                raise ReadError("data follow the end; it may be several archives")
    except TarError as error:
        raise FileError(name, "read", OSError(f"{place}: {error}")) from error
    except OSError as error:
        raise FileError(name, "read", error) from error


def _read(tar: TarFile, info: TarInfo, name: str) -> bytes:
    try:
        file = tar.extractfile(info)
        return file.read() if file else b""
    except TarError as error:
        place = f"damaged in the member {encode_key(info.name.encode(*_ENCODING))}"
        raise FileError(name, "read", OSError(f"{place}: {error}")) from error
    except OSError as error:
        raise FileError(name, "read", error) from error


def _why_not(info: TarInfo) -> str:
    if info.islnk():
        return "is a hard link; tar --hard-dereference writes its contents"
    return "" if info.isreg() else "is not a regular file"


def _own(info: TarInfo) -> dict[str, str]:
    """Return the records of an export, without their prefix."""
    return {
        name.removeprefix(_PREFIX): value
        for name, value in info.pax_headers.items()
        if name.startswith(_PREFIX)
    }
