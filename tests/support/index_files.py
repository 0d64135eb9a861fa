"""
Index files, block by block, as docs/FORMAT.md has them.

What is read here is what the core must find: it reads index files for the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from google_crc32c import extend

from volcache.geometry import VOLUME_BYTES_MAX
from volcache.store.format import KEY_BYTES_MAX, VOLUME_HEADER_BYTES, Segment
from volcache.store.index import Loaded
from volcache.store.index_format import (
    Entry,
    close_block,
    decode_entries,
    decode_segments,
    encode_entries,
    encode_segments,
)
from volcache.store.volume import IndexContents

_CHECKPOINT: Final = re.compile(
    rb"^# checkpoint ([0-9]{1,13}) (open|sealed) ([0-9a-f]{8})\n", re.MULTILINE
)
_LINE: Final = re.compile(rb"(?m)^(?:#.*|[^# \n][^ \n]* [0-9]{1,13} [0-9]{1,10})\n")


class IndexBlock(NamedTuple):
    """One block whose checksum is right: its lines without the checkpoint."""

    lines: bytes
    volume_end: int
    sealed: bool
    file_end: int
    checksum: int  # of the file up to the checkpoint, which contains it


def encode_block(
    entries: Iterable[Entry],
    volume_end: int,
    *,
    sealed: bool,
    previous: int | None = None,
    segments: Iterable[Segment] = (),
) -> tuple[bytes, int]:
    """Return a block of segments and entries, and its checksum."""
    lines = encode_segments(segments) + encode_entries(entries)
    return close_block(lines, volume_end, sealed=sealed, previous=previous)


def decode_blocks(data: bytes) -> Iterator[IndexBlock]:
    """Yield the blocks of an index file up to the first with a wrong checksum."""
    start = volume_end = previous = 0
    before = b""
    for found in _CHECKPOINT.finditer(data):
        checksum = extend(previous, before + data[start : found.start(3)])
        end = int(found[1])
        is_end = volume_end <= end <= VOLUME_BYTES_MAX
        if checksum != int(found[3], 16) or not is_end:
            return
        lines, volume_end = data[start : found.start()], end
        yield IndexBlock(lines, end, found[2] == b"sealed", found.end(), checksum)
        start, previous, before = found.end(), checksum, b"%08x\n" % checksum


def decode_block(block: IndexBlock) -> list[Entry] | None:
    """Return the entries of a block, None if one is malformed or out of range."""
    if _LINE.sub(b"", block.lines):
        return None
    entries = decode_entries(block.lines)
    for key, offset, size in entries:
        is_inside = VOLUME_HEADER_BYTES <= offset <= block.volume_end - size
        is_inside &= size <= 2**31
        if len(key) > KEY_BYTES_MAX or (size and not is_inside):
            return None
    return entries


def read(contents: IndexContents) -> Iterator[list[Entry]]:
    """Yield the entries of each block; the fields of `contents` are set as by the core."""
    found = Loaded()
    contents.found = found
    segments = list(contents._segments)
    for block in decode_blocks(contents._data) if contents.is_ours else ():
        entries = decode_block(block)
        if entries is None:
            return
        named = segments[: found.named] + decode_segments(block.lines)
        begun = sum(segment.start < block.volume_end for segment in segments)
        if len(named) < begun or named != segments[: len(named)]:
            contents.found = found._replace(is_of_clone=True)
            return
        *_, last = found.last_offset, *(offset for _, offset, size in entries if size)
        found = Loaded(
            block.file_end,
            block.volume_end,
            block.sealed,
            block.checksum,
            len(named),
            entries=found.entries + len(entries),
            last_offset=last,
        )
        contents.found = found
        yield entries


def entries_of(path: Path) -> list[Entry]:
    """Return all entries of an index file."""
    blocks = decode_blocks(path.read_bytes())
    return [entry for block in blocks for entry in decode_entries(block.lines)]


def rewrite(
    path: Path,
    change: Callable[[list[bytes]], None],
    *,
    end: int | None = None,
    sealed: bool | None = None,
) -> None:
    """
    Change the entries of each block of an index file; its checksums stay right.

    Args:
        path: Of the file.
        change: Changes the lines of a block, which are never none.
        end: Where the volume ends by the file; None: as before.
        sealed: The file is; None: as before.
    """
    data, previous = b"", None
    for block in decode_blocks(path.read_bytes()):
        lines = block.lines.splitlines(keepends=True)
        comments = [line for line in lines if line.startswith(b"#")]
        entries = [line for line in lines if not line.startswith(b"#")]
        if entries:
            change(entries)
        added, previous = close_block(
            b"".join(comments + entries),
            block.volume_end if end is None else min(end, block.volume_end),
            sealed=block.sealed if sealed is None else sealed,
            previous=previous,
        )
        data += added
    path.write_bytes(data)
