"""cache.py: both tiers together, with a hot tier in a dict."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.simulated import SimulatedFileSystem
from support.stores import FakeClock, fill_volume, open_store, value_of
from volcache.cache import Cache
from volcache.errors import StoreError, UnreadableRecordError
from volcache.front import Copies
from volcache.hot.tier import HotStats
from volcache.store import Record, Store


class RecordingKeys(Copies):
    """Keys that are hot at the second read; records the calls that change them."""

    def __init__(self, **_: Any) -> None:
        self.copies: dict[bytes, bytes] = {}
        self.calls: list[str] = []

    def invalidate(self, key: bytes) -> bool:
        """Drop a copy."""
        was_promoted = super().invalidate(key)
        if was_promoted:
            self.calls.append("invalidate")
            del self.copies[key]
        return was_promoted

    def begin_epoch(self, epoch: bytes | None = None) -> None:
        """Drop all copies."""
        super().begin_epoch(epoch)
        self.calls.append("flush")
        self.copies.clear()


class DictTier:
    """A hot tier that holds its copies in a dict, and records the calls that change it."""

    def __init__(self) -> None:
        self.stats = HotStats()
        self.client = None
        self.up = {"dict": True}
        self.keys = RecordingKeys(reads=2, seconds=60)
        self.copies, self.calls = self.keys.copies, self.keys.calls

    def get(self, key: bytes) -> bytes | None:
        """Return the copy."""
        return self.copies.get(key)

    def put_back(self, key: bytes, copy: bytes) -> None:
        """Hold a copy that should not be there any more."""
        self.keys.promote(key)
        self.copies[key] = copy

    def promote(
        self,
        key: bytes,
        copy: bytes,
        expires_ms: int,
        is_current: Callable[[], bool],
    ) -> bool:
        """Store a copy."""
        self.keys.promote(key)
        assert is_current()
        self.calls.append(f"promote {key.decode()} {expires_ms}")
        self.copies[key] = copy
        return True

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def hot() -> DictTier:
    """Return an empty hot tier."""
    return DictTier()


@pytest.fixture
def disk() -> SimulatedFileSystem:
    """Return a disk that works."""
    return SimulatedFileSystem()


@pytest.fixture
def clock() -> FakeClock:
    """Return the clock of the machine."""
    return FakeClock()


@pytest.fixture
def store(
    tmp_path: Path, disk: SimulatedFileSystem, clock: FakeClock
) -> Iterator[Store]:
    """Open a store on the disk."""
    opened = open_store(tmp_path, fs=disk, clock=clock)
    yield opened
    disk.recover()
    opened.close()


@pytest.fixture
def cache(store: Store, hot: Any) -> Cache:
    """Return a cache that promotes a key at its second read."""
    return Cache(store, hot)


@pytest.fixture
def warm(cache: Cache) -> Cache:
    """Return it with a key that is hot."""
    cache.put(b"k", b"old")
    make_hot(cache, b"k")
    return cache


def source_of(cache: Cache, key: bytes) -> str | None:
    """Return the tier that answers a get; None for a miss."""
    record = cache.get(key)
    return None if record is None else record.source


def assert_hot(cache: Cache, value: bytes) -> None:
    """Check that the hot tier answers, for get and for stat."""
    record = cache.get(b"k")
    assert record is not None
    assert (record.value, record.source) == (value, "MEMC")
    assert cache.stat(b"k") == record._replace(value=b"")


def assert_unreadable(cache: Cache) -> None:
    """Check that a read is an error."""
    for read in (cache.get, cache.stat):
        with pytest.raises(UnreadableRecordError, match="Input/output error"):
            read(b"k")


def make_hot(cache: Cache, key: bytes) -> None:
    """Read a key until it is promoted."""
    assert [source_of(cache, key) for _ in range(3)] == ["DISK", "DISK", "MEMC"]


def overwrite_by_age(store: Store) -> None:
    """Rotate until every volume has been reclaimed."""
    for number in range(5):
        fill_volume(store, b"fill %d" % number)


def test_get_hot_key_promotes_it_with_its_expiry(cache: Cache, hot: DictTier) -> None:
    """And is answered from the hot tier from then on, with the same fields."""
    expires_ms = FakeClock().now_ms + 5000
    stored = cache.put(b"k", b"value", content_type=b"x/y", expires_ms=expires_ms)
    make_hot(cache, b"k")
    assert hot.calls == [f"promote k {expires_ms}"]
    assert cache.get(b"k") == stored._replace(source="MEMC")
    state = cache.hot_state()
    assert state is not None
    assert (state.stats, state.up, state.promoted) == (hot.stats, {"dict": True}, 1)


def test_get_hot_key_with_memory_first_reads_the_disk(store: Store, hot: Any) -> None:
    """It is promoted once, and its copy is used when the log has overwritten it."""
    cache = Cache(store, hot, memory_first=True)
    cache.put(b"k", b"value")
    assert [source_of(cache, b"k") for _ in range(9)] == ["DISK"] * 9
    assert hot.calls == ["promote k 0"]
    overwrite_by_age(store)
    assert_hot(cache, b"value")


CHANGES: dict[str, Callable[[Cache], object]] = {
    "put": lambda cache: cache.put(b"k", b"new"),
    "delete": lambda cache: cache.delete(b"k"),
    "flush": lambda cache: cache.flush(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_change_invalidates_copies_after_the_store_has_changed(
    warm: Cache, hot: DictTier, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Before that the store may still refuse."""
    seen: list[bytes | None] = []
    for name in ("invalidate", "begin_epoch"):
        method = getattr(hot.keys, name)

        def call(*key: bytes, method: Callable[..., None] = method) -> None:
            seen.append(value_of(warm.store.get(b"k")))
            method(*key)

        monkeypatch.setattr(hot.keys, name, call)
    CHANGES[how](warm)
    assert seen == [b"new" if how == "put" else None]


