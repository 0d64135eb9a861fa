"""
The names of items: how a put makes every copy of the old value unfindable.

memcached cannot be relied on to forget: a removal may be lost, a copy sent earlier may
arrive late, a server that was away may come back with all it had. So nothing is ever
removed there. An item is stored under a name made from the key, from how often the key was
invalidated, and from the *epoch*, a random number. A put or delete of a promoted key counts
it up, and from then on nobody asks for the old name again; a new epoch does so for all keys
at once.

What is counted is written to HOT.txt before it counts, so that it also holds after a
restart. As drawn in docs/FORMAT.md::

    # volcache hot 1 store 5f0c64d3c1f0a7be epoch <32 hex> boot <8 hex> <8 hex>
    +<16 hex> <8 hex>
    -<16 hex> <8 hex>

A key, by half of its digest, was promoted, or was invalidated; and a CRC-32C over epoch
and line. A line without its newline is torn, and what it says did not happen.
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
# Then a new epoch begins, and what is wanted is promoted again within a few reads. The
# file has 7 MB by then, the dict up to 26 MB. As many items of 4 KiB fill 1 GiB.
LINES_MAX: Final = 262_144
NAME_BYTES: Final = 16
_EPOCH_BYTES: Final = 16
_HALF_BYTES: Final = 8
_SALT_BYTES: Final = 16
_HEADER: Final = re.compile(
    rb"# volcache hot ([0-9]+) store ([0-9a-f]{16}) epoch ([0-9a-f]{32})"
    rb" boot ([0-9a-f]{8}) ([0-9a-f]{8})\n"
)
_LINE: Final = re.compile(rb"([+-][0-9a-f]{16}) ([0-9a-f]{8})\n")


class Journal(Protocol):
    """A small file: read whole, replaced in one step, appended to."""

    def read(self) -> bytes:
        """Return all of it; empty when there is none. May raise `OSError`."""

    def replace(self, data: bytes) -> None:
        """Put `data` in its place, durably and in one step. May raise `OSError`."""

    def append(self, data: bytes) -> None:
        """Add `data`; it survives the process from then on. May raise `OSError`."""

    def close(self) -> None:
        """Give back what is open."""


def _header(data: bytes) -> re.Match[bytes] | None:
    """Return the parts of the first line, if it checks out."""
    found = _HEADER.match(data)
    if found is None or crc32c(data[: found.start(5)]) != int(found[5], 16):
        return None
    return found


def _lines(data: bytes, at: int, epoch: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the lines from `at` up to the first that does not check out."""
    while line := _LINE.match(data, at):
        if int(line[2], 16) != crc32c(epoch + line[1]):
            return
        yield line
        at = line.end()


def first_damage(data: bytes, store_id: int) -> tuple[int, str] | None:
    """
    Return where HOT.txt does not check out, and why; None: it does.

    A last line without its newline is torn, which is no damage.
    """
    found = _header(data)
    if found is None:
        return (0, "the first line does not check out") if b"\n" in data else None
    if int(found[2], 16) != store_id:
        return 0, f"is of store {found[2].decode()}, another one"
    at = found.end()
    for line in _lines(data, at, bytes.fromhex(found[3].decode())):
        at = line.end()
    if b"\n" in data[at:]:
        return at, "a line does not check out"
    return None


class KeyVersions:
    """The epoch, and what was promoted and invalidated in it."""

    def __init__(self, journal: Journal, *, store_id: int, boot_id: str) -> None:
        """
        Go on with the epoch of last time where that is safe.

        Args:
            journal: HOT.txt; closed with this.
            store_id: Items of another store are never ours.
            boot_id: Of the machine. What is appended is not synced, so it does not
                survive the next boot, and then another epoch has to begin.

        Raises:
            OSError: The journal cannot be read or written.
        """
        self._journal = journal
        self._store_id = store_id
        self._boot = crc32c(boot_id.encode())
        self._epoch = b""
        # Half a digest to twice the number of invalidations, plus 1 while promoted.
        self._keys: dict[bytes, int] = {}
        self._lines = 0
        if not self._resume(journal.read()):
            self.begin()

    def begin(self) -> None:
        """
        Begin a new epoch: no item stored before is asked for again. Constant work.

        Raises:
            OSError: The old epoch goes on.
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
        self._keys = {}
        self._lines = 0

    def _resume(self, data: bytes) -> bool:
        """Take over what the file says; false when it cannot be relied on."""
        found = _header(data)
        if found is None:
            return False
        version, store_id, boot = int(found[1]), int(found[2], 16), int(found[4], 16)
        if (version, store_id, boot) != (VERSION, self._store_id, self._boot):
            return False
        self._start(bytes.fromhex(found[3].decode()))
        at = found.end()
        for line in _lines(data, at, self._epoch):
            half = bytes.fromhex(line[1][1:].decode())
            self._count(half, is_promotion=line[1].startswith(b"+"))
            at = line.end()
        if b"\n" in data[at:]:
            return False  # Damage, not a torn last line.
        if at < len(data):
            self._journal.replace(data[:at])
        return True

    def name(self, key: bytes) -> bytes:
        """Return the present name of a key's item: `NAME_BYTES` bytes."""
        digest = self._digest(key)
        count = self._keys.get(digest[:_HALF_BYTES], 0) >> 1
        if not count:
            return digest
        salt = count.to_bytes(_SALT_BYTES, "little")
        return blake2b(key, digest_size=NAME_BYTES, key=self._epoch, salt=salt).digest()

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=NAME_BYTES, key=self._epoch).digest()

    def may_hold(self, key: bytes) -> bool:
        """Tell whether there may be an item under the present name; no is certain."""
        if not self._lines:
            return False
        return bool(self._keys.get(self._digest(key)[:_HALF_BYTES], 0) & 1)

    def record_promotion(self, key: bytes) -> None:
        """
        Write down that a key is promoted; must return before its item is sent.

        Raises:
            OSError: It is not written down; the item must not be sent.
        """
        if self._lines >= LINES_MAX:
            self.begin()
        half = self._digest(key)[:_HALF_BYTES]
        if not self._keys.get(half, 0) & 1:
            self._note(half, is_promotion=True)

    def invalidate(self, key: bytes) -> None:
        """
        Give a key a new name; must return before the value is changed.

        Raises:
            OSError: It has its old name; the value must not be changed.
        """
        if self._lines >= LINES_MAX:
            self.begin()
            return
        half = self._digest(key)[:_HALF_BYTES]
        if self._keys.get(half, 0) & 1:
            self._note(half, is_promotion=False)

    def _note(self, half: bytes, *, is_promotion: bool) -> None:
        text = (b"+" if is_promotion else b"-") + half.hex().encode()
        self._journal.append(text + b" %08x\n" % crc32c(self._epoch + text))
        self._count(half, is_promotion=is_promotion)

    def _count(self, half: bytes, *, is_promotion: bool) -> None:
        self._lines += 1
        count = self._keys.get(half, 0)
        self._keys[half] = count | 1 if is_promotion else (count | 1) + 1

    def close(self) -> None:
        """Give back what is open."""
        self._journal.close()
