"""Durations are counted by their order of magnitude."""

import pytest

from volcache.histogram import BUCKETS, LONG_NS, Histogram


@pytest.mark.parametrize(
    ("ns", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (2**62, 63)],
)
def test_a_duration_lies_in_the_bucket_of_its_bit_length(ns: int, bucket: int) -> None:
    """And what is longer than the last bucket begins, in the last."""
    histogram = Histogram()
    histogram.observe(0, ns)
    assert histogram.counts[bucket] == 1
    assert histogram.count == 1
    assert histogram.total_ns == ns


def test_long_ones_are_remembered_and_short_ones_are_not() -> None:
    """So that a slow request can tell what it has waited for."""
    histogram = Histogram()
    histogram.observe(100, 5_000_000)
    histogram.observe(200, LONG_NS)
    histogram.observe(300, 7_000_000)
    assert histogram.since(0) == 12_000_000
    assert histogram.since(101) == 7_000_000
    assert histogram.since(301) == 0


def test_memory_of_long_ones_is_bounded() -> None:
    """A disk that hangs makes every one of them long."""
    histogram = Histogram()
    for moment in range(1000):
        histogram.observe(moment, LONG_NS + 1)
    assert len(histogram.long) == 64


def test_cumulative_ends_with_all_and_bounds_are_seconds() -> None:
    """As Prometheus wants them."""
    histogram = Histogram()
    for ns in (1, 1000, 10**6):
        histogram.observe(0, ns)
    found = histogram.cumulative()
    assert len(found) == BUCKETS
    assert found[-1][1] == 3
    assert found[10] == (1024 / 10**9, 2)


@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
def test_a_quantile_lies_within_the_bucket_of_the_true_one(share: float) -> None:
    """A power of two is the precision that was paid for."""
    histogram = Histogram()
    durations = sorted(1000 + 37 * i for i in range(10_000))
    for ns in durations:
        histogram.observe(0, ns)
    true = durations[int(share * len(durations))]
    assert true / 2 <= histogram.quantile(share) * 10**9 <= true * 2


def test_the_quantile_of_nothing_is_nothing() -> None:
    """A page that has just been opened divides by no count."""
    assert Histogram().quantile(0.99) == 0.0


def test_merging_adds_and_leaves_both_as_they_were() -> None:
    """The fast path keeps a histogram of its own."""
    one, other = Histogram(), Histogram()
    one.observe(0, 5)
    other.observe(0, 7)
    both = one.merged(other)
    assert (both.count, both.total_ns) == (2, 12)
    assert (one.count, other.count) == (1, 1)
