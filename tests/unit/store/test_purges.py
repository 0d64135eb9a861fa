"""Purges: PURGE.txt, and what the store does with them."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest
from google_crc32c import extend
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from support.damage import flipped
from support.histories import (
    MOUNT_POINT,
    open_simulated,
)
from support.simulated import SimulatedFileSystem
from support.stores import (
    FakeClock,
    UnsyncedFileSystem,
    WatchedFileSystem,
    fill_volume,
    kill,
    open_fifo,
    open_store,
    reopen,
    value_of,
)
from volcache.errors import MismatchedFilesError, StoreIOError, TooManyPurgesError
from volcache.store import Store
from volcache.store.format import KEY_BYTES_MAX, SEQ_MAX
from volcache.store.manifest import ListedPurges
from volcache.store.purges import Purge, decode_purges, encode_purge, encode_purges

STORE_ID = 2**64 - 1
names = st.binary(min_size=1, max_size=40)


# --- PURGE.txt ---------------------------------------------------------------------


def written(whole: list[bytes], appended: list[bytes]) -> tuple[bytes, list[Purge]]:
    """Return PURGE.txt with these prefixes, and its purges."""
    purges = [Purge(n, n // 2, name) for n, name in enumerate([*whole, *appended])]
    data, listed = encode_purges(
        STORE_ID, ListedPurges(6, 0, 0x1234), purges[: len(whole)]
    )
    for purge in purges[len(whole) :]:
        line, listed = encode_purge(listed, purge)
        data += line
    return data, purges


@given(st.lists(names), st.lists(names))
def test_decode_purges_of_any_prefixes_are_those_written(
    whole: list[bytes], appended: list[bytes]
) -> None:
    """Every byte; those that are appended make new versions."""
    data, purges = written(whole, appended)
    found = decode_purges(data)
    assert found is not None
    assert found[:4] == (STORE_ID, 7, 0x1234, tuple(purges))
    assert found.listed[:2] == (7 + len(appended), len(purges[1:]) // 2)
    assert not found.is_torn


def test_decode_purges_of_a_cut_or_damaged_file_are_the_lines_before() -> None:
    """A line that is not whole is none, and the first version is whole or not there."""
    whole, appended = [b"a/", b"checksum"], [b"c/", b"checksum", b"d/"]
    data, purges = written(whole, appended)
    ends = [len(written(whole, appended[:n])[0]) for n in range(4)]
    for length in range(len(data)):
        found = decode_purges(data[:length])
        lines = sum(length >= end for end in ends)
        assert (found is None) == (not lines)
        if found is not None:
            assert found.purges == tuple(purges[: 1 + lines])
            assert found.is_torn == (length not in ends)
    for bit, damaged in enumerate(flipped(data)):
        found = decode_purges(damaged)
        lines = sum(end <= bit // 8 for end in ends)
        assert (found.purges if found else ()) == tuple(purges[: lines and 1 + lines])


def test_purge_file_with_more_than_one_line_behind_meta_does_not_follow() -> None:
    """The last one, of a purge that was not acknowledged, or a part of it."""
    before = ListedPurges(6, 0, 0x1234)
    first, one = encode_purges(STORE_ID, before, [])
    line, two = encode_purge(one, Purge(1, 1, b"a/"))
    another, three = encode_purge(two, Purge(2, 1, b"b/"))
    for data, accepted in (
        (first, [before, one]),
        (first + line, [one, two]),
        (first + line + another, [two, three]),
        (first + line[:5], [one]),
        (first + line + another[:5], [two]),
        (first + line + another + b"x", [three]),
    ):
        found = decode_purges(data)
        assert found is not None
        names = [before, one, two, three]
        assert [name for name in names if found.may_follow(name)] == accepted, data
        assert not found.may_follow(None)


@pytest.mark.parametrize(
    "lines",
    [
        ["5 1 a/", "4 1 b/"],
        ["5 1 a/", "5 1 b/"],
        [f"5 {SEQ_MAX + 1} a/"],
        [f"{10**16} 1 a/"],
        ["5 1 " + "a" * (KEY_BYTES_MAX + 1)],
        ["5 1 "],
        ["-5 1 a/"],
    ],
)
def test_decode_purges_with_a_number_out_of_bounds_is_damage(lines: list[str]) -> None:
    """Even with the right checksum; in a line that was appended, it ends the file."""
    first, listed = encode_purges(STORE_ID, None, [])
    text = first.split(b"checksum")[0] + b"".join(
        b"%b\n" % one.encode() for one in lines
    )
    assert decode_purges(text + b"checksum %08x\n" % crc32c(text)) is None
    checksum = listed.checksum
    for one in lines:
        line = b"%b " % one.encode()
        checksum = extend(checksum, line)
        first += line + b"%08x\n" % checksum
    found = decode_purges(first)
    assert found is not None
    assert found.is_torn
    assert found.appended == len(lines) - 1


def test_start_with_a_damaged_file_that_no_purge_explains_is_refused(
    tmp_path: Path,
) -> None:
    """What is in others, and which are refused: test_purge.py of the crash tests."""
    open_store(tmp_path).close()
    (tmp_path / "PURGE.txt").write_bytes(b"x")
    with pytest.raises(MismatchedFilesError, match=r"PURGE\.txt"):
        open_store(tmp_path)


# --- The store ---------------------------------------------------------------------


def test_put_after_a_start_with_an_earlier_clock_is_not_purged(
    tmp_path: Path,
) -> None:
    """Also if META.txt, which has the time, is lost."""
    store = open_fifo(tmp_path)
    store.put(b"a/1", b"old")
    store.close()
    clock = FakeClock()
    clock.now_ms += 100 * 365 * 24 * 3_600_000
    store = open_fifo(tmp_path, clock=clock)
    store.purge(b"a/")
    kill(store)
    (tmp_path / "META.txt").unlink()
    (tmp_path / "LOCK").unlink()
    store = open_fifo(tmp_path)
    assert store.get(b"a/1") is None
    store.put(b"a/1", b"new")
    assert value_of(store.get(b"a/1")) == b"new"


def test_purge_whose_volumes_are_reclaimed_is_dropped(
    tmp_path: Path,
) -> None:
    """Then META.txt does not name PURGE.txt, which is removed; the next begins again."""
    store = open_fifo(tmp_path)
    store.put(b"a/1", b"old")
    store.purge(b"a/")
    for _ in range(3):
        fill_volume(store)
        assert store.usage().purges == 1
        assert (tmp_path / "PURGE.txt").exists()
    fill_volume(store)
    assert store.usage().purges == 0
    assert not (tmp_path / "PURGE.txt").exists()
    assert "purges" not in (tmp_path / "META.txt").read_text()
    store.put(b"a/1", b"old")
    store.purge(b"a/")
    store = reopen(store, tmp_path, eviction="fifo")
    assert store.get(b"a/1") is None


def test_start_with_fewer_volumes_drops_purges_not_needed(tmp_path: Path) -> None:
    """PURGE.txt is written again without it."""
    store = open_fifo(tmp_path)
    store.put(b"a/1", b"old")
    store.purge(b"a/")
    fill_volume(store)
    fill_volume(store)
    store.purge(b"fill/1")
    store.close()
    store = open_fifo(tmp_path, volume_num=2)
    assert store.usage().purges == 1
    assert b" a/\n" not in (tmp_path / "PURGE.txt").read_bytes()
    store.close()
    store = open_fifo(tmp_path, volume_num=2)
    assert store.get(b"a/1") is None
    assert store.get(b"fill/1") is None


@pytest.mark.parametrize("size", [10, 100_000, 3 << 20])
def test_read_during_a_flush_does_not_return_what_was_purged(
    tmp_path: Path, size: int
) -> None:
    """The record is read, and its purge dropped with its volume, before the check."""
    fs, flushes = WatchedFileSystem(), list[bool]()
    fs.before_read = lambda *_: flushes and flushes.pop() and store.flush()
    store = open_store(tmp_path, volume_size=8 << 20, fs=fs)
    for read in (store.get, store.stat, store.__contains__):
        store.put(b"a/1", bytes(size))
        store.purge(b"a/")
        flushes.append(True)
        assert not read(b"a/1")
        assert not flushes
    store.close()


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        ("PURGES_MAX", 40, "allowed are 40 entries"),
        ("PURGE_BYTES_MAX", 40 * 6, "240 bytes of prefixes"),
    ],
)
def test_purge_when_the_list_is_full_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, text: str
) -> None:
    """With a way out: a prefix that covers some of them."""
    monkeypatch.setattr(f"volcache.store.rings.{limit}", value)
    store = open_fifo(tmp_path)
    for number in range(40):
        store.purge(b"a/%03d/" % number)
    store.put(b"b", b"")
    with pytest.raises(TooManyPurgesError, match=text):
        store.purge(b"b")
    assert b"b" in store
    store.purge(b"a/000/")
    store.purge(b"a/01")
    store.purge(b"b")
    assert b"b" not in store
    store = reopen(store, tmp_path, eviction="fifo")
    assert store.usage().purges == 40 - 10 + 2


def test_purge_when_the_file_has_grown_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one with the purges that are left; and it stays valid."""
    monkeypatch.setattr("volcache.store.rings._PURGE_GROWTH", 1000)
    store = open_store(tmp_path, fs=UnsyncedFileSystem())
    sizes = []
    for number in range(200):
        store.purge(b"%d/" % (number % 3))
        sizes.append((tmp_path / "PURGE.txt").stat().st_size)
    assert max(sizes) < 1500
    assert sum(after < before for before, after in itertools.pairwise(sizes)) >= 3
    found = decode_purges((tmp_path / "PURGE.txt").read_bytes())
    assert found is not None
    assert found.serial + found.appended == 200
    kill(store)
    assert open_store(tmp_path).usage().purges == 3


