"""The hottest keys; the counters are in tests/integration/test_counters.py."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from volcache.monitoring.requests import RequestStats


def test_table_of_equally_hot_keys_keeps_its_limit() -> None:
    """Halving the counts alone would keep them all."""
    stats = RequestStats()
    for _ in range(4):
        for number in range(2048):
            stats.sample(b"key-%d" % number)
    for number in range(10):
        stats.sample(b"new-%d" % number)
    assert len(stats.sampled) <= 2048


def test_keys_may_be_sampled_by_several_threads() -> None:
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
