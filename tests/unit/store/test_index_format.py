"""Index lines and META.txt: readable by people, exact for us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.stores import signed
from volcache.store.index_format import (
    IndexName,
    Meta,
    decode_blocks,
    decode_entries,
    decode_index_header,
    decode_key,
    decode_meta,
    encode_block,
    encode_index_header,
    encode_key,
    encode_meta,
    meta_version,
)

NAME = IndexName(volume=3, generation=17, store_id=0x5F0C64D3C1F0A7BE)
META = Meta(active=3, generation=17, store_id=0x5F0C64D3C1F0A7BE, mount_count=4)

entries = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40),
        st.integers(64, 2**40 - 1),
        st.integers(65, 2**32 - 1),
    ),
    max_size=20,
)


@given(st.binary(min_size=1, max_size=100))
def test_any_key_is_one_word_of_plain_ascii(key: bytes) -> None:
    """A key of any bytes fits a line, and comes back from it."""
    text = encode_key(key)

    assert decode_key(text.encode()) == key
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert "#" not in text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"thumbs/2026/a-b_c.d~e.jpg", "thumbs/2026/a-b_c.d~e.jpg"),
        (b"a b", "a%20b"),
        (b"100%", "100%25"),
        (b"#comment", "%23comment"),
        ("grün".encode(), "gr%C3%BCn"),
        (b"x+y@z!(1)", "x+y@z!(1)"),
    ],
)
def test_ordinary_keys_stay_as_people_know_them(key: bytes, text: str) -> None:
    """Only what would break a line is encoded, so that grep finds a key."""
    assert encode_key(key) == text


@given(st.lists(entries, max_size=5))
def test_blocks_come_back_in_order(blocks: list[list[tuple[bytes, int, int]]]) -> None:
    """What is appended block by block is read block by block."""
    data = encode_index_header(NAME)
    for number, block in enumerate(blocks):
        data += encode_block(block, 100 + number, sealed=number == 4)

    assert decode_index_header(data) == (1, NAME)
    _, *found = decode_blocks(data)
    assert [decode_entries(block.lines) for block in found] == blocks
    assert [block.volume_end for block in found] == list(range(100, 100 + len(blocks)))
    assert [block.sealed for block in found] == [n == 4 for n in range(len(blocks))]


def test_a_deletion_is_a_line_of_zeros() -> None:
    """The line of a deleted key is what the format promises."""
    block = encode_block([(b"gone", 0, 0)], 64, sealed=False)

    assert block.startswith(b"gone 0 0\n# checkpoint 64 open ")


def test_a_torn_block_does_not_count_at_any_byte() -> None:
    """Whatever part of the last block was written, the ones before it count."""
    first = encode_index_header(NAME) + encode_block(
        [(b"a", 64, 70)], 134, sealed=False
    )
    second = encode_block([(b"b", 134, 70), (b"c", 0, 0)], 204, sealed=True)

    for length in range(len(second)):
        *_, last = decode_blocks(first + second[:length])
        assert (last.file_end, last.volume_end) == (len(first), 134)


def test_every_flipped_bit_ends_the_trust() -> None:
    """Blocks before the damaged one count, it and all behind it do not."""
    header = encode_index_header(NAME)
    first = encode_block([(b"a", 64, 70)], 134, sealed=False)
    second = encode_block([(b"b", 134, 70)], 204, sealed=True)

    for bit in range(len(first) * 8):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        ends = [found.volume_end for found in decode_blocks(header + damaged + second)]
        assert ends == [64]


def test_a_file_of_another_kind_has_no_index_header() -> None:
    """Nothing but our first line is taken for one."""
    assert decode_index_header(b"") is None
    assert decode_index_header(b"key 64 70\n") is None
    assert decode_index_header(encode_index_header(NAME)[:-60]) is None
    assert not list(decode_blocks(b"key 64 70\n"))


def test_meta_begins_with_the_head() -> None:
    """The first line is the id of the volume being written; the rest is named."""
    data = encode_meta(META)

    assert data.splitlines()[:3] == [b"3", b"format 1", b"generation 17"]
    assert decode_meta(data) == META
    assert meta_version(data) == 1


def test_a_damaged_meta_is_none() -> None:
    """No bit and no byte of META.txt can be lost unnoticed."""
    data = encode_meta(META)

    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_meta(bytes(damaged)) is None
    for length in range(len(data)):
        assert decode_meta(data[:length]) is None


def test_the_version_of_a_newer_meta_can_be_told() -> None:
    """Even where the rest is not understood, the version is, if it is undamaged."""
    newer = signed(b"3\nformat 2\nsomething new\n")
    assert meta_version(newer) == 2
    assert meta_version(newer.replace(b"format 2", b"format 3")) is None
    assert meta_version(b"hello\n") is None
    assert meta_version(b"3\n") is None