def test_validate_copy_of_a_purged_record_finds_nothing(tmp_path: Path) -> None:
    """Also not when the purge was dropped, with the records that it covered."""
    store = open_fifo(tmp_path)
    store.put(b"a/1", b"old")
    copy = store.read_raw(b"a/1") or b""
    assert store.validate(b"a/1", copy) is not None
    store.purge(b"a/")
    assert store.validate(b"a/1", copy) is None
    store.put(b"a/2", b"new")
    newer = store.read_raw(b"a/2") or b""
    while store.usage().purges:
        assert store.validate(b"a/2", newer) is not None
        fill_volume(store)
    assert store.validate(b"a/1", copy) is None
    assert store.validate(b"a/2", newer) is not None
    store.write_hot_snapshot(lambda _: b"")
    assert not (tmp_path / "HOT.txt").exists()


# --- The disk ----------------------------------------------------------------------


def simulated() -> tuple[SimulatedFileSystem, Store]:
    """Return a disk and a store with one value."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs)
    store.put(b"a/1", b"old")
    return fs, store


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("name", ["create", "pwritev", "sync", "rename"])
def test_purge_that_the_disk_refuses_changes_nothing(name: str, code: int) -> None:
    """It can be repeated."""
    fs, store = simulated()
    fs.failing[name] = code
    with pytest.raises(StoreIOError, match="disk refused to record a purge"):
        store.purge(b"a/")
    fs.failing.clear()
    assert store.usage().purges == 0
    assert value_of(store.get(b"a/1")) == b"old"
    store.purge(b"a/")
    assert store.get(b"a/1") is None
    assert open_simulated(fs.after_kill()).get(b"a/1") is None


@pytest.mark.parametrize("is_appended", [False, True])
def test_purge_without_its_answer_stays_longer(*, is_appended: bool) -> None:
    """
    If META.txt was not written, the purge takes effect at the next start, and stays.

    Meanwhile records that it covers may have been copied to newer volumes.
    """
    fs, store = simulated()
    if is_appended:
        store.purge(b"b/")
    # PURGE.txt: create, write, sync, rename, directory, or write, sync; then META.txt is
    # refused.
    fs.fail_at, fs.fail_with = fs.operations + (3 if is_appended else 6), errno.EIO
    with pytest.raises(StoreIOError):
        store.purge(b"a/")
    assert len(decoded(fs)) == 1 + is_appended
    assert value_of(store.get(b"a/1")) == b"old"
    for number in range(3):
        store.put(b"other/%d" % number, bytes(1500))
    for _ in range(2):
        fs = fs.after_kill()
        store = open_simulated(fs)
        assert store.get(b"a/1") is None
    *others, (_, seq, _) = decoded(fs)
    assert (seq, len(others)) == (3, is_appended)


def test_kill_in_a_purge_after_a_refused_rotation_is_no_damage() -> None:
    """META.txt is written first; it may no longer name the file of an earlier purge."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs, is_sparse=True)
    store.purge(b"a/")
    while store.stats.rotations < 3:
        store.put(b"other", bytes(1500))
    fs.capacity, fs.failing["rename"] = fs.used, errno.EIO
    with pytest.raises(StoreIOError, match="disk refused to start a volume"):
        store.put(b"other", bytes(1500))
    assert store.stats.given_up_volumes == 1
    fs.capacity = 1 << 50
    fs.failing.clear()
    fs.watch = lambda *_: open_simulated(fs.after_kill()).close()
    store.purge(b"b/")


