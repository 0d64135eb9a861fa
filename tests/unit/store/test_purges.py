"""Purges: the list, PURGE.txt, and what the store does with them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.histories import (
    MOUNT_POINT,
    open_simulated,
)
from support.simulated import SimulatedFileSystem
from support.stores import (
    FakeClock,
    UnsyncedFileSystem,
    fill_volume,
    kill,
    open_fifo,
    open_store,
    reopen,
    value_of,
)
from volcache.errors import MismatchedFilesError, StoreIOError, TooManyPurgesError
from volcache.store import Store
from volcache.store.purges import (
    PURGES_MAX,
    Purge,
    PurgeFile,
    PurgeList,
    decode_purges,
    encode_purges,
)

prefixes = st.binary(min_size=1, max_size=3).map(lambda b: bytes(x % 3 for x in b))


# --- The list ----------------------------------------------------------------------


@given(st.lists(prefixes, max_size=12), prefixes, st.integers(0, 14))
def test_the_list_covers_what_any_of_the_purges_covers(
    purged: list[bytes], key: bytes, stored_us: int
) -> None:
    """Whatever was merged; and no prefix is in the list twice."""
    found = PurgeList()
    for time_us, prefix in enumerate(purged, 1):
        found = found.plus(Purge(time_us, time_us, prefix))
    assert found.covers(key, stored_us) == any(
        key.startswith(prefix) and stored_us <= time_us
        for time_us, prefix in enumerate(purged, 1)
    )
    assert len({purge.prefix for purge in found}) == len(found)
    assert found.newest_us == (len(purged) or -1)


# --- PURGE.txt ---------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=40), unique=True))
def test_any_prefixes_are_read_back(prefixes: list[bytes]) -> None:
    """Every byte."""
    purges = PurgeList(Purge(n, n, prefix) for n, prefix in enumerate(prefixes))
    file = PurgeFile(2**64 - 1, 7, 0, purges)
    found = decode_purges(encode_purges(file))
    assert found is not None
    assert found[:3] == file[:3]
    assert found.purges == purges


def test_a_damaged_file_that_no_purge_explains_is_refused(tmp_path: Path) -> None:
    """What is in others, and which are refused: test_purge.py of the crash tests."""
    open_store(tmp_path).close()
    (tmp_path / "PURGE.txt").write_bytes(b"x")
    with pytest.raises(MismatchedFilesError, match="damaged, so that it is unknown"):
        open_store(tmp_path)


# --- The store ---------------------------------------------------------------------


def test_after_a_start_with_an_earlier_clock_new_values_are_not_purged(
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


def test_an_entry_is_dropped_when_the_volumes_of_its_time_are_reclaimed(
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


def test_a_start_drops_what_is_not_needed(tmp_path: Path) -> None:
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
def test_a_flush_during_a_read_does_not_return_what_was_purged(
    tmp_path: Path, size: int
) -> None:
    """The record is read, and its purge dropped with its volume, before the check."""

    class FlushingFileSystem(UnsyncedFileSystem):
        flushes = False

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            if self.flushes:
                self.flushes = False
                store.flush()
            return super().pread(fd, length, offset)

    fs = FlushingFileSystem()
    store = open_store(tmp_path, volume_size=8 << 20, fs=fs)
    for read in (store.get, store.stat, store.__contains__):
        store.put(b"a/1", bytes(size))
        store.purge(b"a/")
        fs.flushes = True
        assert not read(b"a/1")
        assert not fs.flushes
    store.close()


def test_a_full_list_is_refused(tmp_path: Path) -> None:
    """With a way out: a prefix that covers some of them."""
    store = open_fifo(tmp_path)
    for number in range(PURGES_MAX):
        store.purge(b"a/%03d/" % number)
    store.put(b"b", b"")
    with pytest.raises(TooManyPurgesError, match="the list of purges is full"):
        store.purge(b"b")
    assert b"b" in store
    store.purge(b"a/000/")
    store.purge(b"a/01")
    store.purge(b"b")
    assert b"b" not in store
    assert store.usage().purges == PURGES_MAX - 10 + 2


def test_no_copy_of_a_purged_record_is_valid(tmp_path: Path) -> None:
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
def test_a_purge_that_the_disk_refuses_changes_nothing(name: str, code: int) -> None:
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


def test_a_purge_without_its_answer_is_needed_longer() -> None:
    """
    If META.txt was not written, the purge takes effect at the next start, and stays.

    Meanwhile records that it covers may have been copied to newer volumes.
    """
    fs, store = simulated()
    # PURGE.txt: create, write, sync, rename, directory; then META.txt is refused.
    fs.fail_at, fs.fail_with = fs.operations + 6, errno.EIO
    with pytest.raises(StoreIOError):
        store.purge(b"a/")
    assert value_of(store.get(b"a/1")) == b"old"
    for number in range(3):
        store.put(b"other/%d" % number, bytes(1500))
    for _ in range(2):
        fs = fs.after_kill()
        store = open_simulated(fs)
        assert store.get(b"a/1") is None
    (_, seq, _), *others = decoded(fs)
    assert (seq, others) == (3, [])


def test_a_kill_in_a_purge_after_a_refused_rotation_is_no_damage() -> None:
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


def decoded(fs: SimulatedFileSystem) -> PurgeList:
    """Return what PURGE.txt has."""
    file = decode_purges(bytes(fs.file(f"{MOUNT_POINT}/PURGE.txt").data))
    assert file is not None
    return file.purges


def test_a_start_removes_a_file_that_was_left() -> None:
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
