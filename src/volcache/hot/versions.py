"""
Key versions: the ids of items in memcached, and HOT.txt, which keeps them over a restart.

A memcached cannot be relied on to delete: a delete may be lost, a set sent before it may
arrive after it, and a server that was unreachable may return with old items. So volcache
deletes nothing there. The id of an item is a digest of its key, of the key's *version*
and of the *epoch*, a random number. A put or delete of a promoted key increases its
version, so that the items stored before are never looked up again. A new epoch does the
same for all keys at once.

Each change is appended to HOT.txt before it takes effect, so it also holds after a
restart. The format, as in docs/FORMAT.md::

    # volcache hot 1 store 5f0c64d3c1f0a7be epoch <32 hex> boot <8 hex> <8 hex>
    +<16 hex> <8 hex>
    -<16 hex> <8 hex>

The first line ends with its CRC-32C. A line with `+` records that a key was promoted, a
line with `-` that it was invalidated: half of the key's digest, then a CRC-32C over the
epoch and the line. A last line without its newline is torn and is ignored.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

from google_crc32c import value as crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION: Final = 1
# Then a new epoch begins, and hot keys are promoted again within a few reads. The file
# is 7 MB by then, the dict at most 26 MB. As many items of 4 KiB fill 1 GiB.
LINES_MAX: Final = 262_144
ID_BYTES: Final = 16
_EPOCH_BYTES: Final = 16
_HALF_BYTES: Final = 8
_SALT_BYTES: Final = 16
_HEADER: Final = re.compile(
    rb"# volcache hot ([0-9]+) store ([0-9a-f]{16}) epoch ([0-9a-f]{32})"
    rb" boot ([0-9a-f]{8}) ([0-9a-f]{8})\n"
)
_LINE: Final = re.compile(rb"([+-][0-9a-f]{16}) ([0-9a-f]{8})\n")


class Journal(Protocol):
    """A small file: read whole, replaced atomically, appended to."""

    def read(self) -> bytes:
        """Return the content; empty if the file is missing. May raise `OSError`."""

    def replace(self, data: bytes) -> None:
        """Replace the content atomically and durably. May raise `OSError`."""

    def append(self, data: bytes) -> None:
        """Append; survives a crash of the process. May raise `OSError`."""

    def close(self) -> None:
        """Close the file."""


def first_damage(data: bytes, store_id: int) -> tuple[int, str] | None:
    """
    Return the offset and the reason of the first damage in HOT.txt; None if it is intact.

    A torn last line is not damage.
    """
    header = _parse_header(data)
    if header is None:
        return (0, "the first line fails its checksum") if b"\n" in data else None
    if int(header[2], 16) != store_id:
        return 0, f"belongs to another store, {header[2].decode()}"
    at = header.end()
    for line in _parse_lines(data, at, bytes.fromhex(header[3].decode())):
        at = line.end()
    if b"\n" in data[at:]:
        return at, "a line fails its checksum"
    return None


def _parse_header(data: bytes) -> re.Match[bytes] | None:
    """Return the fields of the first line; None if its checksum is wrong."""
    found = _HEADER.match(data)
    if found is None or crc32c(data[: found.start(5)]) != int(found[5], 16):
        return None
    return found


def _parse_lines(data: bytes, at: int, epoch: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the lines from offset `at` up to the first with a wrong checksum."""
    while line := _LINE.match(data, at):
        if int(line[2], 16) != crc32c(epoch + line[1]):
            return
        yield line
        at = line.end()