@pytest.mark.parametrize("name", ["pwritev", "sync", "rename"])
def test_purge_after_a_refused_one_replaces_the_file(name: str) -> None:
    """What the refused one has appended is not there; it may be half of a line."""
    fs, store = simulated()
    store.purge(b"b/")
    fs.failing[name] = errno.EIO
    with pytest.raises(StoreIOError):
        store.purge(b"a/")
    fs.failing.clear()
    store.purge(b"c/")
    data = bytes(fs.file(f"{MOUNT_POINT}/PURGE.txt").data)
    found = decode_purges(data)
    assert found is not None
    assert (found.appended, found.is_torn) == (0, False)
    assert [purge.prefix for purge in found.purges] == [b"b/", b"c/"]
    store = open_simulated(fs.after_kill())
    assert value_of(store.get(b"a/1")) == b"old"


def decoded(fs: SimulatedFileSystem) -> tuple[Purge, ...]:
    """Return what PURGE.txt has."""
    file = decode_purges(bytes(fs.file(f"{MOUNT_POINT}/PURGE.txt").data))
    assert file is not None
    return file.purges


def test_start_with_a_file_that_was_left_removes_it() -> None:
    """The process ended before it removed it."""
    fs, store = simulated()
    store.purge(b"a/")
    left = bytes(fs.file(f"{MOUNT_POINT}/PURGE.txt").data)
    store.flush()
    store.close()
    fd = fs.open(f"{MOUNT_POINT}/PURGE.txt", create=True)
    fs.pwritev(fd, [left], 0)
    fs.close(fd)
    store = open_simulated(fs)
    assert "PURGE.txt" not in fs.names(MOUNT_POINT)