@pytest.mark.parametrize("how", CHANGES)
def test_change_that_is_refused_keeps_the_old_value_in_both_tiers(
    warm: Cache, hot: DictTier, disk: SimulatedFileSystem, how: str
) -> None:
    """The copy stays valid; the next change succeeds."""
    disk.failing["pwritev"] = errno.ENOSPC
    for _ in range(2):
        with pytest.raises(StoreError):
            CHANGES[how](warm)
        assert source_of(warm, b"k") == "MEMC"
        assert value_of(warm.get(b"k")) == value_of(warm.store.get(b"k")) == b"old"
    assert hot.calls == ["promote k 0"]
    disk.recover()
    CHANGES[how](warm)
    assert value_of(warm.get(b"k")) == (b"new" if how == "put" else None)
    assert source_of(warm, b"k") != "MEMC"


@pytest.mark.parametrize("how", CHANGES)
def test_change_that_is_refused_keeps_a_value_of_the_hot_tier_only(
    warm: Cache, store: Store, disk: SimulatedFileSystem, how: str
) -> None:
    """It was overwritten by age. For a delete, nothing need be written."""
    overwrite_by_age(store)
    assert store.get(b"k") is None
    assert_hot(warm, b"old")
    disk.failing["pwritev"] = errno.ENOSPC
    if how == "delete":
        assert [warm.delete(b"k") for _ in range(2)] == [True, False]
    else:
        with pytest.raises(StoreError):
            CHANGES[how](warm)
        assert_hot(warm, b"old")
        assert store.get(b"k") is None
    disk.recover()
    CHANGES[how](warm)
    assert value_of(warm.get(b"k")) == (b"new" if how == "put" else None)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_get_unreadable_record_returns_its_copy(
    warm: Cache, hot: DictTier, disk: SimulatedFileSystem, *, is_restarted: bool
) -> None:
    """Also if this process has not promoted it; else it is an error, and no miss."""
    if is_restarted:
        hot.keys.ask_first(b"k", is_first=False)
    disk.failing["pread"] = errno.EIO
    assert_hot(warm, b"old")
    hot.copies.clear()
    assert_unreadable(warm)
    assert warm.get(b"absent") is warm.stat(b"absent") is None
    disk.recover()
    assert value_of(warm.get(b"k")) == b"old"
    assert warm.stat(b"k") is not None


def test_get_copy_of_another_record_rejects_it(
    warm: Cache, hot: DictTier, disk: SimulatedFileSystem
) -> None:
    """Even if the hot tier returns it, and the record cannot be read; it is stale."""
    old = hot.copies[b"k"]
    warm.put(b"k", b"new")
    hot.put_back(b"k", old)
    disk.failing["pread"] = errno.EIO
    assert_unreadable(warm)
    assert hot.stats.stale == 2
    disk.recover()
    del hot.copies[b"k"]
    make_hot(warm, b"k")
    hot.put_back(b"k", old)
    assert value_of(warm.get(b"k")) == b"new"
    assert hot.stats.stale == 3


