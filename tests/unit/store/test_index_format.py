"""The text of index files: readable by people, checked by checksums."""

from __future__ import annotations

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from support.index_files import encode_block, read
from support.tables import each_row
from volcache.store.format import Ring, Segment, VolumeUse
from volcache.store.index_format import (
    Entry,
    IndexName,
    close_block,
    decode_index_header,
    decode_key,
    encode_index_header,
    encode_key,
    encode_segments,
)
from volcache.store.volume import IndexContents

NAME = IndexName(
    VolumeUse(volume=3, seq=17, ring=Ring.MAIN, salt=2**64 - 1),
    store_id=0x5F0C64D3C1F0A7BE,
)
HEADER, CHECKSUM = encode_index_header(NAME)
SEGMENTS = [Segment(64, 1), Segment(500, 2)]

blocks = st.tuples(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=40), st.integers(64, 700), st.integers(0, 99)
        ),
        max_size=20,
    ),
    st.integers(64, 900),
    st.sampled_from([SEGMENTS[:1], SEGMENTS[1:], SEGMENTS, [], [Segment(500, 3)]]),
)


@given(st.binary(min_size=1, max_size=100))
def test_encode_key_of_any_bytes_is_one_word_of_ascii(key: bytes) -> None:
    """A key of any bytes fits a line and is decoded from it."""
    text = encode_key(key)

    assert decode_key(text.encode()) == key
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert "#" not in text


def test_decode_index_header_of_another_file_finds_nothing() -> None:
    """Other text is not mistaken for the first line of an index file."""
    assert decode_index_header(HEADER) == (2, NAME)
    for other in (
        b"",
        b"key 64 70\n",
        HEADER[:-60],
        HEADER.replace(b"seq 17", b"seq 18"),
    ):
        assert decode_index_header(other) is None


@given(st.lists(blocks, max_size=5), st.integers(0, 600), st.integers(0, 255))
def test_read_lines_with_a_wrong_byte_ends_where_the_definition_does(
    written: list[tuple[list[Entry], int, list[Segment]]], at: int, wrong: int
) -> None:
    """Whatever the blocks have, and wherever a byte is wrong."""
    data, checksum = HEADER, CHECKSUM
    for number, (entries, end, segments) in enumerate(written):
        more, checksum = encode_block(
            entries, end, sealed=number == 4, previous=checksum, segments=segments
        )
        data += more
    for damaged in (data, data[:at] + bytes([wrong]) + data[at + 1 :], data[:at]):
        assert_same(damaged)


def assert_same(data: bytes) -> None:
    """Read an index file with the core and as defined, and compare."""
    one, other = (IndexContents(data, NAME, SEGMENTS) for _ in range(2))
    for _ in read(one):
        pass
    other.read_lines()
    assert vars(one) == vars(other)


NAMED: Final = encode_segments(SEGMENTS)


@each_row(
    ("lines", "end"),
    [
        (NAMED + b"a 64 70\n", 634),
        (NAMED + b"a 564 70\n", 633),
        (b"a 564 70\n", 634),
        (NAMED.replace(b"2\n", b"3\n") + b"a 64 70\n", 634),
        (NAMED.replace(b"500", b"501") + b"a 64 70\n", 634),
        (NAMED + NAMED + b"a 64 70\n", 634),
        *((b"a b 64 30\n", 94), (b"a 63 30\n", 94), (b"a 0 0\n", 94)),
        *((b"a 00000000000064 30\n", 94), (b"a 0000000000064 30\n", 94)),
        *((b"a 64 00000000030\n", 94), (b"a 64 0000000030\n", 94)),
        *((b" 64 30\n", 94), (b"a%4 64 30\n", 94), (b"", 63)),
        *((b"%" * length + b" 64 30\n", 94) for length in (65_535, 65_536)),
    ],
)
def test_read_lines_with_odd_lines_is_as_defined(lines: bytes, end: int) -> None:
    """With right checksums, and where the last one is not that of all before."""
    for sealed in (False, True):
        block, _ = close_block(lines, end, sealed=sealed, previous=CHECKSUM)
        alone, _ = close_block(lines, end, sealed=sealed, previous=None)
        for data in (block, alone, block.replace(b"a ", b"b "), block[:-1] + b"0\n"):
            assert_same(HEADER + data)
