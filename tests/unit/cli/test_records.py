"""Which records are live: each key once, at the place the index has."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from support.stores import open_store
from volcache.cli.records import LiveRecords, Place
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.index_format import (
    decode_blocks,
    decode_entries,
    decode_index_header,
    decode_segments,
    encode_block,
    encode_index_header,
    encode_segment,
)
from volcache.store.offline import OfflineStore

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [b"%d" % number for number in range(9)]


def fill(directory: Path) -> None:
    """Store every key twice, and delete the first one."""
    store = open_store(directory)
    for value in (b"old", b"new"):
        for key in KEYS:
            store.put(key, value)
    store.delete(KEYS[0])
    store.close()


def offline(directory: Path) -> OfflineStore:
    """Open the directory as the tools do."""
    return OfflineStore.inspect(ReadOnlyFileSystem(), str(directory))


def repeat_lines(path: Path) -> None:
    """Write all lines of an index file twice, under valid checksums."""
    data = path.read_bytes()
    named = decode_index_header(data)
    assert named is not None
    blocks = list(decode_blocks(data))
    lines = [line for block in blocks for line in decode_entries(block.lines)]
    segments = [found for block in blocks for found in decode_segments(block.lines)]
    header, checksum = encode_index_header(named[1])
    sealed = blocks[-1].sealed
    block, _ = encode_block(
        lines + lines,
        blocks[-1].volume_end,
        sealed=sealed,
        previous=checksum,
        before="".join(map(encode_segment, segments)),
    )
    path.write_bytes(header + block)


def test_live_records_are_the_last_ones_of_their_keys(tmp_path: Path) -> None:
    """In the order of the disk, without replaced and deleted ones."""
    fill(tmp_path)
    with closing(offline(tmp_path)) as store:
        live = LiveRecords(store)
        assert live.count == len(KEYS) - 1
        places = list(live.take())
        assert [place.key for place in places] == KEYS[1:]
        offsets = [place.offset for place in places]
        assert offsets == sorted(offsets)
        size = {place.size for place in places}.pop()
        assert (
            offsets[0] == 64 + (len(KEYS) + 1) * size
        )  # The first round is before it.


def test_only_the_place_in_the_index_is_live(tmp_path: Path) -> None:
    """Another offset or key is not."""
    fill(tmp_path)
    with closing(offline(tmp_path)) as store:
        (volume, offset, size, key), *_ = LiveRecords(store).take()
        live = LiveRecords(store)
        assert Place(volume, offset, size, key) in live
        assert Place(volume, offset - size, size, key) not in live
        assert Place(volume, offset, size, b"other") not in live


def test_each_record_is_yielded_once_even_if_it_has_two_lines(tmp_path: Path) -> None:
    """A value is exported to one file."""
    fill(tmp_path)
    repeat_lines(tmp_path / "index" / "0")
    with closing(offline(tmp_path)) as store:
        keys = [place.key for place in LiveRecords(store).take()]
    assert sorted(keys) == KEYS[1:]
