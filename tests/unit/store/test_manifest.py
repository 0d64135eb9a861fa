"""META.txt: readable by people, and every damage is detected."""

from __future__ import annotations

from support.damage import flipped
from support.stores import signed
from volcache.store.format import Ring, VolumeUse
from volcache.store.manifest import (
    ListedVolume,
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_version,
)

MANIFEST = Manifest(
    store_id=0x5F0C64D3C1F0A7BE,
    mount_count=4,
    time_us=1_790_000_000_000_000,
    boot=0x77D0C2AA,
    volumes=(
        ListedVolume(VolumeUse(1, 15, Ring.MAIN, 0xA1), "synced", 9000, 0x1234),
        ListedVolume(VolumeUse(2, 16, Ring.PROBATION, 0xA2), "sealed", 8000, None),
        ListedVolume(VolumeUse(3, 17, Ring.MAIN, 0xA3)),
    ),
)


def test_the_first_line_is_the_id_of_the_active_volume() -> None:
    """The other lines have a name and a value."""
    data = encode_manifest(MANIFEST)

    assert data.splitlines()[:4] == [
        b"3",
        b"format 2",
        b"store 5f0c64d3c1f0a7be",
        b"mount 4",
    ]
    assert decode_manifest(data) == MANIFEST
    assert manifest_version(data) == 2


def test_each_volume_has_a_line() -> None:
    """With its end and the checksum of its index file once nothing is appended."""
    lines = encode_manifest(MANIFEST).decode().splitlines()

    assert lines[6:9] == [
        "volume 1 seq 15 ring main salt 00000000000000a1 synced end 9000 index 00001234",
        "volume 2 seq 16 ring probation salt 00000000000000a2 sealed end 8000 index -",
        "volume 3 seq 17 ring main salt 00000000000000a3 open",
    ]


def test_lines_that_contradict_each_other_are_damage() -> None:
    """The volumes are in the order of their age, and the last one is the active one."""
    text = encode_manifest(MANIFEST).rpartition(b"checksum")[0]
    lines = text.splitlines(keepends=True)

    for wrong in (
        [b"1\n", *lines[1:]],
        [*lines[:6], *lines[8:5:-1]],
        lines[:6],
        [*lines, b"more\n"],
    ):
        assert decode_manifest(signed(b"".join(wrong))) is None


def test_every_flipped_bit_and_every_truncation_is_detected() -> None:
    """A damaged manifest is None, never another manifest."""
    data = encode_manifest(MANIFEST)

    for damaged in flipped(data):
        assert decode_manifest(damaged) is None
    for length in range(len(data)):
        assert decode_manifest(data[:length]) is None


def test_the_version_of_a_newer_manifest_is_read() -> None:
    """The version is read even if the rest is unknown, but only if it is undamaged."""
    newer = signed(b"3\nformat 3\nsomething new\n")
    assert manifest_version(newer) == 3
    assert manifest_version(newer.replace(b"format 3", b"format 4")) is None
    assert manifest_version(b"hello\n") is None
    assert manifest_version(b"3\n") is None
