"""Directories written by earlier code are read by the current code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.stores import open_store, value_of

GOLDEN = Path(__file__).parent / "v1"
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


@pytest.mark.parametrize(
    ("name", "different", "scanned", "damaged"),
    [
        ("healthy", {}, 0, 0),
        ("no_index", {}, 11, 0),
        ("no_meta", {}, 0, 0),
        ("torn_tail", {b"deleted": b"x"}, 6, 0),
        ("bit_rot", {b"fill/1 more": None}, 0, 0),
    ],
)
def test_a_directory_of_version_1_is_read(
    tmp_path: Path,
    name: str,
    different: dict[bytes, bytes | None],
    scanned: int,
    damaged: int,
) -> None:
    """Every value is read byte for byte, except those damaged on purpose."""
    shutil.copytree(GOLDEN / name, tmp_path / name)
    store = open_store(tmp_path / name, volume_size=2048, volume_num=3)

    for key, value in (HEALTHY | different).items():
        assert value_of(store.get(key)) == value, key
    assert store.recovery.scanned == scanned
    assert store.recovery.damaged == damaged
    assert store.stats.damaged_records == (name == "bit_rot")
    record = store.get(b"a/hello.txt")
    assert record is not None
    assert (record.content_type, record.stored_ms) == (b"text/plain", 1_790_000_000_000)
    store.close()


def test_the_current_code_writes_the_same_bytes(tmp_path: Path) -> None:
    """The format does not change by accident."""
    from importlib.util import module_from_spec, spec_from_file_location  # noqa: PLC0415

    spec = spec_from_file_location("make", GOLDEN.parent / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = module_from_spec(spec)
    spec.loader.exec_module(make)
    make.make_all(tmp_path)

    written = {
        path.relative_to(tmp_path): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "LOCK"
    }
    golden = {
        path.relative_to(GOLDEN): path.read_bytes()
        for path in GOLDEN.rglob("*")
        if path.is_file()
    }
    assert written == golden
