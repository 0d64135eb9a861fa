"""The hottest keys; the counters are in tests/integration/test_counters.py."""

from __future__ import annotations

import sys
import threading

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
    failures: list[Exception] = []

    def sample(first: int) -> None:
        try:
            for number in range(first, first + 10_000):
                stats.sample(b"key-%d" % number)
                if number % 50 == 0:
                    stats.sample(b"hot")
                    stats.hottest(10)
        except Exception as error:  # noqa: BLE001 - Fails the test below.
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=sample, args=[n * 100_000]) for n in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert stats.hottest(1)[0][0] == b"hot"
    assert len(stats.sampled) <= 2048
