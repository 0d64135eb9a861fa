"""Records and volume headers are read as written; everything else is refused."""

from __future__ import annotations

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from support.damage import flipped
from support.tables import each_row
from volcache.errors import DamagedRecordError
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeHeader,
    VolumeUse,
    correct_header,
    decode_header,
    decode_record,
    decode_volume_header,
    encode_record,
    encode_volume_header,
    identity_of,
    is_one_bit_wrong,
    volume_identity,
    volume_version,
)

USE = VolumeUse(volume=3, seq=70, ring=Ring.PROBATION, salt=0x1122334455667788)
VOLUME = volume_identity(USE.volume, USE.salt)
HEADER = VolumeHeader(
    use=USE,
    store_id=2**64 - 1,
    mount_count=9,
    started_ms=1_790_000_000_000,
    oldest_seq=8,
    previous_salt=5,
)


def make_record(
    key: bytes = b"a/key", value: bytes = b"value", offset: int = 4096
) -> bytes:
    """Return a whole record of `VOLUME`."""
    prefix = encode_record(
        VOLUME,
        offset,
        1_790_000_000_123_456,
        1_790_000_999_000,
        b"text/plain",
        b"gzip",
        b"public, immutable",
        key,
        len(value),
        crc32c(value),
        2**32 - 1,
    )
    return prefix + value


# Fields without control bytes: with one, a record is damaged.
FIELD = st.binary(max_size=255).map(
    lambda text: bytes(byte for byte in text if byte >= 0x20 and byte != 0x7F)
)


@given(
    key=st.binary(min_size=1, max_size=300),
    value=st.binary(max_size=300),
    fields=st.tuples(FIELD, FIELD, FIELD),
    numbers=st.tuples(
        st.integers(VOLUME_HEADER_BYTES, 2**40 - 1),
        st.integers(0, 2**63),
        st.integers(0, 2**32 - 1),
    ),
    behind=st.binary(max_size=9),
)
def test_a_record_is_read_as_it_was_written(
    key: bytes,
    value: bytes,
    fields: tuple[bytes, bytes, bytes],
    numbers: tuple[int, int, int],
    behind: bytes,
) -> None:
    """Every field is read back, and what is behind the record is ignored."""
    offset, expires_ms, flags = numbers
    checked = (len(value), crc32c(value))
    times = (42, expires_ms)
    prefix = encode_record(VOLUME, offset, *times, *fields, key, *checked, flags)
    data = prefix + value

    record = decode_record(data + behind, VOLUME, offset, key)

    place = (flags, 3, offset, len(data))
    assert record == (value, *fields, *times, *place, *checked, "DISK")
    for length in (len(prefix), len(data) - 1) if value else ():
        with pytest.raises(DamagedRecordError, match=f"{len(data)} bytes is cut off"):
            decode_record(data[:length], VOLUME, offset, key)


def test_every_flipped_bit_of_a_record_is_detected() -> None:
    """A record with one changed bit is refused."""
    for damaged in flipped(make_record()):
        with pytest.raises(DamagedRecordError):
            decode_record(damaged, VOLUME, 4096, b"a/key")


def test_every_shortened_record_is_refused() -> None:
    """A record cut at any byte is refused, never returned shorter."""
    data = make_record()

    for length in range(len(data)):
        with pytest.raises(DamagedRecordError):
            decode_record(data[:length], VOLUME, 4096, b"a/key")


def test_an_intact_record_of_another_key_is_a_miss() -> None:
    """The index stores fingerprints, so two keys can have one position."""
    assert decode_record(make_record(), VOLUME, 4096, b"b/key") is None


def test_a_record_of_another_volume_or_offset_is_refused() -> None:
    """An intact record is wrong where another one is expected."""
    data = make_record()
    other = volume_identity(USE.volume, USE.salt + 1)

    with pytest.raises(DamagedRecordError, match="identity mismatch"):
        decode_record(data, other, 4096, b"a/key")
    with pytest.raises(DamagedRecordError, match="volume 3, offset 4097"):
        decode_record(data, VOLUME, 4097, b"a/key")


