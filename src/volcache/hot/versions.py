"""
HOT.txt: the epoch and the versions of keys, over a restart.

`front/copies.h` says what they are. A clean stop writes them, bound to the mount of the
directory that ends (see `Store.take_hot_snapshot`), and the next start goes on with them.
Any other start begins a new epoch: it fails closed. The format, as in docs/FORMAT.md::

    # volcache hot 3 store 5f0c64d3c1f0a7be mount 7 directory 2049:131 boot 77d0c2aa
    epoch <32 hex>
    <16 hex> <version, twice, plus 1 while promoted>
    checksum <8 hex>

A line has a hash of the key. The checksum is a CRC-32C of all bytes before the
word; nothing follows it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from volcache.checksum import crc32c

if TYPE_CHECKING:
    from volcache.hot.tier import HotKeys

VERSION: Final = 3
_EPOCH: Final = re.compile(rb"epoch ([0-9a-f]{32})\n")
_LINE: Final = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,18})\n")


def is_damaged(data: bytes) -> bool:
    """Return whether HOT.txt, not empty, has a wrong checksum."""
    return bool(data) and _checked_text(data) is None


def _checked_text(data: bytes) -> bytes | None:
    """Return all lines before the checksum; None if it is wrong."""
    text, _, checksum = data.rpartition(b"checksum ")
    return text if checksum == b"%08x\n" % crc32c(text) else None


def encode(keys: HotKeys, binding: str) -> bytes:
    """Return the snapshot for a binding."""
    epoch, entries = keys.entries()
    lines = [
        f"{_first_line(binding)}epoch {epoch.hex()}\n",
        *(
            f"{hashed.to_bytes(8, 'little').hex()} {version}\n"
            for hashed, version in entries
        ),
    ]
    text = "".join(lines).encode()
    return text + b"checksum %08x\n" % crc32c(text)


def restore(keys: HotKeys, data: bytes, binding: str) -> None:
    """
    Continue the epoch of a snapshot if it is intact; else `keys` stay as they are.

    Args:
        keys: Without a key so far, in a new epoch.
        data: What `encode` returned at the last stop; empty: nothing.
        binding: The one that the snapshot must have.
    """
    text, first = _checked_text(data), _first_line(binding).encode()
    if text is None or not text.startswith(first):
        return
    epoch = _EPOCH.match(text, len(first))
    if epoch is None:
        return
    entries, at = [], epoch.end()
    while line := _LINE.match(text, at):
        hashed = int.from_bytes(bytes.fromhex(line[1].decode()), "little")
        entries.append((hashed, int(line[2])))
        at = line.end()
    if at != len(text):
        return
    keys.begin_epoch(bytes.fromhex(epoch[1].decode()))
    if not all(keys.add(*entry) for entry in entries):
        keys.begin_epoch()  # They are more than are kept.


def _first_line(binding: str) -> str:
    return f"# volcache hot {VERSION} {binding}\n"
