"""
The lines of the text files: index files and META.txt, as drawn in docs/FORMAT.md.

Pure functions over bytes: nothing here reads or writes a file. Both files stay what
`grep`, `awk` and `sort` can read; their checksums hide in comments and in a last line.

An index file is a run of *blocks*. A block is any number of entries and ends in a
checkpoint, a comment with the place up to which the volume is indexed and a CRC-32C over
the whole block. The first block holds nothing but the comment that names the volume::

    # volcache index 1 volume 3 generation 17 store 5f0c64d3c1f0a7be
    # checkpoint 64 open 8e2b1f04
    thumbs/a.jpg 64 1187
    thumbs/old.jpg 0 0
    # checkpoint 1330 open 77d0c2aa
"""

from __future__ import annotations

import re
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from google_crc32c import value as crc32c

from volcache.store.format import VERSION, VOLUME_HEADER_BYTES
from volcache.store.index import make_seq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Printable ASCII but the space, "%" and "#", which would begin a comment.
_PLAIN: Final = "!\"$&'()*+,/:;<=>?@[\\]^`{|}"
_UNCHANGED: Final = (_PLAIN + ascii_letters + digits + "-._~").encode()
_CHECKPOINT: Final = re.compile(
    rb"^# checkpoint ([0-9]{1,13}) (open|sealed) ([0-9a-f]{8})\n", re.MULTILINE
)
_INDEX_HEADER: Final = re.compile(
    rb"# volcache index ([0-9]+)"
    rb" volume ([0-9]{1,5}) generation ([0-9]{1,10}) store ([0-9a-f]{16})\n"
)
_META_LINES_MAX: Final = 100


class IndexName(NamedTuple):
    """Whose index a file is: its first line."""

    volume: int
    generation: int
    store_id: int


class IndexBlock(NamedTuple):
    """One checked block: its lines without the checkpoint."""

    lines: bytes
    volume_end: int
    sealed: bool
    file_end: int


class Meta(NamedTuple):
    """
    What META.txt says.

    `mount_count` counts how often the mount point has been opened for writing; lives older
    than `oldest_seq` (see `position.py`) were flushed.
    """

    active: int
    generation: int
    store_id: int
    mount_count: int
    oldest_seq: int = 0

    @property
    def active_seq(self) -> int:
        """The life of the head."""
        return make_seq(self.generation, self.active)


# --- Index files -------------------------------------------------------------------


def encode_key(key: bytes) -> str:
    """Return the key as it stands in a line: no space, newline, "#" or non-ASCII."""
    if not key.translate(None, _UNCHANGED):
        return key.decode("ascii")
    return quote_from_bytes(key, safe=_PLAIN)


def decode_key(text: bytes) -> bytes:
    """Return the key a line names."""
    return unquote_to_bytes(text) if b"%" in text else text


def encode_index_header(name: IndexName) -> bytes:
    """Return the first block of an index file."""
    line = (
        f"# volcache index {VERSION} volume {name.volume}"
        f" generation {name.generation} store {name.store_id:016x}\n"
    )
    return encode_block([], VOLUME_HEADER_BYTES, sealed=False, before=line)


def encode_block(
    entries: Iterable[tuple[bytes, int, int]],
    volume_end: int,
    *,
    sealed: bool,
    before: str = "",
) -> bytes:
    """
    Return entries and the checkpoint behind them.

    Args:
        entries: Key, offset and size of records in the order they were written;
            offset and size 0 for a deletion.
        volume_end: Where the last of all records indexed so far ends.
        sealed: Nothing will be written to the volume behind `volume_end`.
        before: A comment line to begin with.
    """
    lines = [f"{encode_key(key)} {offset} {size}\n" for key, offset, size in entries]
    state = "sealed" if sealed else "open"
    block = f"{before}{''.join(lines)}# checkpoint {volume_end} {state} ".encode()
    return block + b"%08x\n" % crc32c(block)


