"""The purges in the native core: which records they cover, and which of them stay."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.store._core import _native
from volcache.store.files import OsFileSystem

prefixes = st.binary(min_size=1, max_size=3).map(lambda b: bytes(x % 3 for x in b))


def make_index() -> Any:
    """Return an index without volumes."""
    return _native.Index(OsFileSystem(), bytes(16), volume_bytes=2**24, volumes=4)


@pytest.fixture
def index() -> Iterator[Any]:
    """An index without volumes."""
    made = make_index()
    yield made
    made.close()


def purge(index: Any, prefix: bytes, time_us: int, seq: int = 1) -> None:
    """Add a purge."""
    index.load_purges([(time_us, seq, prefix)])


def test_purge_covers_the_keys_that_begin_with_its_prefix(index: Any) -> None:
    """Among others with long prefixes."""
    key = b"key of 13 byt"
    for prefix, is_purged in (
        (b"key", True),
        (b"key of 13 byt", True),
        (b"key of 13 byt\0", False),
        (b"key of 13 byte", False),
        (b"key of 1", True),
        (b"key of 2", False),
        (b"key of 12", False),
    ):
        index.drop_purges(2)
        prefixes = [b"another long prefix", b"key of no use", prefix, b"zero and one"]
        for number, one in enumerate(prefixes):
            purge(index, one, 5 + number)
        assert index.is_purged(key, 7) == is_purged, prefix
        assert not index.is_purged(key, 8), prefix


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 65_535])
def test_prefix_of_any_length_is_found(index: Any, length: int) -> None:
    """Also one as long as the longest key."""
    prefix = bytes(n % 251 for n in range(length))
    purge(index, prefix, 5)
    assert index.is_purged(prefix, 5)
    assert not index.is_purged(prefix, 6)
    assert not index.is_purged(prefix[:-1], 5)
    assert index.is_purged((prefix + b"/more")[:65_535], 5)
    assert not index.is_purged(b"x" + prefix[1:], 5)


def test_purge_of_the_same_prefix_takes_its_place(index: Any) -> None:
    """It is the newest then."""
    for time_us, prefix in enumerate((b"a", b"b", b"a"), 1):
        purge(index, prefix, time_us, time_us)
    assert index.purges() == [(2, 2, b"b"), (3, 3, b"a")]


def test_purges_are_dropped_in_their_order(index: Any) -> None:
    """And nothing is purged when all are."""
    for number in range(1, 200):
        purge(index, b"%d/" % number, number, number // 10)
    assert index.last_purge_below(0) == 0
    assert index.last_purge_below(5) == 49
    index.drop_purges(5)
    assert index.purge_count == 150
    assert not index.is_purged(b"49/x", 1)
    assert index.is_purged(b"50/x", 1)
    index.drop_purges(1000)
    assert index.purges() == []
    assert not index.is_purged(b"199/", 1)


def test_sweep_leaves_what_no_later_purge_covers(index: Any) -> None:
    """The prefix itself, a longer one, and one that is later than a shorter one."""
    purge(index, b"a/before", 1)
    purge(index, b"ab", 2)
    for number in range(200):
        purge(index, b"a/%d" % number, 3 + number)
    purge(index, b"a/", 300)
    purge(index, b"a/later", 301)
    assert index.purge_count == 204
    index.sweep_purges()
    assert [prefix for _, _, prefix in index.purges()] == [b"ab", b"a/", b"a/later"]


def test_room_counts_what_the_next_purge_covers(index: Any) -> None:
    """Entries, and bytes of prefixes."""
    for number in range(3):
        purge(index, b"a/%d" % number, number + 1)
    assert index.has_room_for_purge(b"b", 4, 10)
    assert not index.has_room_for_purge(b"b", 3, 10)
    assert not index.has_room_for_purge(b"b", 4, 9)
    assert index.has_room_for_purge(b"a/1", 3, 9)
    assert index.has_room_for_purge(b"a/", 1, 2)
    assert not index.has_room_for_purge(b"a/12", 3, 20)


def test_reserved_purge_has_no_effect(index: Any) -> None:
    """Until it is added; another one may be reserved in its place."""
    index.reserve_purge(b"a")
    assert not index.is_purged(b"a", 1)
    index.reserve_purge(b"b")
    index.add_purge(1, 1)
    assert not index.is_purged(b"a", 1)
    assert index.is_purged(b"b", 1)


def test_time_of_a_lookup_does_not_grow_with_the_purges(index: Any) -> None:
    """Of one that finds nothing; a list would take 1,000 times as long."""
    keys = [b"tiles/%d/x.png" % number for number in range(1000)]

    def seconds() -> float:
        started = perf_counter()
        for key in keys:
            assert not index.is_purged(key, 1)
        return perf_counter() - started

    purge(index, b"other/0/", 1)
    few = min(seconds() for _ in range(20))
    index.load_purges((n, 1, b"other/%d/" % n) for n in range(60_000))
    assert min(seconds() for _ in range(20)) < 50 * few


@given(st.lists(prefixes, max_size=12), prefixes, st.integers(0, 14))
def test_purges_cover_what_any_of_them_covers(
    purged: list[bytes], key: bytes, stored_us: int
) -> None:
    """Also after a sweep; no prefix is there twice, and none that a later one covers."""
    index = make_index()
    index.load_purges((n, n, prefix) for n, prefix in enumerate(purged, 1))
    is_purged = any(
        key.startswith(prefix) and stored_us <= time_us
        for time_us, prefix in enumerate(purged, 1)
    )
    assert index.is_purged(key, stored_us) == is_purged
    index.sweep_purges()
    assert index.is_purged(key, stored_us) == is_purged
    assert index.purges() == [
        (n, n, prefix)
        for n, prefix in enumerate(purged, 1)
        if not any(prefix.startswith(later) for later in purged[n:])
    ]
    index.close()
