"""
The list of an export: what a file system does not keep of values.

Content types, encodings, cache directives, flags and lifetimes are in one file in the
folder of the values, under a name that no key can have. Extended attributes would be in
the files themselves, but many file systems, archives and copying programs drop them
without an error. The format is in docs/FORMAT.md.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

from google_crc32c import extend as crc32c_extend

from volcache.errors import MountPointError
from volcache.store.files import OsFileSystem
from volcache.store.index_format import decode_key, encode_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.format import Record

FOLDER: Final = "-"  # Keys do not begin with "-/".
NAME: Final = f"{FOLDER}/export.jsonl"
UNFINISHED: Final = f"{NAME}.new"
VERSION: Final = 1
_MAGIC: Final = "volcache_export"
_END: Final = b'{"end"'
_LINE_BYTES_MAX: Final = 1 << 20
_TEXTS: Final = ("content_type", "content_encoding", "cache_control")
# What `Exported.decode` raises.
_NO_LINE: Final = (ValueError, LookupError, TypeError, AttributeError)
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LeftOutError(Exception):
    """A value cannot be exported or imported; the message is the reason."""


class Exported(NamedTuple):
    """A line: what is known of one value."""

    key: bytes
    size: int  # Of the value.
    checksum: int  # CRC-32C of the value.
    stored_ms: int  # Milliseconds since 1970.
    expires_ms: int  # Likewise; 0: never.
    content_type: bytes
    content_encoding: bytes
    cache_control: bytes
    flags: int

    def encode(self) -> bytes:
        """Return the line."""
        fields: dict[str, object] = self._asdict()
        fields["key"] = encode_key(self.key)
        fields["checksum"] = f"{self.checksum:08x}"
        for name in _TEXTS:
            fields[name] = getattr(self, name).decode("latin-1")
        return _line(fields)

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """
        Return what a line says.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: It is not such a line.
        """
        fields = _object(line)
        numbers = {name: fields[name] for name in ("size", "expires_ms", "flags")}
        if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers.values()):
            raise ValueError
        numbers["flags"] &= 0xFFFFFFFF
        return cls(
            key=decode_key(fields["key"].encode("ascii")),
            checksum=int(fields["checksum"], 16),
            stored_ms=int(fields["stored_ms"]),
            **numbers,
            **{name: fields[name].encode("latin-1") for name in _TEXTS},
        )


def _line(fields: dict[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _end(records: int, checksum: int) -> bytes:
    return _line({"end": {"records": records, "checksum": f"{checksum:08x}"}})


def _object(line: bytes) -> dict[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError
    return fields


class SidecarWriter:
    """
    Writes the list of one export.

    It gets its name when it is complete: what an interrupted export leaves has the name
    `UNFINISHED`, and is refused by an import.
    """

    def __init__(self, target: str, store_id: int, now_ms: int) -> None:
        """
        Begin the list.

        Args:
            target: The folder of the values; empty.
            store_id: Of the mount point.
            now_ms: The time of the export, milliseconds since 1970.

        Raises:
            OSError: It cannot be written.
        """
        self._target = Path(target)
        (self._target / FOLDER).mkdir()
        self._file: IO[bytes] = (self._target / UNFINISHED).open("xb")
        self._checksum = self._records = 0
        header = {_MAGIC: VERSION, "store": f"{store_id:016x}", "exported_ms": now_ms}
        self._write(_line(header))

    def add(self, key: bytes, record: Record) -> None:
        """
        Add a value whose file is written.

        Raises:
            OSError: The list cannot be written.
        """
        stored_ms = record.stored_us // 1000
        rest = (getattr(record, name) for name in Exported._fields[4:])
        one = Exported(key, record.length, record.checksum, stored_ms, *rest)
        self._write(one.encode())
        self._records += 1

    def finish(self) -> None:
        """
        Complete the list, and give it its name.

        Raises:
            OSError: It cannot be written.
        """
        self._file.write(_end(self._records, self._checksum))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        (self._target / UNFINISHED).rename(self._target / NAME)
        OsFileSystem().sync_directory(str(self._target / FOLDER))

    def close(self) -> None:
        """Close the file, also of a list that is not complete."""
        with suppress(OSError):  # Reported when it was written.
            self._file.close()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._checksum = crc32c_extend(self._checksum, line)


class Sidecar:
    """The list of an export, or an empty one; each value is taken once."""

    def __init__(self, source: str) -> None:
        """
        Read and verify the list.

        Args:
            source: The folder of the values.

        Raises:
            MountPointError: The list is not complete, damaged, or cannot be read.
        """
        self._source = source.rstrip("/") or "/"
        # Where the line of a key begins. Numbers instead of keys need less memory.
        self._places: dict[int, int] = {}
        self._file: IO[bytes] | None = None
        try:
            self._file = self._open()
            if self._file is not None:
                self._verify(self._file)
        except OSError as error:
            self.close()
            self._refuse(f"cannot be read: {error.strerror or error}; repair it, or")
        except BaseException:
            self.close()
            raise

    def _open(self) -> IO[bytes] | None:
        try:
            folder = os.open(Path(self._source, FOLDER), _FLAGS | os.O_DIRECTORY)
        except OSError:
            return None  # There is none, or it is no folder: the import lists it.
        try:
            if Path(UNFINISHED).name in os.listdir(folder):  # noqa: PTH208 - Of a descriptor.
                self._refuse("the export was interrupted; export again, or", UNFINISHED)
            fd = os.open(Path(NAME).name, _FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            self._refuse("is not a regular file;")
        return os.fdopen(fd, "rb")

    def _refuse(self, why: str, name: str = NAME) -> NoReturn:
        raise MountPointError(
            f"{self._source}/{name}: {why} remove it to import the files without content"
            " types and lifetimes"
        )

    def _verify(self, file: IO[bytes]) -> None:
        line = file.readline(_LINE_BYTES_MAX)
        try:
            version = _object(line)[_MAGIC]
        except (ValueError, LookupError, TypeError):
            self._refuse("is not the list of an export;")
        if version != VERSION:
            self._refuse(f"has version {version!r}; allowed is {VERSION};")
        checksum, records = crc32c_extend(0, line), 0
        place = len(line)
        while not (line := file.readline(_LINE_BYTES_MAX)).startswith(_END):
            try:
                number = hash(Exported.decode(line).key)
            except _NO_LINE:
                self._refuse_damaged(f"line {records + 2} is damaged or missing")
            if self._places.setdefault(number, place) != place:
                self._refuse_damaged(f"line {records + 2} has a key for a second time")
            checksum = crc32c_extend(checksum, line)
            records += 1
            place += len(line)
        if line != _end(records, checksum) or file.read(1):
            self._refuse_damaged("its checksum is wrong")

    def _refuse_damaged(self, what: str) -> NoReturn:
        self._refuse(f"{what}: put back the right file, or")

    @property
    def exists(self) -> bool:
        """Whether there is a list."""
        return self._file is not None

    def find(self, key: bytes) -> Exported | None:
        """
        Return what is known of a value; None: it was not exported, or was taken.

        Raises:
            MountPointError: The list changed since it was verified.
        """
        place = self._places.get(hash(key))
        if place is None:
            return None
        found = self._read(place)
        return found if found.key == key else None

    def take(self, key: bytes) -> Exported | None:
        """Return the same, and forget the value."""
        found = self.find(key)
        if found is not None:
            del self._places[hash(key)]
        return found

    def rest(self) -> Iterator[Exported]:
        """Yield what was not taken."""
        return map(self._read, self._places.values())

    def _read(self, place: int) -> Exported:
        try:
            if self._file is None:
                raise ValueError
            self._file.seek(place)
            return Exported.decode(self._file.readline(_LINE_BYTES_MAX))
        except (OSError, *_NO_LINE) as error:
            message = f"{self._source}/{NAME}: changed or cannot be read meanwhile"
            raise MountPointError(message) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
