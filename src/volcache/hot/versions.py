"""
Key versions: the ids of items in memcached, and HOT.txt, which keeps them over a restart.

A memcached cannot be relied on to delete: a delete may be lost, a set sent before it may
arrive after it, and a server that was unreachable may return with old items. So volcache
deletes nothing there. The id of an item is a digest of its key, of the key's *version*
and of the *epoch*, a random number. A put or delete of a promoted key increases its
version, so that the items stored before are never looked up again. A new epoch does the
same for all keys at once.

Epoch and versions are kept in memory. A clean stop writes them to HOT.txt, bound to the
mount of the directory that ends (see `Store.take_hot_snapshot`), and the next start goes
on with them. Any other start begins a new epoch: it fails closed. The format, as in
docs/FORMAT.md::

    # volcache hot 2 store 5f0c64d3c1f0a7be mount 7 directory 2049:131 boot 77d0c2aa
    epoch <32 hex>
    <16 hex> <version, twice, plus 1 while promoted>
    checksum <8 hex>

A line has half of the key's digest. The checksum is a CRC-32C of all bytes before the
word; nothing follows it.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import Final

from google_crc32c import value as crc32c

VERSION: Final = 2
# Then a new epoch begins, and hot keys are promoted again within a few reads. The dict
# is at most 26 MB by then. As many items of 4 KiB fill 1 GiB.
KEYS_MAX: Final = 262_144
ID_BYTES: Final = 16
_EPOCH_BYTES: Final = 16
_HALF_BYTES: Final = 8
_SALT_BYTES: Final = 16
_EPOCH: Final = re.compile(rb"epoch ([0-9a-f]{32})\n")
_LINE: Final = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,18})\n")


def is_damaged(data: bytes) -> bool:
    """Return whether HOT.txt, not empty, has a wrong checksum."""
    return bool(data) and _checked_text(data) is None


def _checked_text(data: bytes) -> bytes | None:
    """Return all lines before the checksum; None if it is wrong."""
    text, _, checksum = data.rpartition(b"checksum ")
    return text if checksum == b"%08x\n" % crc32c(text) else None


class KeyVersions:
    """The epoch, and for each key promoted in it its version and whether it has a copy."""

    def __init__(self, snapshot: bytes = b"", binding: str = "") -> None:
        """
        Continue the epoch of a snapshot if it is intact, else begin a new one.

        Args:
            snapshot: What `encode` returned at the last stop; empty: nothing.
            binding: The one that the snapshot must have.
        """
        self._epoch = b""
        # By half of the key's digest: twice the version, plus 1 while the key is promoted.
        self._versions: dict[bytes, int] = {}
        if not self._resume(snapshot, binding):
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Make every item unreachable, in constant time."""
        self._epoch = secrets.token_bytes(_EPOCH_BYTES)
        self._versions = {}

    def encode(self, binding: str) -> bytes:
        """Return the snapshot for a binding."""
        lines = [
            f"{_first_line(binding)}epoch {self._epoch.hex()}\n",
            *(f"{half.hex()} {version}\n" for half, version in self._versions.items()),
        ]
        text = "".join(lines).encode()
        return text + b"checksum %08x\n" % crc32c(text)

    def _resume(self, data: bytes, binding: str) -> bool:
        """Continue the epoch of a snapshot; False if it cannot be relied on."""
        text, first = _checked_text(data), _first_line(binding).encode()
        if text is None or not text.startswith(first):
            return False
        epoch = _EPOCH.match(text, len(first))
        if epoch is None:
            return False
        versions, at = {}, epoch.end()
        while line := _LINE.match(text, at):
            versions[bytes.fromhex(line[1].decode())] = int(line[2])
            at = line.end()
        if at != len(text):
            return False
        self._epoch = bytes.fromhex(epoch[1].decode())
        self._versions = versions
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
        if not self._versions:
            return False
        return bool(self._versions.get(self._digest(key)[:_HALF_BYTES], 0) & 1)

    def record_promotion(self, key: bytes) -> None:
        """Record that a key is promoted; to be called before its item is sent."""
        if len(self._versions) >= KEYS_MAX:
            self.begin_epoch()
        half = self._digest(key)[:_HALF_BYTES]
        self._versions[half] = self._versions.get(half, 0) | 1

    def invalidate(self, key: bytes) -> None:
        """Increase the version of a promoted key."""
        half = self._digest(key)[:_HALF_BYTES]
        version = self._versions.get(half, 0)
        if version & 1:
            self._versions[half] = version + 1


def _first_line(binding: str) -> str:
    return f"# volcache hot {VERSION} {binding}\n"
