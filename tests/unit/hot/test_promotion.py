"""promotion.py: when a key is hot."""

from __future__ import annotations

from support.stores import FakeClock
from support.tables import each_row
from volcache.hot.promotion import MissCounters


def make_counters(
    count: int = 3, counters_max: int = 100
) -> tuple[MissCounters, FakeClock]:
    """Return counters with a window of 60 s, and their clock."""
    clock = FakeClock()
    counters = MissCounters(
        count=count, duration_ms=60_000, clock=clock, counters_max=counters_max
    )
    return counters, clock


@each_row("count", [1, 2, 3, 10])
def test_nth_read_makes_a_key_hot(count: int) -> None:
    """Not the read before; afterwards the count starts at 0."""
    counters, _ = make_counters(count)

    for _ in range(2):
        reads = [counters.is_hot_now(b"k") for _ in range(count)]
        assert reads == [False] * (count - 1) + [True]


def test_reads_must_be_within_the_window() -> None:
    """The window includes its last millisecond, and moves with each read."""
    counters, clock = make_counters()
    assert not counters.is_hot_now(b"k")  # at 0 s
    clock.advance(30)
    assert not counters.is_hot_now(b"k")  # at 30 s
    clock.advance(30.001)
    assert not counters.is_hot_now(b"k")  # at 60.001 s: the first is too old
    clock.advance(29.999)
    assert counters.is_hot_now(b"k")  # at 90 s: 30, 60.001 and 90 are three in 60 s


def test_keys_are_counted_separately() -> None:
    """Reads of one key do not make another key hot."""
    counters, _ = make_counters(2)

    assert not counters.is_hot_now(b"a")
    assert not counters.is_hot_now(b"b")
    assert counters.is_hot_now(b"a")


def test_key_read_least_recently_is_forgotten_first() -> None:
    """The number of counters is bounded."""
    counters, _ = make_counters(3, counters_max=2)
    counters.is_hot_now(b"a")
    counters.is_hot_now(b"b")
    counters.is_hot_now(b"a")
    counters.is_hot_now(b"c")

    assert len(counters) == 2
    assert counters.is_hot_now(b"a")
    assert not counters.is_hot_now(b"b")


def test_clear_forgets_all_reads() -> None:
    """No read before a flush counts."""
    counters, _ = make_counters(2)
    counters.is_hot_now(b"k")
    counters.clear()

    assert not counters.is_hot_now(b"k")
