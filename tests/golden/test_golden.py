"""Directories written by earlier code are read by the current code, or refused."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.contents import files_of
from support.stores import FakeClock, open_store, value_of
from volcache.errors import FormatVersionError
from volcache.store import Store
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.format import FIXED_BYTES, prefix_length
from volcache.store.offline import OfflineStore

GOLDEN = Path(__file__).parent / "v2"
OLD = Path(__file__).parent / "v1" / "healthy"
NOW_MS = 1_790_000_000_000
HEALTHY = {
    b"turn": b"2",
    b"fill/0": None,
    b"fill/1": b"1" * 1500,
    b"fill/1 more": b"1" * 300,
    b"fill/2": b"2" * 1500,
    b"fill/2 more": b"2" * 300,
    b"a/hello.txt": b"Hello, disk!\n",
    "grün & 100%".encode(): b"",
    b"packed": b"\x1f\x8b",
    b"later gone": None,
    b"deleted": None,
}


def bytes_in(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files but LOCK by their names."""
    found = files_of(directory).items()
    return {name: data for name, data in found if not name.endswith("LOCK")}


def without_unsynced(data: bytes) -> bytes:
    """Return a volume with zeros for what was not synced, which was counted later."""
    blank = bytearray(data)
    for found in re.finditer(rb"VLR\x02", data):
        at = found.start()
        checksum_at = at + prefix_length(data[at : at + FIXED_BYTES]) - 4
        blank[at + 28 : at + 32] = blank[checksum_at : checksum_at + 4] = bytes(4)
    return bytes(blank)


def opened(directory: Path, name: str, **options: Any) -> Store:
    """Open a copy of one of the directories."""
    shutil.copytree(GOLDEN / name, directory / name)
    return open_store(directory / name, volume_size=2048, volume_num=3, **options)


@pytest.mark.parametrize(
    ("name", "different", "scanned"),
    [
        ("healthy", {}, 0),
        ("no_index", {}, 11),
        ("no_meta", {}, 0),
        ("torn_tail", {b"deleted": b"x"}, 2),
        ("bit_rot", {b"fill/1 more": None}, 0),
    ],
)
def test_open_version_2_reads_every_value(
    tmp_path: Path, name: str, different: dict[bytes, bytes | None], scanned: int
) -> None:
    """Every value is read byte for byte, except those damaged on purpose and expired."""
    clock = FakeClock()
    clock.now_ms = NOW_MS + 999
    store = opened(tmp_path, name, clock=clock)
    record = store.get(b"later gone")
    assert record is not None
    assert (record.value, record.expires_ms) == (b"x", NOW_MS + 1000)
    clock.advance(0.001)

    for key, value in (HEALTHY | different).items():
        assert value_of(store.get(key)) == value, key
    found = store.recovery
    assert found.scanned == scanned
    assert (found.damaged, found.stale, found.rejected, found.unknown) == (0, 0, 0, 0)
    assert found.torn == (name == "torn_tail")
    assert found.rebuilt == (3 if name == "no_index" else 0)
    assert found.meta_lost == (name == "no_meta")
    assert store.stats.damaged_records == (name == "bit_rot")
    assert store.stats.expired_reads == 1
    store.close()


def test_open_version_2_reads_the_metadata(tmp_path: Path) -> None:
    """Times, type, encoding, flags and cache directives are those that were stored."""
    store = opened(tmp_path, "healthy")
    hello, packed = store.get(b"a/hello.txt"), store.get(b"packed")
    assert hello is not None
    assert packed is not None
    # Each record has a microsecond of its own.
    assert hello.stored_us == NOW_MS * 1000 + 9
    assert packed.stored_us == NOW_MS * 1000 + 11
    assert (hello.content_type, hello.content_encoding) == (b"text/plain", b"")
    assert (packed.content_type, packed.content_encoding) == (b"", b"gzip")
    assert (hello.flags, packed.flags) == (0, 0x01020304)
    assert (hello.expires_ms, packed.expires_ms) == (0, 0)
    store.close()
    store = opened(tmp_path, "directives", clock=FakeClock())
    tile, plain = store.get(b"tile.pbf"), store.get(b"plain")
    assert tile is not None
    assert plain is not None
    assert (tile.value, tile.content_encoding) == (b"\x1a\x0a", b"gzip")
    assert tile.content_type == b"application/x-protobuf"
    assert (tile.cache_control, plain.cache_control) == (b"public, immutable", b"")
    assert (tile.expires_ms, plain.value) == (NOW_MS + 60_000, b"value")
    store.close()


def test_make_version_2_writes_the_same_bytes(tmp_path: Path) -> None:
    """The format does not change by accident."""
    make = runpy.run_path(str(GOLDEN.parent / "make.py"))
    make["make_all"](tmp_path)

    written = bytes_in(tmp_path)
    golden = {path: data for path, data in bytes_in(GOLDEN).items() if is_made(path)}
    assert written.keys() == golden.keys()
    for name, data in written.items():
        assert without_unsynced(data) == without_unsynced(golden[name]), name


def is_made(path: str) -> bool:
    """Return whether the current code makes a file: `purged` is older, see make.py."""
    return not path.startswith("purged/")


@pytest.mark.parametrize("volume_num", [3, 5])
@pytest.mark.parametrize(
    ("meta", "named"),
    [("intact", "META.txt"), ("missing", "data/0"), ("damaged", "data/0")],
)
def test_open_version_1_is_refused_and_changes_nothing(
    tmp_path: Path, meta: str, named: str, volume_num: int
) -> None:
    """The message says why and what to do; the tools that only read refuse it as well."""
    shutil.copytree(OLD, tmp_path / "old")
    if meta == "missing":
        (tmp_path / "old" / "META.txt").unlink()
    elif meta == "damaged":
        (tmp_path / "old" / "META.txt").write_bytes(b"1\nformat 1\n")
    before = bytes_in(tmp_path / "old")

    with pytest.raises(FormatVersionError) as refused:
        open_store(tmp_path / "old", volume_size=2048, volume_num=volume_num)

    message = str(refused.value)
    assert f"mount point {str(tmp_path / 'old')!r} has the old format 1" in message
    assert f"({named})" in message
    assert "this volcache reads format 2" in message
    assert "give another mount_point, or remove the files in this one" in message
    assert bytes_in(tmp_path / "old") == before
    with pytest.raises(FormatVersionError) as inspected:
        OfflineStore.inspect(ReadOnlyFileSystem(), str(tmp_path / "old"))
    assert str(inspected.value) == message
    assert bytes_in(tmp_path / "old") == before
