"""
The text of index files, as specified in docs/FORMAT.md.

Pure functions over bytes: this module reads and writes no files. Index files stay readable
by `grep`, `awk` and `sort`: checksums are in comment lines.

An index file is a sequence of *blocks*. A block is any number of entries followed by a
checkpoint: a comment with the offset up to which the volume is indexed and a CRC-32C of
the file up to there. So the last checksum identifies the whole file. The first block
holds only the comment that identifies the volume::

    # volcache index 2 volume 3 seq 17 ring main salt 5f0c64d3c1f0a7be store 012345...
    # checkpoint 64 open 8e2b1f04
    thumbs/a.jpg 64 1187
    thumbs/old.jpg 0 0
    # checkpoint 1330 open 77d0c2aa
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from volcache.checksum import crc32c
from volcache.store.format import (
    SEQ_MAX,
    VERSION,
    VOLUME_HEADER_BYTES,
    VOLUME_ID_MAX,
    Ring,
    Segment,
    VolumeUse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# Printable ASCII without the space, "%", and "#", which starts a comment.
_PLAIN: Final = "!\"$&'()*+,/:;<=>?@[\\]^`{|}"
_CHECKPOINT: Final = re.compile(
    rb"^# checkpoint ([0-9]{1,13}) (open|sealed) ([0-9a-f]{8})\n", re.MULTILINE
)
_INDEX_HEADER: Final = re.compile(
    rb"# volcache index ([0-9]{1,9})"
    rb" volume ([0-9]{1,5}) seq ([0-9]{1,20}) ring (main|probation)"
    rb" salt ([0-9a-f]{16}) store ([0-9a-f]{16})\n"
)
_SEGMENT: Final = re.compile(
    rb"^# from ([0-9]{1,13}) salt ([0-9a-f]{16})$", re.MULTILINE
)
_ENTRY: Final = re.compile(rb"^([^# \n][^ \n]*) ([0-9]+) ([0-9]+)\n", re.MULTILINE)

Entry = tuple[bytes, int, int]  # key, offset, size; the last two 0 for a deletion


class IndexName(NamedTuple):
    """The volume that an index file belongs to: its first line."""

    use: VolumeUse
    store_id: int


def encode_key(key: bytes) -> str:
    """Return the key as written in a line: no space, newline, "#" or non-ASCII byte."""
    return quote_from_bytes(key, safe=_PLAIN)


def decode_key(text: bytes) -> bytes:
    """Return the key that `encode_key` has encoded."""
    return unquote_to_bytes(text)


def encode_segments(segments: Iterable[Segment]) -> bytes:
    """Return the comments that say where segments of the volume begin."""
    lines = (f"# from {start} salt {salt:016x}\n" for start, salt in segments)
    return "".join(lines).encode()


def decode_segments(lines: bytes) -> list[Segment]:
    """Return the segments that the comments of a block name."""
    found = _SEGMENT.findall(lines)
    return [Segment(int(start), int(salt, 16)) for start, salt in found]


def encode_index_header(name: IndexName) -> tuple[bytes, int]:
    """Return the first block of an index file and its checksum."""
    volume, seq, ring, salt = name.use
    line = (
        f"# volcache index {VERSION} volume {volume} seq {seq} ring {ring.name.lower()}"
        f" salt {salt:016x} store {name.store_id:016x}\n"
    )
    return close_block(line.encode(), VOLUME_HEADER_BYTES, sealed=False, previous=None)


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """
    Return entries as lines.

    Args:
        entries: Key, offset and size of records in the order they were written;
            offset and size are 0 for a deletion.
    """
    lines = [f"{encode_key(key)} {offset} {size}\n" for key, offset, size in entries]
    return "".join(lines).encode()


def close_block(
    lines: bytes, volume_end: int, *, sealed: bool, previous: int | None
) -> tuple[bytes, int]:
    """
    Return lines and the checkpoint after them, and the checksum in the checkpoint.

    Args:
        lines: Comments and entries.
        volume_end: The end of the last record indexed so far, offset in the volume.
        sealed: Nothing will be written to the volume after `volume_end`.
        previous: The checksum of the block before; None: it is the first.
    """
    state = b"sealed" if sealed else b"open"
    block = b"%b# checkpoint %d %b " % (lines, volume_end, state)
    before = b"" if previous is None else b"%08x\n" % previous
    checksum = crc32c(before + block, previous or 0)
    return block + b"%08x\n" % checksum, checksum


def decode_index_header(data: bytes) -> tuple[int, IndexName] | None:
    """
    Return the format version and the volume in the first line of an index file.

    In every version of the format, it is valid only in a block with a right checksum.

    Returns:
        None if it is malformed or not valid.
    """
    found = _INDEX_HEADER.match(data)
    end = _CHECKPOINT.search(data)
    if not found or not end:
        return None
    if int(end[3], 16) != crc32c(data[: end.start(3)]):
        return None
    version, volume, seq = (int(found[group]) for group in (1, 2, 3))
    if volume > VOLUME_ID_MAX or seq > SEQ_MAX:
        return None
    use = VolumeUse(volume, seq, Ring[found[4].decode().upper()], int(found[5], 16))
    return version, IndexName(use, int(found[6], 16))


def decode_entries(lines: bytes) -> list[Entry]:
    """Return key, offset and size of every entry of lines that the core has checked."""
    return [
        (decode_key(key), int(offset), int(size))
        for key, offset, size in _ENTRY.findall(lines)
    ]
