"""Records and volume headers: what is written is what is read, and nothing else."""

from __future__ import annotations

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from volcache.errors import DamagedRecordError
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    decode_head,
    decode_header,
    decode_record,
    decode_volume_header,
    encode_record,
    encode_tombstone,
    encode_volume_header,
    identified_generation,
    volume_identity,
    volume_version,
)

LIFE = volume_identity(generation=7, store_id=0x1122334455667788, volume=3)
HEADER = VolumeHeader(
    generation=7,
    store_id=2**64 - 1,
    volume=3,
    mount_count=9,
    started_ms=1_790_000_000_000,
)


def make_record(
    key: bytes = b"a/key", value: bytes = b"value", offset: int = 4096
) -> bytes:
    """Return a whole record of `LIFE`."""
    prefix = encode_record(
        LIFE.identity,
        5,
        offset,
        1_790_000_000_123,
        1_790_000_999_000,
        b"text/plain",
        b"gzip",
        key,
        len(value),
        crc32c(value),
    )
    return prefix + value


@given(
    key=st.binary(min_size=1, max_size=300),
    value=st.binary(max_size=300),
    content_type=st.binary(max_size=255),
    encoding=st.binary(max_size=255),
    offset=st.integers(VOLUME_HEADER_BYTES, 2**40 - 1),
    expires_ms=st.integers(0, 2**63),
)
def test_a_record_is_read_as_it_was_written(
    key: bytes,
    value: bytes,
    content_type: bytes,
    encoding: bytes,
    offset: int,
    expires_ms: int,
) -> None:
    """Every field comes back, whatever its bytes."""
    prefix = encode_record(
        LIFE.identity,
        1,
        offset,
        42,
        expires_ms,
        content_type,
        encoding,
        key,
        len(value),
        crc32c(value),
    )
    data = prefix + value

    record = decode_record(data, LIFE, offset, len(data), key)

    assert tuple(record) == (
        value,
        content_type,
        encoding,
        42,
        expires_ms,
        3,
        7,
        offset,
        len(data),
        len(value),
        crc32c(value),
        "DISK",
    )
    assert decode_head(data, LIFE, offset, len(data), key) == record._replace(value=b"")


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    """No bit of a record can change without the record being refused."""
    data = make_record()

    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecordError):
            decode_record(bytes(damaged), LIFE, 4096, len(data), b"a/key")


def test_every_shortened_record_is_refused() -> None:
    """A record cut at any byte is damaged, never shorter."""
    data = make_record()

    for length in range(len(data)):
        with pytest.raises(DamagedRecordError):
            decode_record(data[:length], LIFE, 4096, len(data), b"a/key")
        with pytest.raises(DamagedRecordError):
            decode_record(data[:length], LIFE, 4096, length, b"a/key")


def test_a_record_of_another_place_life_or_key_is_refused() -> None:
    """What is right in itself is still wrong where something else is expected."""
    data = make_record()
    size = len(data)
    other = volume_identity(generation=8, store_id=0x1122334455667788, volume=3)

    with pytest.raises(DamagedRecordError, match="another begins there"):
        decode_record(data, other, 4096, size, b"a/key")
    with pytest.raises(DamagedRecordError, match="volume 3, offset 4097"):
        decode_record(data, LIFE, 4097, size, b"a/key")
    with pytest.raises(DamagedRecordError):
        decode_record(data, LIFE, 4096, size, b"b/key")


def test_a_tombstone_is_no_value() -> None:
    """A tombstone is found by a scan, and never read as an empty value."""
    data = encode_tombstone(LIFE.identity, 5, 64, 42, b"gone")

    header = decode_header(data, LIFE.identity, 64)

    assert header is not None
    assert header.tombstone
    assert header.key == b"gone"
    assert header.size == len(data)
    with pytest.raises(DamagedRecordError):
        decode_record(data, LIFE, 64, len(data), b"gone")
    with pytest.raises(DamagedRecordError):
        decode_head(data, LIFE, 64, len(data), b"gone")


def test_a_header_is_found_only_where_it_says_it_is() -> None:
    """A record stored inside somebody's value lies at another offset than it says."""
    data = make_record(offset=4096)

    assert decode_header(data, LIFE.identity, 4096) is not None
    assert decode_header(data, LIFE.identity, 8192) is None
    assert decode_header(data[:40], LIFE.identity, 4096) is None


def test_a_volume_header_is_read_as_it_was_written() -> None:
    """All fields come back, and the version can be told before anything else."""
    data = encode_volume_header(HEADER)

    assert len(data) == VOLUME_HEADER_BYTES
    assert decode_volume_header(data) == HEADER
    assert volume_version(data) == 1


def test_every_flipped_bit_of_a_volume_header_is_noticed() -> None:
    """A bit that changed makes the header count as missing, but for the padding."""
    data = encode_volume_header(HEADER)

    for bit in range(52 * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_volume_header(bytes(damaged)) is None


@pytest.mark.parametrize("data", [b"", b"VLV", bytes(64), b"x" * 64])
def test_other_bytes_are_no_volume(data: bytes) -> None:
    """Neither an empty nor a foreign file has a header or a version."""
    assert decode_volume_header(data) is None
    assert volume_version(data) is None


def test_the_first_record_tells_the_generation() -> None:
    """A volume whose header is damaged is still known by its first record."""
    data = make_record(offset=VOLUME_HEADER_BYTES)
    store_id = 0x1122334455667788

    assert identified_generation(data, store_id=store_id, volume=3) == 7
    assert identified_generation(data, store_id=store_id, volume=4) is None
    assert identified_generation(data, store_id=store_id + 1, volume=3) is None
    assert identified_generation(b"", store_id=store_id, volume=3) is None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_never_a_record(data: bytes) -> None:
    """The decoders refuse what they are given in the one way they promise."""
    assert decode_header(LIFE.identity + data, LIFE.identity, 64) is None
    with pytest.raises(DamagedRecordError):
        decode_record(LIFE.identity + data, LIFE, 64, 18 + len(data), b"k")
