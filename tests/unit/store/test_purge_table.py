"""The purges in the native core: which records they cover, and which of them stay."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from volcache.store._core import _native
from volcache.store.files import OsFileSystem

# Many of them begin with others, and many are there twice.
prefixes = st.builds(
    lambda pattern, length: (pattern * length)[:length],
    st.sampled_from([b"a", b"ab", b"aab", b"b"]),
    st.sampled_from([1, 2, 3, 8, 13, 63, 64, 65, 128, 65_535]),
)


def make_index() -> Any:
    """Return an index without volumes."""
    return _native.Index(OsFileSystem(), bytes(16), volume_bytes=2**24, volumes=4)


@given(
    st.lists(prefixes, min_size=1, max_size=12),
    st.lists(prefixes, min_size=1, max_size=4),
    st.integers(0, 14),
    st.integers(0, 14),
    st.tuples(st.integers(0, 13), st.sampled_from([9, 99, 999, 10**6])),
)
def test_purges_cover_what_those_in_a_list_cover(
    purged: list[bytes],
    keys: list[bytes],
    stored_us: int,
    seq: int,
    limits: tuple[int, int],
) -> None:
    """Also after a sweep, which leaves none that a later one covers, and after a drop."""
    index = make_index()
    index.load_purges((n, n, prefix) for n, prefix in enumerate(purged, 1))
    left = [(n, p) for n, p in enumerate(purged, 1) if p not in purged[n:]]
    swept = [(n, p) for n, p in left if not p.startswith(tuple(purged[n:]))]
    for change, expected in (
        (lambda: None, left),
        (index.sweep_purges, swept),
        (lambda: index.drop_purges(seq), [one for one in swept if one[0] >= seq]),
    ):
        change()
        assert index.purges() == [(n, n, prefix) for n, prefix in expected]
        assert index.purge_count == len(expected)
        below = [n for n, _ in expected if n < seq]
        assert index.last_purge_below(seq) == max(below, default=0)
        for key in keys:
            is_purged = any(key.startswith(p) and stored_us <= n for n, p in expected)
            assert index.is_purged(key, stored_us) == is_purged
            kept = [len(p) for _, p in expected if not p.startswith(key)]
            fits = len(kept) < limits[0] and sum(kept) + len(key) <= limits[1]
            assert index.has_room_for_purge(key, *limits) == fits
    index.close()


def test_reserve_purge_has_no_effect_before_it_is_added() -> None:
    """Another one may be reserved in its place."""
    index = make_index()
    index.reserve_purge(b"a")
    assert not index.is_purged(b"a", 1)
    index.reserve_purge(b"b")
    index.add_purge(1, 1)
    assert not index.is_purged(b"a", 1)
    assert index.is_purged(b"b", 1)
    index.close()


def test_lookup_among_many_purges_takes_as_long_as_among_few() -> None:
    """Of one that finds nothing; a list would take 1,000 times as long."""
    index = make_index()
    keys = [b"tiles/%d/x.png" % number for number in range(1000)]

    def seconds() -> float:
        started = perf_counter()
        for key in keys:
            assert not index.is_purged(key, 1)
        return perf_counter() - started

    index.load_purges([(1, 1, b"other/0/")])
    few = min(seconds() for _ in range(20))
    index.load_purges((n, 1, b"other/%d/" % n) for n in range(60_000))
    assert min(seconds() for _ in range(20)) < 50 * few
    index.load_purges([(60_001, 1, b"other/")])
    index.sweep_purges()
    assert index.purges() == [(60_001, 1, b"other/")]
    index.close()