class KeyVersions:
    """The epoch, and for each key promoted in it its version and whether it has a copy."""

    def __init__(self, journal: Journal, *, store_id: int, boot_id: str) -> None:
        """
        Continue the epoch of HOT.txt if that is safe, else begin a new one.

        Args:
            journal: HOT.txt; closed together with this object.
            store_id: An epoch of another store is not continued.
            boot_id: Of the machine. Appended lines are not synced, so an epoch of an
                earlier boot may be incomplete and is not continued.

        Raises:
            OSError: The journal cannot be read or written.
        """
        self._journal = journal
        self._store_id = store_id
        self._boot = crc32c(boot_id.encode())
        self._epoch = b""
        # By half of the key's digest: twice the version, plus 1 while the key is promoted.
        self._versions: dict[bytes, int] = {}
        self._lines = 0
        if not self._resume(journal.read()):
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """
        Make every item unreachable, in constant time.

        Raises:
            OSError: The old epoch continues.
        """
        epoch = secrets.token_bytes(_EPOCH_BYTES)
        header = (
            f"# volcache hot {VERSION} store {self._store_id:016x}"
            f" epoch {epoch.hex()} boot {self._boot:08x} "
        ).encode()
        self._journal.replace(header + b"%08x\n" % crc32c(header))
        self._start(epoch)

    def _start(self, epoch: bytes) -> None:
        self._epoch = epoch
        self._versions = {}
        self._lines = 0

    def _resume(self, data: bytes) -> bool:
        """Continue the epoch of a file; False if the file cannot be relied on."""
        header = _parse_header(data)
        if header is None:
            return False
        version, store_id, boot = int(header[1]), int(header[2], 16), int(header[4], 16)
        if (version, store_id, boot) != (VERSION, self._store_id, self._boot):
            return False
        self._start(bytes.fromhex(header[3].decode()))
        at = header.end()
        for line in _parse_lines(data, at, self._epoch):
            half = bytes.fromhex(line[1][1:].decode())
            self._apply(half, is_promotion=line[1].startswith(b"+"))
            at = line.end()
        if b"\n" in data[at:]:
            return False  # Damage: a torn last line has no newline.
        if at < len(data):
            self._journal.replace(data[:at])
        return True

    def item_id(self, key: bytes) -> bytes:
        """Return the id of a key's item at its present version: `ID_BYTES` bytes."""
        digest = self._digest(key)
        version = self._versions.get(digest[:_HALF_BYTES], 0) >> 1
        if not version:
            return digest
        salt = version.to_bytes(_SALT_BYTES, "little")
        return blake2b(key, digest_size=ID_BYTES, key=self._epoch, salt=salt).digest()

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=ID_BYTES, key=self._epoch).digest()

    def may_hold(self, key: bytes) -> bool:
        """Return whether the key is promoted at its present version."""
        if not self._lines:
            return False
        return bool(self._versions.get(self._digest(key)[:_HALF_BYTES], 0) & 1)

    def record_promotion(self, key: bytes) -> None:
        """
        Record that a key is promoted; to be called before its item is sent.

        Raises:
            OSError: It is not recorded; do not send the item.
        """
        if self._lines >= LINES_MAX:
            self.begin_epoch()
        half = self._digest(key)[:_HALF_BYTES]
        if not self._versions.get(half, 0) & 1:
            self._append(half, is_promotion=True)

    def invalidate(self, key: bytes) -> None:
        """
        Increase the version of a promoted key; to be called before its value changes.

        Raises:
            OSError: The version is unchanged; do not change the value.
        """
        if self._lines >= LINES_MAX:
            self.begin_epoch()
            return
        half = self._digest(key)[:_HALF_BYTES]
        if self._versions.get(half, 0) & 1:
            self._append(half, is_promotion=False)

    def _append(self, half: bytes, *, is_promotion: bool) -> None:
        text = (b"+" if is_promotion else b"-") + half.hex().encode()
        self._journal.append(text + b" %08x\n" % crc32c(self._epoch + text))
        self._apply(half, is_promotion=is_promotion)

    def _apply(self, half: bytes, *, is_promotion: bool) -> None:
        self._lines += 1
        version = self._versions.get(half, 0)
        self._versions[half] = version | 1 if is_promotion else (version | 1) + 1

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