def decode_index_header(data: bytes) -> tuple[int, IndexName] | None:
    """Return the format version and the name in the first line, if it is one."""
    found = _INDEX_HEADER.match(data)
    if not found:
        return None
    version, volume, generation = (int(found[group]) for group in (1, 2, 3))
    return version, IndexName(volume, generation, int(found[4], 16))


def decode_blocks(data: bytes) -> Iterator[IndexBlock]:
    """
    Yield the blocks of an index file up to the first that does not check out.

    What comes behind the last block yielded, if anything, is torn or damaged: it does
    not count, and the records it named are found again in the volume.
    """
    start, volume_end = 0, 0
    for found in _CHECKPOINT.finditer(data):
        if crc32c(data[start : found.start(3)]) != int(found[3], 16):
            return
        end = int(found[1])
        if end < volume_end:
            return
        volume_end = end
        yield IndexBlock(
            data[start : found.start()], end, found[2] == b"sealed", found.end()
        )
        start = found.end()


def has_block(data: bytes) -> bool:
    """
    Tell whether an index file has a first block that checks out.

    Its first line counts only then. That is so in every version of the format.
    """
    return any(True for _ in decode_blocks(data))


def decode_entries(lines: bytes) -> list[tuple[bytes, int, int]]:
    """
    Return key, offset and size of every entry of a block that was checked.

    Raises:
        ValueError: A line is not an entry, although the checksum over it is right.
    """
    # A boot reads millions of lines: one comprehension over C functions.
    split = map(bytes.split, lines.splitlines())
    if b"%" not in lines and b"#" not in lines:
        return [(key, int(offset), int(size)) for key, offset, size in split]
    return [
        (decode_key(words[0]), int(words[1]), int(words[2]))
        for words in split
        if words[0] != b"#"
    ]


def decode_block(block: IndexBlock) -> list[tuple[bytes, int, int]] | None:
    """Return the entries of a block; None when they cannot be right."""
    try:
        entries = decode_entries(block.lines)
    except (ValueError, IndexError):
        return None
    end = block.volume_end
    if all(
        not size or VOLUME_HEADER_BYTES <= offset <= end - size
        for _, offset, size in entries
    ):
        return entries
    return None


# --- META.txt ----------------------------------------------------------------------


def encode_meta(meta: Meta) -> bytes:
    """Return the whole of META.txt."""
    text = (
        f"{meta.active}\n"
        f"format {VERSION}\n"
        f"generation {meta.generation}\n"
        f"store {meta.store_id:016x}\n"
        f"session {meta.mount_count}\n"
        f"{f'oldest_life {meta.oldest_seq}' + chr(10) if meta.oldest_seq else ''}"
    ).encode()
    return text + b"checksum %08x\n" % crc32c(text)


def meta_version(data: bytes) -> int | None:
    """
    Return the format version META.txt names; None: not one of ours, or damaged.

    The last line, the checksum, stays what it is in every version: a flipped bit in
    the number must not pass for a newer one and end the start.
    """
    if not _is_checked(data):
        return None
    found = re.match(rb"[0-9]{1,5}\nformat ([0-9]{1,9})\n", data)
    return int(found[1]) if found else None


def _is_checked(data: bytes) -> bool:
    text, _, checksum = data.rpartition(b"checksum ")
    return checksum == b"%08x\n" % crc32c(text)


def decode_meta(data: bytes) -> Meta | None:
    """Return what META.txt says, or None when it is damaged."""
    if not _is_checked(data):
        return None
    text, _, _ = data.rpartition(b"checksum ")
    active, *lines = text.splitlines()
    if len(lines) > _META_LINES_MAX:
        return None
    try:
        values = dict(line.split(b" ", 1) for line in lines)
        return Meta(
            active=int(active),
            generation=int(values[b"generation"]),
            store_id=int(values[b"store"], 16),
            mount_count=int(values[b"session"]),
            oldest_seq=int(values.get(b"oldest_life", b"0")),
        )
    except (ValueError, KeyError):
        return None
