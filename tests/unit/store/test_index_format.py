"""The text of index files: readable by people, checked by checksums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.damage import flipped
from support.index_files import decode_blocks, encode_block, read
from volcache.store.format import Ring, Segment, VolumeUse
from volcache.store.index_file import IndexContents
from volcache.store.index_format import (
    Entry,
    IndexName,
    decode_entries,
    decode_index_header,
    decode_key,
    encode_index_header,
    encode_key,
)

NAME = IndexName(
    VolumeUse(volume=3, seq=17, ring=Ring.MAIN, salt=2**64 - 1),
    store_id=0x5F0C64D3C1F0A7BE,
)

entries = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40),
        st.integers(64, 2**40 - 1),
        st.integers(65, 2**32 - 1),
    ),
    max_size=20,
)


@given(st.binary(min_size=1, max_size=100))
def test_any_key_is_encoded_as_one_word_of_printable_ascii(key: bytes) -> None:
    """A key of any bytes fits a line and is decoded from it."""
    text = encode_key(key)

    assert decode_key(text.encode()) == key
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert "#" not in text


@pytest.mark.slow
@given(st.lists(entries, max_size=5))
def test_blocks_are_read_in_the_order_written(
    blocks: list[list[Entry]],
) -> None:
    """Blocks that were appended one by one are read one by one."""
    data, checksum = encode_index_header(NAME)
    for number, block in enumerate(blocks):
        more, checksum = encode_block(
            block, 100 + number, sealed=number == 4, previous=checksum
        )
        data += more

    assert decode_index_header(data) == (2, NAME)
    assert list(decode_blocks(data))[-1].checksum == checksum
    _, *found = decode_blocks(data)
    assert [decode_entries(block.lines) for block in found] == blocks
    assert [block.volume_end for block in found] == list(range(100, 100 + len(blocks)))
    assert [block.sealed for block in found] == [n == 4 for n in range(len(blocks))]


HEADER, CHECKSUM = encode_index_header(NAME)
FIRST, AFTER_FIRST = encode_block(
    [(b"a", 64, 70)], 134, sealed=False, previous=CHECKSUM
)
SECOND, _ = encode_block(
    [(b"b", 134, 70), (b"c", 0, 0)], 204, sealed=True, previous=AFTER_FIRST
)


def ends(data: bytes) -> list[int]:
    """Return where the volume ends by each block that is valid."""
    return [found.volume_end for found in decode_blocks(data)]


def test_blocks_from_damage_on_are_ignored() -> None:
    """Blocks before a torn or damaged one are read; it and all after it are not."""
    assert ends(HEADER + FIRST + SECOND) == [64, 134, 204]
    for length in range(len(SECOND)):
        *_, last = decode_blocks(HEADER + FIRST + SECOND[:length])
        assert (last.file_end, last.volume_end) == (len(HEADER + FIRST), 134)
    for damaged in flipped(FIRST):
        assert ends(HEADER + damaged + SECOND) == [64]


def test_a_file_of_another_kind_has_no_index_header() -> None:
    """Other text is not mistaken for the first line of an index file."""
    assert decode_index_header(b"") is None
    assert decode_index_header(b"key 64 70\n") is None
    assert decode_index_header(encode_index_header(NAME)[0][:-60]) is None
    assert not list(decode_blocks(b"key 64 70\n"))


def test_a_block_is_valid_only_after_the_block_it_was_written_after() -> None:
    """The checksums are cumulative: the last one identifies the whole file."""
    other, _ = encode_block([(b"x", 64, 70)], 134, sealed=False, previous=CHECKSUM)

    assert ends(HEADER + other + SECOND) == [64, 134]
    assert ends(HEADER + SECOND) == [64]


def test_a_block_of_a_copy_ends_the_file_for_both_readers() -> None:
    """The volume has other segments up to its end; entries of it may be of any order."""
    segments = [Segment(64, 1), Segment(500, 2)]
    header, checksum = encode_index_header(NAME)
    first, checksum = encode_block(
        [(b"a", 64, 100)],
        200,
        sealed=False,
        previous=checksum,
        segments=segments[:1],
    )
    for salt, is_of_copy in ((2, False), (3, True)):
        second, _ = encode_block(
            [(b"b", 500, 100)],
            600,
            sealed=False,
            previous=checksum,
            segments=[Segment(500, salt)],
        )
        data = header + first + second
        one = IndexContents(data, NAME, segments)
        other = IndexContents(data, NAME, segments)
        assert len(list(read(one))) == 2 + (not is_of_copy)
        assert other.read_lines() == (data[: one.file_end], True)
        for contents in (one, other):
            assert contents.is_of_copy == is_of_copy
            assert contents.volume_end == (200 if is_of_copy else 600)
