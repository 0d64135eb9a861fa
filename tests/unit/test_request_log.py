"""request_log.py: how many requests get a line of a slow log."""

from __future__ import annotations

from volcache.request_log import SLOW_LINES_PER_SECOND_MAX, SlowLimit


def test_slow_requests_are_limited_and_their_time_is_divided() -> None:
    """What other threads waited for is no part of it; a line counts those left out."""
    now = [1000.0]
    slow = SlowLimit(0.25, clock=lambda: now[0])
    assert slow.threshold_ns == 250_000_000
    assert slow.shares(350_000_000, 50_000_000, 100_000_000) == (
        0.35,
        0.1,
        0.05,
        0.2,
        0,
    )
    assert slow.shares(100_000_000, 99_000_000, 5_000_000) == (0.1, 0.001, 0.099, 0, 0)
    found = [slow.shares(1, 0, 0) for _ in range(SLOW_LINES_PER_SECOND_MAX + 3)]
    assert found.count(None) == 5
    now[0] += 1
    assert [shares and shares[-1] for shares in (slow.shares(1, 0, 0),) * 2] == [5, 5]
    assert (slow.shares(1, 9, 9) or ())[-1:] == (0,)
    slow.set_threshold(0)
    assert slow.threshold_ns > 10**18
