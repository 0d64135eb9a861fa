"""Counters of requests, alone and in the application."""

from __future__ import annotations

import sys
import threading

from support.stores import FakeClock
from support.wsgi_client import Client
from volcache.cache import Cache
from volcache.monitoring.requests import RequestStats
from volcache.store import Store


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


# --- In the application ------------------------------------------------------------


def test_counters_agree_with_the_requests(store: Store) -> None:
    """Requests, durations, hits, misses and bytes."""
    client = Client(Cache(store), clock=FakeClock())
    for number in range(5):
        client.put(f"/k{number}", b"x" * 100)
    for _ in range(3):
        client.ask("GET", "/k0")
    client.ask("GET", "/none")
    client.ask("HEAD", "/k1")
    client.ask("HEAD", "/none")
    client.ask("GET", "/k2", HTTP_RANGE="bytes=0-9")
    client.ask("DELETE", "/k3")
    client.ask("BREW", "/k3")
    client.ask("GET", "/\x01")
    stats = client.app.stats
    assert stats.requests() == {
        ("PUT", 200): 5,
        ("GET", 200): 3,
        ("GET", 206): 1,
        ("GET", 404): 1,
        ("GET", 400): 1,
        ("HEAD", 200): 1,
        ("HEAD", 404): 1,
        ("DELETE", 200): 1,
        ("OTHER", 405): 1,
    }
    assert sum(stats.requests().values()) == sum(
        histogram.count for histogram in stats.latencies().values()
    )
    assert stats.hits() == {"MEMC": 0, "DISK": 5}
    assert stats.misses == 2
    assert stats.bytes_in == 500
    assert stats.bytes_out == 310
    assert store.stats.absent_reads == 2  # A bad key is not looked up.
    assert store.stats.writes.count == 6
    assert store.stats.reads.count >= 5