@pytest.mark.parametrize("is_hot", [False, True])
def test_delete_and_put_of_an_unreadable_record_succeed(
    cache: Cache, hot: DictTier, disk: SimulatedFileSystem, *, is_hot: bool
) -> None:
    """Neither needs its value."""
    for key in (b"a", b"b"):
        cache.put(key, b"old")
        if is_hot:
            make_hot(cache, key)
    disk.failing["pread"] = errno.EIO
    assert cache.delete(b"a")
    assert not cache.delete(b"a")
    cache.put(b"b", b"new")
    assert cache.get(b"a") is None
    assert not hot.copies
    disk.recover()
    assert cache.get(b"a") is None
    assert value_of(cache.get(b"b")) == b"new"


def test_expiry_after_the_machine_clock_is_set_back_stays(
    cache: Cache, clock: FakeClock
) -> None:
    """A machine clock that is set back changes neither the life nor what is left."""
    asked_ms = clock.now_ms + 5000
    expires_ms = cache.expiry_of(asked_ms)
    assert expires_ms == asked_ms
    cache.put(b"k", b"value", expires_ms=expires_ms)
    clock.advance(2)
    assert cache.remaining_ms(expires_ms) == 3000
    clock.advance(-3600)
    assert cache.remaining_ms(expires_ms) == 3000
    # Five seconds from now, as the machine sees it.
    assert cache.expiry_of(clock.now_ms + 5000) == expires_ms + 2000
    clock.advance(3600 + 3)
    assert cache.remaining_ms(expires_ms) == 0
    assert cache.get(b"k") is None
    clock.advance(60)
    assert cache.remaining_ms(expires_ms) == 0


def test_get_dropped_copy_reads_the_disk_and_promotes_it_again(
    warm: Cache, hot: DictTier
) -> None:
    """After as many reads as the first time."""
    hot.copies.clear()
    make_hot(warm, b"k")
    assert hot.calls == ["promote k 0", "promote k 0"]


def test_waited_since_is_split_by_tier(cache: Cache, hot: DictTier) -> None:
    """Only operations of a millisecond or more since the given time are summed."""
    since_ns = time.perf_counter_ns()
    stats = cache.store.stats
    stats.reads.observe(since_ns - 1, 9_000_000)
    stats.reads.observe(since_ns, 2_000_000)
    stats.writes.observe(since_ns + 5, 3_000_000)
    stats.rotating.observe(since_ns + 6, 4_000)
    hot.stats.calls.observe(since_ns, 7_000_000)
    assert cache.waited_since(since_ns) == (5_000_000, 7_000_000)


def move_by_reclaim(cache: Cache, key: bytes) -> Record:
    """Read a key between puts until a reclaim has copied its record; return this one."""
    before = cache.store.get(key)
    assert before is not None
    for number in range(600):
        cache.store.put(b"fill/%d" % number, bytes(1000))
        cache.get(key)
        moved = cache.store.get(key)
        assert moved is not None
        if (moved.volume, moved.offset) != (before.volume, before.offset):
            return moved
    raise AssertionError("no reclaim has copied the record")


def test_get_hot_key_that_a_reclaim_has_copied_stays_hot(
    cache: Cache, hot: DictTier
) -> None:
    """Its item is valid, has the new position, and is replaced once."""
    put = cache.put(b"k", b"value", content_type=b"text/plain")
    make_hot(cache, b"k")
    old = hot.copies[b"k"]
    moved = move_by_reclaim(cache, b"k")
    assert moved._replace(volume=put.volume, offset=put.offset) == put
    hot.put_back(b"k", old)
    hot.calls.clear()

    assert cache.get(b"k") == moved._replace(source="MEMC")
    assert hot.calls == ["promote k 0"]
    assert cache.get(b"k") == moved._replace(source="MEMC")
    assert hot.calls == ["promote k 0"]


def test_get_from_the_hot_tier_is_a_hit_of_the_eviction_policy(
    warm: Cache, hot: DictTier, store: Store
) -> None:
    """What memcached answers is used most, and must stay on the disk."""
    for number in range(200):
        store.put(b"fill/%d" % number, bytes(1000))
        assert source_of(warm, b"k") == "MEMC"

    hot.copies.clear()
    assert store.stats.rotations > 12
    assert value_of(store.get(b"k")) == b"old"
