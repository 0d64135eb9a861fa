"""What is on the disk is read as it was written; everything else is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from support.damage import flipped
from support.readers import PlainRecords
from support.records import encode_record
from support.stores import signed
from support.tables import each_row
from volcache.errors import DamagedRecordError
from volcache.store.files import OsFileSystem
from volcache.store.format import (
    TIME_END,
    VOLUME_HEADER_BYTES,
    Place,
    Ring,
    VolumeUse,
    decode_volume_header,
)
from volcache.store.index import Found, Torn
from volcache.store.manifest import (
    Progress,
    decode_manifest,
    decode_progress,
    encode_progress,
    manifest_version,
)
from volcache.store.native import Records, decode_header, decode_record
from volcache.store.purges import decode_purges

USE = VolumeUse(volume=3, seq=70, ring=Ring.PROBATION, salt=0x1122334455667788)
PLACE = Place(USE.salt, USE.volume, 4096)


def make_record(key: bytes = b"a/key", value: bytes = b"value") -> bytes:
    """Return a whole record of `PLACE`."""
    prefix = encode_record(
        PLACE,
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
        st.integers(0, TIME_END - 1),
        st.integers(0, 2**32 - 1),
    ),
    behind=st.binary(max_size=9),
)
def test_decode_record_has_all_fields_that_were_written(
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
    place = PLACE._replace(offset=offset)
    data = encode_record(place, *times, *fields, key, *checked, flags) + value

    record = decode_record(data + behind, place, key)

    more = (flags, 3, offset, len(data))
    assert record == (value, *fields, *times, *more, *checked, "DISK")


def test_decode_record_of_another_key_is_a_miss() -> None:
    """The index stores fingerprints, so two keys can have one position."""
    assert decode_record(make_record(), PLACE, b"b/key") is None


@each_row(
    ("place", "text"),
    [
        (PLACE._replace(salt=1), "salt mismatch: expected 0000000000000001, found 11"),
        (PLACE._replace(volume=4), "volume 4, offset 4096"),
        (PLACE._replace(offset=4097), "volume 3, offset 4097"),
    ],
)
def test_decode_record_of_another_place_is_refused(place: Place, text: str) -> None:
    """An intact record is wrong where another one is expected."""
    with pytest.raises(DamagedRecordError, match=text):
        decode_record(make_record(), place, b"a/key")


def test_decode_tombstone_is_no_value() -> None:
    """A scan finds a tombstone; a get never returns it as an empty value."""
    data = encode_record(PLACE, 42, 0, b"", b"", b"", b"gone", 0, 0, kind=1)

    header = decode_header(data, *PLACE)

    assert header is not None
    found = (header.tombstone, header.key, header.size)
    assert found == (True, b"gone", len(data))
    with pytest.raises(DamagedRecordError):
        decode_record(data, PLACE, b"gone")


GOLDEN = Path(__file__).parents[2] / "golden" / "v2"


@each_row(
    ("data", "decode"),
    [
        (make_record(), lambda data: decode_header(data, *PLACE)),
        ((GOLDEN / "rings/data/2").read_bytes()[:64], decode_volume_header),
        ((GOLDEN / "rings/META.txt").read_bytes(), decode_manifest),
        ((GOLDEN / "purged/PURGE.txt").read_bytes(), decode_purges),
        (encode_progress(Progress(2**64 - 1, 1234, 7, 9, 8, 5)), decode_progress),
    ],
)
def test_decode_with_a_wrong_bit_or_cut_finds_nothing(
    data: bytes, decode: Callable[[bytes], object]
) -> None:
    """Of what each kind of file begins with or consists of."""
    assert decode(data)
    checked = data.removesuffix(b"value")  # Of a record, the header.
    for damaged in flipped(checked):
        assert not decode(damaged)
    for length in range(len(checked)):
        assert not decode(data[:length])


def test_decode_record_with_a_wrong_bit_or_cut_is_damaged() -> None:
    """It is refused, never returned shorter."""
    data = make_record()
    for damaged in (*flipped(data), *(data[:length] for length in range(len(data)))):
        with pytest.raises(DamagedRecordError):
            decode_record(damaged, PLACE, b"a/key")


class VolumeOf:
    """A volume that has only these bytes, from an offset on."""

    def __init__(self, data: bytes, offset: int = 4096) -> None:
        self.fd, self.id, self.seq = os.memfd_create("volume"), USE.volume, USE.seq
        self.salts = [(0, USE.salt)]
        os.pwrite(self.fd, data, offset)

    def place_at(self, offset: int) -> Place:
        """Return the place of a record at an offset."""
        return PLACE._replace(offset=offset)


def scanned(data: bytes, *, plain: bool = False) -> list[object]:
    """Return what is found at offset 4096, by the core or without it."""
    volume: Any = VolumeOf(data)
    reader = PlainRecords if plain else Records
    found = list[object](reader(OsFileSystem(), volume, 4096))
    os.close(volume.fd)
    return found


@pytest.mark.slow
def test_scan_single_wrong_bit_in_header_is_corrected() -> None:
    """The key is known although the header fails its checksum."""
    data = make_record(key=b"a/key", value=b"")
    intact = decode_header(data, *PLACE)
    assert intact is not None

    for damaged in flipped(data):
        assert scanned(damaged) == scanned(damaged, plain=True)
        assert scanned(damaged) == [Found(intact, intact=False)]


def test_scan_two_wrong_bits_in_header_are_not_corrected() -> None:
    """No other record is made of them."""
    data = make_record(value=b"")

    for one, other in ((0, 1), (5 * 8, 70 * 8), (300, 301), (61 * 8, 62 * 8)):
        damaged = bytearray(data)
        for bit in (one, other):
            damaged[bit // 8] ^= 1 << bit % 8
        assert scanned(bytes(damaged)) in ([], [Torn(4096)])


@given(st.binary(min_size=1, max_size=300), st.data())
def test_scan_single_wrong_bit_in_last_value_is_damage(
    value: bytes, data: st.DataObject
) -> None:
    """A torn value differs in more bits."""
    bit = data.draw(st.integers(0, 8 * len(value) - 1))
    record = make_record(value=value)
    start = len(record) - len(value)
    damaged = bytearray(record)
    damaged[start + bit // 8] ^= 1 << bit % 8
    header = decode_header(record, *PLACE)
    assert header is not None

    assert scanned(record) == [Found(header, intact=True)]
    assert scanned(bytes(damaged)) == [Found(header, intact=False)]
    damaged[start + bit // 8] ^= 0x55
    damaged[start] ^= 0x0C
    assert scanned(bytes(damaged)) == scanned(bytes(damaged), plain=True)


def test_decode_manifest_with_contradicting_lines_finds_nothing() -> None:
    """The volumes are in the order of their age, and the last one is the active one."""
    text = (GOLDEN / "rings/META.txt").read_bytes()
    lines = text.splitlines(keepends=True)[:-1]

    assert decode_manifest(signed(b"".join(lines))) is not None
    for wrong in (
        [b"1\n", *lines[1:]],
        [*lines[:6], *lines[:5:-1]],
        lines[:6],
        [*lines, b"more\n"],
    ):
        assert decode_manifest(signed(b"".join(wrong))) is None


def test_manifest_version_of_a_newer_format_is_read() -> None:
    """The version is read even if the rest is unknown, but only if it is undamaged."""
    newer = signed(b"3\nformat 3\nsomething new\n")
    assert manifest_version(newer) == 3
    assert manifest_version(newer.replace(b"format 3", b"format 4")) is None
    assert manifest_version(b"hello\n") is None
    assert manifest_version(b"3\n") is None


PROGRESS = Progress(
    *(0x5F0C64D3C1F0A7BE, 1234, 0x9C1E0B7A44D2F083),
    *(987_654, 1_795_251_600_000_000, 0x77D0C2AA),
)
PROGRESS_LINE = (
    b"volcache lock 2 store 5f0c64d3c1f0a7be seq 000000000001234"
    b" salt 9c1e0b7a44d2f083 end 0000000987654 time 00001795251600000000"
    b" boot 77d0c2aa 88c59929\n"
)
NEWER = PROGRESS._replace(seq=1300, salt=5, end=64)


def test_encode_progress_is_as_documented() -> None:
    """
    Every number has a fixed width; with one active volume there are two such lines.

    They are returned newest first.
    """
    assert encode_progress(PROGRESS) == PROGRESS_LINE
    assert decode_progress(b"17\n" + PROGRESS_LINE + PROGRESS_LINE) == [PROGRESS]
    assert decode_progress(PROGRESS_LINE.replace(b"lock 2", b"lock 3")) == []
    newer = encode_progress(NEWER)
    for lines in (PROGRESS_LINE + newer, newer + PROGRESS_LINE):
        assert decode_progress(b"17\n" + lines) == [NEWER, PROGRESS]