def test_a_tombstone_is_not_a_value() -> None:
    """A scan finds a tombstone; a get never returns it as an empty value."""
    data = encode_record(VOLUME, 64, 42, 0, b"", b"", b"", b"gone", 0, 0, kind=1)

    header = decode_header(data, VOLUME, 64)

    assert header is not None
    assert header.tombstone
    assert header.key == b"gone"
    assert header.size == len(data)
    with pytest.raises(DamagedRecordError):
        decode_record(data, VOLUME, 64, b"gone")


def test_a_header_is_valid_only_at_its_own_offset() -> None:
    """A copy of a record inside a value is at another offset than its header has."""
    data = make_record(offset=4096)

    assert decode_header(data, VOLUME, 4096) is not None
    assert decode_header(data, VOLUME, 8192) is None
    assert decode_header(data[:40], VOLUME, 4096) is None


def test_a_volume_header_is_read_as_it_was_written() -> None:
    """All fields are read back, and the version without the rest."""
    data = encode_volume_header(HEADER)

    assert len(data) == VOLUME_HEADER_BYTES
    assert decode_volume_header(data) == HEADER
    assert volume_version(data) == 2


def test_every_flipped_bit_of_a_volume_header_is_detected() -> None:
    """A changed bit makes the header invalid."""
    for damaged in flipped(encode_volume_header(HEADER)):
        assert decode_volume_header(damaged) is None


@each_row("data", [b"", b"VLV", bytes(64), b"x" * 64])
def test_other_bytes_are_not_a_volume(data: bytes) -> None:
    """An empty or foreign file has neither header nor version."""
    assert decode_volume_header(data) is None
    assert volume_version(data) is None


def test_the_identity_of_a_copy_is_that_of_its_volume() -> None:
    """A copy of a record names volume and offset by itself."""
    data = make_record(offset=4096)

    assert identity_of(data) == (VOLUME, 4096)
    assert identity_of(data[:20]) is None


@pytest.mark.slow
def test_any_single_wrong_bit_of_a_record_header_is_corrected() -> None:
    """The key is known although the header fails its checksum."""
    data = make_record(key=b"a/key", value=b"")
    intact = decode_header(data, VOLUME, 4096)

    assert correct_header(data, VOLUME, 8192) is None
    for damaged in flipped(data):
        assert correct_header(damaged, VOLUME, 4096) == intact


def test_two_wrong_bits_are_not_corrected() -> None:
    """No other record is made of them."""
    data = make_record(value=b"")

    for one, other in ((0, 1), (5 * 8, 70 * 8), (300, 301), (61 * 8, 62 * 8)):
        damaged = bytearray(data)
        for bit in (one, other):
            damaged[bit // 8] ^= 1 << bit % 8
        assert correct_header(bytes(damaged), VOLUME, 4096) is None


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_single_wrong_bit_of_a_value_is_recognised(
    value: bytes, data: st.DataObject
) -> None:
    """It is damage; a torn value differs in more bits."""
    bit = data.draw(st.integers(0, 8 * len(value) - 1))
    damaged = bytearray(value)
    damaged[bit // 8] ^= 1 << bit % 8

    assert is_one_bit_wrong(bytes(damaged), crc32c(value))
    assert not is_one_bit_wrong(value, crc32c(value))
    damaged[bit // 8] ^= 0x55
    damaged[0] ^= 0x0C
    assert not is_one_bit_wrong(bytes(damaged), crc32c(value)) or damaged == value


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_never_a_record(data: bytes) -> None:
    """The decoders refuse other bytes with the documented error only."""
    assert decode_header(VOLUME.prefix + data, VOLUME, 64) is None
    with pytest.raises(DamagedRecordError):
        decode_record(VOLUME.prefix + data, VOLUME, 64, b"k")
