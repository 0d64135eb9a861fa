"""
META.txt, the manifest of a mount point, as specified in docs/FORMAT.md.

Pure functions over bytes: this module reads and writes no files. The first line is the id
of the active volume; `name value` lines and a checksum line follow.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from volcache.store.format import VERSION, make_seq

_LINES_MAX: Final = 100


class Manifest(NamedTuple):
    """The fields of META.txt."""

    active: int  # id of the active volume
    generation: int  # of the active volume
    store_id: int
    mount_count: int  # how often the mount point has been opened for writing
    oldest_seq: int = 0  # volumes with a lower sequence number were flushed

    @property
    def active_seq(self) -> int:
        """The sequence number of the active volume."""
        return make_seq(self.generation, self.active)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the contents of META.txt."""
    oldest = f"oldest_life {manifest.oldest_seq}\n" if manifest.oldest_seq else ""
    text = (
        f"{manifest.active}\n"
        f"format {VERSION}\n"
        f"generation {manifest.generation}\n"
        f"store {manifest.store_id:016x}\n"
        f"session {manifest.mount_count}\n"
        f"{oldest}"
    ).encode()
    return text + b"checksum %08x\n" % crc32c(text)


def manifest_version(data: bytes) -> int | None:
    """
    Return the format version in META.txt; None if its checksum is wrong or missing.

    The checksum line is the same in every version: a flipped bit in the version number
    must not look like a newer version, which would refuse the start.
    """
    if _checked_text(data) is None:
        return None
    found = re.match(rb"[0-9]{1,5}\nformat ([0-9]{1,9})\n", data)
    return int(found[1]) if found else None


def decode_manifest(data: bytes) -> Manifest | None:
    """Return the fields of META.txt, or None if it is damaged."""
    text = _checked_text(data)
    if text is None:
        return None
    active, *lines = text.splitlines()
    if len(lines) > _LINES_MAX:
        return None
    try:
        values = dict(line.split(b" ", 1) for line in lines)
        return Manifest(
            active=int(active),
            generation=int(values[b"generation"]),
            store_id=int(values[b"store"], 16),
            mount_count=int(values[b"session"]),
            oldest_seq=int(values.get(b"oldest_life", b"0")),
        )
    except (ValueError, KeyError):
        return None


def _checked_text(data: bytes) -> bytes | None:
    """Return all lines before the checksum line, None if the checksum is wrong."""
    text, _, checksum = data.rpartition(b"checksum ")
    return text if checksum == b"%08x\n" % crc32c(text) else None
