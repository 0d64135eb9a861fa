"""META.txt: readable by people, and every damage is detected."""

from __future__ import annotations

from support.stores import signed
from volcache.store.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_version,
)

MANIFEST = Manifest(active=3, generation=17, store_id=0x5F0C64D3C1F0A7BE, mount_count=4)


def test_the_first_line_is_the_id_of_the_active_volume() -> None:
    """The other lines have a name and a value."""
    data = encode_manifest(MANIFEST)

    assert data.splitlines()[:3] == [b"3", b"format 1", b"generation 17"]
    assert decode_manifest(data) == MANIFEST
    assert manifest_version(data) == 1


def test_a_flush_is_read_as_written() -> None:
    """The oldest sequence number is a line of its own, if there was a flush."""
    flushed = MANIFEST._replace(oldest_seq=MANIFEST.active_seq)

    assert decode_manifest(encode_manifest(flushed)) == flushed
    assert b"oldest_life" not in encode_manifest(MANIFEST)


def test_every_flipped_bit_and_every_truncation_is_detected() -> None:
    """A damaged manifest is None, never another manifest."""
    data = encode_manifest(MANIFEST)

    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_manifest(bytes(damaged)) is None
    for length in range(len(data)):
        assert decode_manifest(data[:length]) is None


def test_the_version_of_a_newer_manifest_is_read() -> None:
    """The version is read even if the rest is unknown, but only if it is undamaged."""
    newer = signed(b"3\nformat 2\nsomething new\n")
    assert manifest_version(newer) == 2
    assert manifest_version(newer.replace(b"format 2", b"format 3")) is None
    assert manifest_version(b"hello\n") is None
    assert manifest_version(b"3\n") is None
