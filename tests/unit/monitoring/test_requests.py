"""What the web layer counts adds up, alone and under the application."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

import pytest

from volcache.cache import FileCache
from volcache.http.app import App
from volcache.monitoring.requests import SAMPLE_ONE_IN, RequestStats
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_fast_hits_are_part_of_requests_hits_and_latencies() -> None:
    """The hot path writes one histogram; readers see everything."""
    stats = RequestStats()
    stats.fast.observe(0, 2000)
    stats.note("GET", "200 OK", 0, 3000)
    stats.disk_hits += 1
    stats.note("GET", "404 Not Found", 0, 3000)
    stats.note("PUT", "200 OK", 0, 9000)
    assert stats.requests() == {("GET", 200): 2, ("GET", 404): 1, ("PUT", 200): 1}
    assert stats.hits() == {"MEMC": 0, "DISK": 2}
    assert stats.latencies()["GET"].count == 3
    assert stats.latencies()["PUT"].total_ns == 9000


def test_methods_nobody_knows_share_one_name() -> None:
    """A client that invents methods must not fill the memory."""
    stats = RequestStats()
    for number in range(100):
        stats.note(f"X{number}", "405 Method Not Allowed", 0, 10)
    assert stats.requests() == {("OTHER", 405): 100}


def test_a_hot_key_stays_among_the_hottest_while_the_table_overflows() -> None:
    """And the table stays bounded."""
    stats = RequestStats()
    for number in range(50_000):
        stats.sample(b"key-%d" % number)
        if number % 10 == 0:
            stats.sample(b"hot")
    assert stats.hottest(1)[0][0] == b"hot"
    assert stats.hottest(1)[0][1] % SAMPLE_ONE_IN == 0
    assert len(stats.sampled) <= 2048


def test_a_table_of_keys_all_as_hot_is_cut_as_well() -> None:
    """Halving alone would keep them all."""
    stats = RequestStats()
    for _ in range(4):
        for number in range(2048):
            stats.sample(b"key-%d" % number)
    for number in range(10):
        stats.sample(b"new-%d" % number)
    assert len(stats.sampled) <= 2048


# --- Under the application ---------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Open a store of two small volumes."""
    store = Store.open(str(tmp_path / "mp"), volume_size=65_536, volume_num=2)
    yield store
    store.close()


@pytest.fixture
def app(store: Store) -> App:
    """Make an application over the store."""
    return App(FileCache(store), key_size_max=100, value_size_max=60_000)


def ask(app: App, method: str, path: str, body: bytes = b"", **headers: str) -> str:
    """Send one request and return the status."""
    seen: list[str] = []
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, **headers}
    if method == "PUT":
        environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    app(environ, lambda status, *_: seen.append(status))  # type: ignore[arg-type]
    (status,) = seen
    return status[:3]


def test_sums_agree_with_what_was_asked(app: App, store: Store) -> None:
    """Requests, durations, hits and misses tell the same story."""
    for number in range(5):
        ask(app, "PUT", f"/k{number}", b"x" * 100)
    for _ in range(3):
        ask(app, "GET", "/k0")
    ask(app, "GET", "/none")
    ask(app, "HEAD", "/k1")
    ask(app, "HEAD", "/none")
    ask(app, "GET", "/k2", HTTP_RANGE="bytes=0-9")
    ask(app, "DELETE", "/k3")
    ask(app, "BREW", "/k3")
    ask(app, "GET", "/\x01")
    stats = app.stats
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
    assert store.stats.absent_reads == 3  # The key that was no key is one of them.
    assert store.stats.writes.count == 6
    assert store.stats.reads.count >= 5


def test_key_of_a_reclaimed_volume_counts_as_evicted(app: App, store: Store) -> None:
    """While the index still has it."""
    ask(app, "PUT", "/old", b"x")
    before = store.stats.evicted_records
    while store.stats.evicted_records == before:
        ask(app, "PUT", "/new", b"x" * 30_000)
    ask(app, "GET", "/old")
    assert store.stats.evicted_reads + store.stats.absent_reads == 1


def test_hot_keys_are_found_by_samples(app: App) -> None:
    """One in 64 is enough for what is hot."""
    ask(app, "PUT", "/hot", b"x")
    for _ in range(3000):
        ask(app, "GET", "/hot")
    assert app.stats.hottest(1)[0][0] == b"hot"


def test_slow_request_tells_where_its_time_went(store: Store) -> None:
    """A disk that takes its time is named as what was waited for."""
    told: list[tuple[str, str, int, int, int, int]] = []
    app = App(
        FileCache(store),
        key_size_max=100,
        value_size_max=60_000,
        slow_seconds=0.02,
        on_slow=lambda *slow: told.append(slow),
    )
    ask(app, "PUT", "/k", b"x")
    ask(app, "GET", "/k")
    told.clear()  # Of a machine that is busy.
    pread = store._pread

    def slow_pread(fd: int, length: int, offset: int) -> bytes:
        time.sleep(0.03)
        return pread(fd, length, offset)

    store._pread = slow_pread
    ask(app, "GET", "/k")
    ask(app, "HEAD", "/k")
    ask(app, "GET", "/k", HTTP_RANGE="0")
    assert len(told) == 3
    for method, path, status, total, disk, memcached in told:
        assert (path, status, memcached) == ("/k", 200, 0)
        assert method in {"GET", "HEAD"}
        assert 30_000_000 <= disk <= total
