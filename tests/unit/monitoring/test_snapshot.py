"""What an instance says of itself under /-/stats and /-/ready."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from support.fake_cache import FakeCache
from support.instances import FakeTier, operator_of, watch
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    fill_volume,
)
from support.wsgi_client import Client, assert_error
from volcache import __version__
from volcache.cache import FileCache, HotState, TieredCache
from volcache.monitoring.requests import SAMPLE_ONE_IN, RequestStats
from volcache.monitoring.snapshot import Status, process_figures

if TYPE_CHECKING:
    from volcache.hot.promotion import MissCounters
    from volcache.hot.tier import HotTier
    from volcache.store import Store


OPENAPI: Final = Path(__file__).parents[3] / "docs" / "openapi.yaml"


def ask(cache: FileCache, requests: RequestStats, **more: Any) -> dict[str, Any]:
    """Return what /-/stats answers."""
    status = Status(
        cache,
        requests,
        mount_point="data",
        sync_mode="none",
        boot_seconds=1.5,
        **more,
    )
    answer = Client(FakeCache(), status=status).ask("GET", "/-/stats")
    assert answer.status == "200 OK"
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.body.isascii()
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_an_instance_tells_its_times(store: Store) -> None:
    """The time to open the store is part of the time it is up."""
    now = 1_795_270_826
    found = ask(FileCache(store), RequestStats(), clock=lambda: now * 10**9)
    assert found["version"] == __version__
    assert (found["now"], found["started"]) == (now, now - 1.5)
    assert found["boot_seconds"] == 1.5 <= found["uptime_seconds"]
    assert found["ready"] is True


def test_the_store_is_shown_as_it_is(store: Store) -> None:
    """Sizes add up, slots are in order, counters are the store's."""
    for turn in range(VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
    store.get(b"never stored")
    store.stats.sync_errors = 7
    found = ask(FileCache(store), RequestStats())["store"]

    assert (found["mount_point"], found["sync_mode"]) == ("data", "none")
    assert found["keys"] == store.count
    sizes = [found[f"{kind}_bytes"] for kind in ("live", "dead", "free")]
    assert sum(sizes) == VOLUME_NUM * VOLUME_SIZE
    assert found["volume_num"] * found["volume_size"] == VOLUME_NUM * VOLUME_SIZE
    usage = store.usage()
    assert found["head"] == {
        "id": 0,
        "generation": 1,
        "write_position": usage.active_end,
    }
    assert found["rotations"] == VOLUME_NUM
    assert found["evicted_records"] == store.stats.evicted_records > 0
    assert found["evicted_bytes"] == store.stats.evicted_bytes > 0
    assert found["sync_errors"] == 7
    assert found["recovery"] == {
        **dict.fromkeys(("entries", "scanned", "torn", "damaged"), 0),
        **dict.fromkeys(("rebuilt", "dropped", "stale"), 0),
        "meta_lost": False,
    }
    assert [volume["id"] for volume in found["volumes"]] == [0, 1, 2, 3]
    assert found["volumes"][1] == {
        "id": 1,
        "generation": 0,
        "state": "sealed",
        "size": VOLUME_SIZE,
        "used_bytes": usage.volumes[1].used,
        "live_records": usage.volumes[1].live_records,
        "live_bytes": usage.volumes[1].live,
        "dead_bytes": usage.volumes[1].dead,
        "began": FakeClock().now_ms / 1000,
    }


def test_an_empty_slot_has_not_begun(store: Store) -> None:
    """JSON's null, not the year 1970."""
    volumes = ask(FileCache(store), RequestStats())["store"]["volumes"]
    assert (volumes[1]["state"], volumes[1]["began"]) == ("empty", None)


def test_requests_are_shown_as_counted(store: Store) -> None:
    """By verb and status; the plain GETs are among the others."""
    requests = RequestStats(
        memc_hits=2, disk_hits=1, misses=1, bytes_in=10, bytes_out=20
    )
    requests.fast.observe(0, 100_000)
    requests.note("GET", "200 OK", 0, 3_000)
    requests.note("GET", "404 Not Found", 0, 3_000)
    requests.note("BREW", "405 Method Not Allowed", 0, 3_000)
    requests.sample(b"a b/\xc3\xa9<script>\n")
    found = ask(FileCache(store), requests)

    assert found["requests"]["by"] == [
        {"method": "GET", "status": 200, "count": 2},
        {"method": "GET", "status": 404, "count": 1},
        {"method": "OTHER", "status": 405, "count": 1},
    ]
    assert found["requests"]["total"] == 4
    assert found["requests"]["hits"] == {"MEMC": 2, "DISK": 2}
    assert found["requests"]["missed"] == 1
    assert (found["requests"]["bytes_in"], found["requests"]["bytes_out"]) == (10, 20)
    latency = found["latency"]
    verbs = ("GET", "HEAD", "PUT", "DELETE", "OTHER")
    assert sum(sum(latency[verb]["counts"]) for verb in verbs) == 4
    assert latency["GET"]["counts"][17] == 1
    assert latency["GET"]["sum_seconds"] == pytest.approx(106e-6)
    [hottest] = found["hottest"]
    assert hottest["reads"] == SAMPLE_ONE_IN
    assert " " not in hottest["key"]
    assert "\n" not in hottest["key"]


def test_misses_are_shown_by_their_reasons(store: Store) -> None:
    """Each counter of the store has its place."""
    stats = store.stats
    stats.absent_reads, stats.expired_reads, stats.evicted_reads = 1, 2, 3
    stats.damaged_records, stats.read_errors = 4, 5
    assert ask(FileCache(store), RequestStats())["requests"]["misses"] == {
        "absent": 1,
        "expired": 2,
        "evicted": 3,
        "damaged": 4,
        "unreadable": 5,
    }


def test_what_the_instance_waited_for_is_shown(store: Store) -> None:
    """Each kind of duration is that of the store or of the tier."""
    store.stats.reads.observe(0, 1)
    store.stats.writes.observe(0, 2)
    fill_volume(store)
    store.sync()
    tier = FakeTier()
    counters = cast("MissCounters", None)
    cache = TieredCache(store, cast("HotTier", tier), counters)
    latency = ask(cache, RequestStats())["latency"]
    stats = store.stats
    expected = {
        "disk_read": stats.reads,
        "disk_write": stats.writes,
        "rotation": stats.rotating,
        "sync": stats.syncs,
        "memcached": tier.stats.calls,
    }
    for name, histogram in expected.items():
        assert latency[name]["counts"] == histogram.counts
        assert sum(histogram.counts) > 0


def test_the_hot_tier_is_shown_if_there_is_one(store: Store) -> None:
    """Null without one; else each server by its address."""
    assert ask(FileCache(store), RequestStats())["hot"] is None

    counters = cast("MissCounters", None)
    cache = TieredCache(store, cast("HotTier", FakeTier()), counters)
    assert cache.hot_state() == HotState(cache.hot.stats, cache.hot.up, 0)
    assert ask(cache, RequestStats())["hot"] == {
        "servers": [
            {"address": "127.0.0.1:11211", "up": True},
            {"address": "/run/memcached", "up": False},
        ],
        "promoted_keys": 0,
        "gets": 5,
        "hits": 3,
        "stale": 1,
        "promotions": 2,
        "refused": 6,
        "invalidations": 7,
        "flushes": 8,
        "states": 9,
        "failures": {"timeout": 1},
    }


def test_the_process_is_shown_also_when_it_is_out_of_descriptors(
    tmp_path: Path,
) -> None:
    """Then /proc cannot be read, and the most it may have and has had stand in."""
    figures = process_figures()
    assert figures.rss_bytes > 1 << 20
    assert figures.open_fds >= 3
    assert figures.threads >= 1
    without = process_figures(tmp_path / "unreadable")
    assert without.rss_bytes > 1 << 20
    assert without.open_fds >= figures.open_fds
    assert without.pid == figures.pid


@pytest.mark.parametrize(
    ("is_draining", "read_errors", "words"),
    [(False, 0, ""), (True, 0, "told to end"), (False, 3, "reads in a row failed")],
)
def test_ready_says_in_words_why_not(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_draining: bool,
    read_errors: int,
    words: str,
) -> None:
    """The end of the process and a bad disk are told apart; healthy it is in any case."""
    store.stats.read_errors_in_row = read_errors
    monkeypatch.setattr(store._log, "probe", lambda _reads: False)
    client = operator_of(watch(store, is_draining=lambda: is_draining))
    answer = client.ask("GET", "/-/ready")
    assert_error(answer, 503 if words else 200, words or "ready")
    assert json.loads(client.ask("GET", "/-/stats").body)["ready"] is not bool(words)
    assert client.ask("GET", "/-/healthy").status == "200 OK"


def test_what_is_not_there_names_all_that_is(store: Store) -> None:
    """The page among it, and each path it names is answered."""
    client = operator_of(watch(store))
    answer = client.ask("GET", "/-/metric")
    assert_error(answer, 404, "nothing here")
    named = re.findall(r"/-/\w*", answer.body.decode())
    described = re.findall(r"^  (/-/\w*):$", OPENAPI.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(described)
    assert len(named) == len(set(named)) == 6
    for path in set(named) - {"/-/flush"}:
        assert client.ask("GET", path).status == "200 OK"


def test_stats_are_for_reading(store: Store) -> None:
    """HEAD tells the length, OPTIONS what is allowed, a PUT is refused."""
    client = operator_of(watch(store))
    head = client.ask("HEAD", "/-/stats")
    assert (head.status, head.body) == ("200 OK", b"")
    assert int(head.headers["Content-Length"]) > 1000
    assert client.ask("OPTIONS", "/-/stats").headers["Allow"] == "GET, HEAD, OPTIONS"
    assert_error(client.put("/-/stats", b"x"), 405, "GET, HEAD")
    assert_error(client.ask("GET", "/-/x"), 404, "/-/stats")
