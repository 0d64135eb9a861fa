"""The hottest keys; the counters are in tests/integration/test_counters.py."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from volcache.monitoring.requests import SAMPLE_ONE_IN, RequestStats, is_sample


def test_table_of_equally_hot_keys_keeps_its_limit() -> None:
    """Halving the counts alone would keep them all."""
    stats = RequestStats()
    for _ in range(4):
        for number in range(2048):
            stats.sample(b"key-%d" % number)
    for number in range(10):
        stats.sample(b"new-%d" % number)
    assert len(stats.sampled) <= 2048


def test_sample_by_several_threads_keeps_its_limit() -> None:
    """And read meanwhile: the table, which has a limit, is halved by one at a time."""
    stats = RequestStats()

    def sample(first: int) -> None:
        for number in range(first, first + 10_000):
            stats.sample(b"key-%d" % number)
            if number % 50 == 0:
                stats.sample(b"hot")
                stats.hottest(10)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(sample, (0, 100_000, 200_000)))
    finally:
        sys.setswitchinterval(interval)
    assert stats.hottest(1)[0][0] == b"hot"
    assert len(stats.sampled) <= 2048


@pytest.mark.parametrize("step_ns", [1, 40, 64, 1000])
def test_sample_times_in_steps_of_the_clock_one_in_64(step_ns: int) -> None:
    """Whatever the resolution of the clock is."""
    times = range(10**15, 10**15 + 100_000 * step_ns, step_ns)
    found = sum(map(is_sample, times))
    assert found == pytest.approx(len(times) / SAMPLE_ONE_IN, rel=0.1)
