"""Histograms of durations."""

from support.tables import rows
from volcache.histogram import LONG_NS, Histogram


@rows((0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (2**62, 63))
def test_bucket_of_a_duration_is_its_bit_length(ns: int, bucket: int) -> None:
    """Up to the last bucket."""
    histogram = Histogram()
    histogram.observe(0, ns)
    assert histogram.counts[bucket] == 1
    assert histogram.count == 1
    assert histogram.total_ns == ns


def test_observe_keeps_only_long_durations() -> None:
    """A slow request sums up what it waited for."""
    histogram = Histogram()
    histogram.observe(100, 5_000_000)
    histogram.observe(200, LONG_NS)
    histogram.observe(300, 7_000_000)
    assert histogram.since(0) == 12_000_000
    assert histogram.since(101) == 7_000_000
    assert histogram.since(301) == 0


def test_number_of_kept_durations_is_bounded() -> None:
    """A disk that hangs makes every duration long."""
    histogram = Histogram()
    for started_ns in range(1000):
        histogram.observe(started_ns, LONG_NS + 1)
    assert len(histogram.long) == 64


@rows(0.5, 0.99, 0.999)
def test_quantile_of_durations_is_within_a_factor_of_two(share: float) -> None:
    """A bucket is a power of two."""
    histogram = Histogram()
    durations = sorted(1000 + 37 * i for i in range(10_000))
    for ns in durations:
        histogram.observe(0, ns)
    assert Histogram().quantile(share) == 0.0
    true = durations[int(share * len(durations))]
    assert true / 2 <= histogram.quantile(share) * 10**9 <= true * 2


def test_merging_changes_neither_histogram() -> None:
    """The result is their sum."""
    one, other = Histogram(), Histogram()
    one.observe(0, 5)
    other.observe(0, 7)
    both = one.merged(other)
    assert (both.count, both.total_ns) == (2, 12)
    assert (one.count, other.count) == (1, 1)


def test_histogram_without_an_earlier_one_has_what_was_added() -> None:
    """What is smaller than before, as after a restart, becomes 0."""
    earlier = Histogram()
    earlier.observe(0, 5)
    earlier.observe(0, 2000)
    now = Histogram(list(earlier.counts), earlier.total_ns)
    now.observe(0, 7)
    growth = now.without(earlier)
    assert (growth.count, growth.counts[3], growth.total_ns) == (1, 1, 7)
    assert Histogram().without(earlier) == Histogram()
