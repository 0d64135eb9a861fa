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

Threads: all methods may be called by any thread. What changes the versions holds a lock,
inside of which nothing else is waited for. Epoch and versions are one tuple, which is
replaced as a whole, so that no reader sees the versions of another epoch.
"""

from __future__ import annotations

import re
import secrets
import threading
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
        self._lock = threading.Lock()
        # The epoch, and by half of the key's digest: twice the version, plus 1 while the
        # key is promoted.
        self._state: tuple[bytes, dict[bytes, int]] = (b"", {})
        if not self._resume(snapshot, binding):
            self.begin_epoch()

    def begin_epoch(self) -> None:
        """Make every item unreachable, in constant time."""
        with self._lock:
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._state = (secrets.token_bytes(_EPOCH_BYTES), {})

    def encode(self, binding: str) -> bytes:
        """Return the snapshot for a binding."""
        with self._lock:
            epoch, versions = self._state
            lines = [
                f"{_first_line(binding)}epoch {epoch.hex()}\n",
                *(f"{half.hex()} {version}\n" for half, version in versions.items()),
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
        self._state = (bytes.fromhex(epoch[1].decode()), versions)
        return True

    def item_id(self, key: bytes) -> bytes:
        """
        Return the id of a key's item at its present version: `ID_BYTES` bytes.

        While the key is not promoted, no item has this id.
        """
        epoch, versions = self._state
        digest = _digest(key, epoch)
        version = versions.get(digest[:_HALF_BYTES], 0)
        return _id_of(key, epoch, digest, version >> 1)

    def may_hold(self, key: bytes) -> bool:
        """Return whether the key is promoted at its present version."""
        epoch, versions = self._state
        if not versions:
            return False
        return bool(versions.get(_digest(key, epoch)[:_HALF_BYTES], 0) & 1)

    def record_promotion(self, key: bytes) -> bytes:
        """
        Record that a key is promoted; to be called before its item is sent.

        Returns:
            The id of the item. If the key is invalidated from now on, also before the
            item is sent, no call looks up this id again.
        """
        with self._lock:
            if len(self._state[1]) >= KEYS_MAX:
                self._begin_epoch()
            epoch, versions = self._state
            digest = _digest(key, epoch)
            half = digest[:_HALF_BYTES]
            version = versions.get(half, 0) | 1
            versions[half] = version
        return _id_of(key, epoch, digest, version >> 1)

    def invalidate(self, key: bytes) -> bool:
        """Increase the version of a promoted key; return whether it was promoted."""
        with self._lock:
            epoch, versions = self._state
            half = _digest(key, epoch)[:_HALF_BYTES]
            version = versions.get(half, 0)
            if not version & 1:
                return False
            versions[half] = version + 1
            return True


def _digest(key: bytes, epoch: bytes) -> bytes:
    return blake2b(key, digest_size=ID_BYTES, key=epoch).digest()


def _id_of(key: bytes, epoch: bytes, digest: bytes, version: int) -> bytes:
    """Return the id of a key's item at a version; `digest` is that of the key."""
    if not version:
        return digest
    salt = version.to_bytes(_SALT_BYTES, "little")
    return blake2b(key, digest_size=ID_BYTES, key=epoch, salt=salt).digest()


def _first_line(binding: str) -> str:
    return f"# volcache hot {VERSION} {binding}\n"
