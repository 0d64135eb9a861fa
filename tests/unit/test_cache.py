"""cache.py: both tiers together, with a hot tier in a dict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.stores import FakeClock, fill_volume, open_store, value_of
from volcache.cache import Cache
from volcache.hot.promotion import MissCounters
from volcache.hot.tier import HotStats

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.store import Store


class DictTier:
    """A hot tier that holds its copies in a dict, and records the calls that change it."""

    def __init__(self) -> None:
        self.stats = HotStats()
        self.up = {"dict": True}
        self.copies: dict[bytes, bytes] = {}
        self.calls: list[str] = []
        self.is_broken = False

    def may_hold(self, key: bytes) -> bool:
        """Return whether there is a copy."""
        return key in self.copies

    def get(self, key: bytes) -> bytes | None:
        """Return the copy."""
        return self.copies.get(key)

    def promote(self, key: bytes, copy: bytes, expires_ms: int) -> bool:
        """Store a copy."""
        self.calls.append(f"promote {key.decode()} {expires_ms}")
        self.copies[key] = copy
        return True

    def invalidate(self, key: bytes) -> None:
        """Drop a copy, or fail."""
        self._change("invalidate")
        del self.copies[key]

    def flush(self) -> None:
        """Drop all copies, or fail."""
        self._change("flush")
        self.copies.clear()

    def close(self) -> None:
        """Do nothing."""

    def _change(self, call: str) -> None:
        if self.is_broken:
            message = "broken"
            raise OSError(message)
        self.calls.append(call)


@pytest.fixture
def hot() -> DictTier:
    """Return an empty hot tier."""
    return DictTier()


@pytest.fixture
def cache(store: Store, hot: DictTier) -> Cache:
    """Return a cache that promotes a key at its second read."""
    promotion = MissCounters(count=2, duration_ms=60_000, clock=FakeClock())
    return Cache(store, hot, promotion)


def source_of(cache: Cache, key: bytes) -> str | None:
    """Return the tier that answers a get; None for a miss."""
    record = cache.get(key)
    return None if record is None else record.source


def make_hot(cache: Cache, key: bytes) -> None:
    """Read a key until it is promoted."""
    assert [source_of(cache, key) for _ in range(3)] == ["DISK", "DISK", "MEMC"]


def overwrite_by_age(store: Store) -> None:
    """Rotate until every volume has been reclaimed."""
    for number in range(5):
        fill_volume(store, b"fill %d" % number)


def test_cache_without_a_hot_tier_is_the_store(store: Store) -> None:
    """Every call reaches the store, and nothing is promoted."""
    cache = Cache(store)
    assert cache.put(b"k", b"value", content_type=b"x/y").content_type == b"x/y"
    assert [source_of(cache, b"k") for _ in range(9)] == ["DISK"] * 9
    header = cache.stat(b"k")
    assert header is not None
    assert (header.value, header.length) == (b"", 5)
    assert cache.delete(b"k")
    assert not cache.delete(b"k")
    assert cache.get(b"k") is None
    assert cache.stat(b"k") is None
    cache.put(b"k", b"value")
    cache.flush()
    assert cache.get(b"k") is None
    assert cache.hot_state() is None
    assert cache.is_ready()


def test_hot_key_is_promoted_with_its_expiry(cache: Cache, hot: DictTier) -> None:
    """And is answered from the hot tier from then on, with the same fields."""
    expires_ms = FakeClock().now_ms + 5000
    stored = cache.put(b"k", b"value", content_type=b"x/y", expires_ms=expires_ms)
    make_hot(cache, b"k")
    assert hot.calls == [f"promote k {expires_ms}"]
    assert cache.get(b"k") == stored._replace(source="MEMC")
    state = cache.hot_state()
    assert state is not None
    assert (state.stats, state.up, state.promoted) == (hot.stats, {"dict": True}, 1)


def test_put_invalidates_the_copy_before_the_store_changes(
    cache: Cache, hot: DictTier
) -> None:
    """The new value is read from the disk until it is promoted again."""
    cache.put(b"k", b"old")
    make_hot(cache, b"k")
    cache.put(b"k", b"new")
    assert hot.calls[1:] == ["invalidate"]
    assert value_of(cache.get(b"k")) == b"new"
    assert source_of(cache, b"k") == "DISK"


@pytest.mark.parametrize("change", ["put", "delete", "flush"])
def test_failed_invalidation_changes_nothing(
    cache: Cache, hot: DictTier, change: str
) -> None:
    """The old value stays in both tiers."""
    cache.put(b"k", b"old")
    make_hot(cache, b"k")
    hot.is_broken = True
    with pytest.raises(OSError, match="broken"):
        {
            "put": lambda: cache.put(b"k", b"new"),
            "delete": lambda: cache.delete(b"k"),
            "flush": cache.flush,
        }[change]()
    assert value_of(cache.get(b"k")) == b"old"
    assert value_of(cache.store.get(b"k")) == b"old"


def test_copy_of_a_replaced_value_is_rejected(cache: Cache, hot: DictTier) -> None:
    """Even if the hot tier returns it; it is counted as stale."""
    cache.put(b"k", b"old")
    make_hot(cache, b"k")
    old = hot.copies[b"k"]
    cache.put(b"k", b"new")
    make_hot(cache, b"k")
    hot.copies[b"k"] = old
    assert value_of(cache.get(b"k")) == b"new"
    assert hot.stats.stale == 1


def test_dropped_copy_is_read_from_the_disk_and_promoted_again(
    cache: Cache, hot: DictTier
) -> None:
    """After as many reads as the first time."""
    cache.put(b"k", b"value")
    make_hot(cache, b"k")
    hot.copies.clear()
    make_hot(cache, b"k")
    assert hot.calls == ["promote k 0", "promote k 0"]


def test_record_overwritten_by_age_is_answered_from_its_copy(
    cache: Cache, store: Store
) -> None:
    """By get and by stat; delete finds it once."""
    cache.put(b"k", b"value")
    make_hot(cache, b"k")
    overwrite_by_age(store)
    assert store.get(b"k") is None
    record = cache.get(b"k")
    assert record is not None
    assert (record.value, record.source) == (b"value", "MEMC")
    assert cache.stat(b"k") == record._replace(value=b"")
    assert cache.delete(b"k")
    assert not cache.delete(b"k")
    assert cache.get(b"k") is None


def test_expired_copy_is_a_miss(tmp_path: Path, hot: DictTier) -> None:
    """A copy outlives its record on the disk, but not its expiry."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    cache = Cache(store, hot, MissCounters(count=2, duration_ms=60_000, clock=clock))
    cache.put(b"k", b"value", expires_ms=clock.now_ms + 5000)
    make_hot(cache, b"k")
    overwrite_by_age(store)
    assert source_of(cache, b"k") == "MEMC"
    clock.advance(5)
    assert cache.get(b"k") is None
    assert cache.stat(b"k") is None
    store.close()


def test_flush_empties_both_tiers(cache: Cache, hot: DictTier) -> None:
    """The reads before it do not count for promotion."""
    cache.put(b"k", b"value")
    make_hot(cache, b"k")
    cache.put(b"other", b"value")
    cache.get(b"other")
    cache.flush()
    assert hot.calls[-1] == "flush"
    assert not hot.copies
    assert cache.get(b"k") is None
    cache.put(b"other", b"value")
    assert [source_of(cache, b"other") for _ in range(2)] == ["DISK", "DISK"]
    state = cache.hot_state()
    assert state is not None
    assert state.promoted == 1


def test_waited_time_is_split_by_tier(cache: Cache, hot: DictTier) -> None:
    """Only operations of a millisecond or more since the given time are summed."""
    since_ns = time.perf_counter_ns()
    stats = cache.store.stats
    stats.reads.observe(since_ns - 1, 9_000_000)
    stats.reads.observe(since_ns, 2_000_000)
    stats.writes.observe(since_ns + 5, 3_000_000)
    stats.rotating.observe(since_ns + 6, 4_000)
    hot.stats.calls.observe(since_ns, 7_000_000)
    assert cache.waited_since(since_ns) == (5_000_000, 7_000_000)
