"""The JSON of `/-/stats`."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from support.instances import operator_of, watch, watch_tiered
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    fill_volume,
    open_store,
    reclaim_some,
    reopen,
)
from volcache import __version__
from volcache.cache import HotState
from volcache.histogram import Histogram
from volcache.monitoring.metrics import METRICS
from volcache.monitoring.requests import SAMPLE_ONE_IN, RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.monitoring.stats_json import encode_stats, read_series
from volcache.settings import DEFAULTS, SETTINGS, visible_settings
from volcache.store import Store
from volcache.store.index import Disposition


def ask(monitor: Monitor) -> dict[str, Any]:
    """Return what /-/stats answers."""
    answer = operator_of(monitor).ask("GET", "/-/stats")
    assert answer.status == "200 OK"
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.body.isascii()
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_uptime_includes_the_time_to_open_the_store(store: Store) -> None:
    """The process started before the store was opened."""
    now = 1_795_270_826
    found = ask(watch(store, clock=lambda: now * 10**9))
    assert found["version"] == __version__
    assert (found["now"], found["started"]) == (now, now - 1.5)
    assert found["boot_seconds"] == 1.5 <= found["uptime_seconds"]
    assert found["ready"] is True


def test_settings_are_all_those_in_effect_without_secrets(store: Store) -> None:
    """Of a token, whether it is set; a reload replaces them."""
    monitor = watch(
        store, settings=visible_settings(replace(DEFAULTS, read_token="x" * 9, port=7))
    )
    found = ask(monitor)["settings"]
    assert sorted(found) == sorted(setting.name for setting in SETTINGS)
    assert (found["read_token"], found["write_token"]) == (True, False)
    assert (found["port"], found["cors_origins"]) == (7, [])
    monitor.settings = visible_settings(replace(DEFAULTS, log_level="debug"))
    found = ask(monitor)["settings"]
    assert (found["log_level"], found["read_token"]) == ("debug", False)


def test_statistics_of_the_store_agree_with_the_store(fifo_store: Store) -> None:
    """Sizes add up, volumes are in order; for counters see test_metrics.py."""
    store = fifo_store
    for turn in range(VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
    found = ask(watch(store))["store"]

    assert (found["mount_point"], found["sync_mode"]) == ("data", "none")
    assert found["keys"] == store.count
    sizes = [found[f"{kind}_bytes"] for kind in ("live", "dead", "free")]
    assert sum(sizes) == VOLUME_NUM * VOLUME_SIZE
    assert found["volume_num"] * found["volume_size"] == VOLUME_NUM * VOLUME_SIZE
    for kind in ("live_bytes", "dead_bytes"):
        assert sum(volume[kind] for volume in found["volumes"]) == found[kind] > 0
    assert sum(volume["live_records"] for volume in found["volumes"]) == store.count
    usage = store.usage()
    assert found["active"] == {
        "id": 0,
        "sequence": VOLUME_NUM + 1,
        "write_position": usage.active_end,
        "began": FakeClock().now_ms / 1000,
    }
    assert found["oldest_began"] == FakeClock().now_ms / 1000
    assert found["states"] == {"active": 1, "sealed": 3, "reclaiming": 0, "empty": 0}
    assert (found["eviction"], found["next_reclaimed"]) == ("fifo", 1)
    assert [volume["id"] for volume in found["volumes"]] == [0, 1, 2, 3]
    assert found["volumes"][1] == {
        "id": 1,
        "sequence": 2,
        "state": "sealed",
        "ring": "main",
        "size": VOLUME_SIZE,
        "used_bytes": usage.volumes[1].used,
        "live_records": usage.volumes[1].live_records,
        "live_bytes": usage.volumes[1].live,
        "dead_bytes": usage.volumes[1].dead,
        "began": FakeClock().now_ms / 1000,
    }


def test_last_error_of_each_kind_has_its_time_and_text(store: Store) -> None:
    """Null for kinds that have not happened."""
    store.stats.clock = lambda: 1_795_270_826_500_000_000
    store.stats.count_sync_error(OSError(errno.EIO, "Input/output error"))
    found = ask(watch(store))["store"]
    kinds = ("read", "write", "sync", "index", "damaged")
    nothing: dict[str, Any] = dict.fromkeys(kinds)
    assert found["last_errors"] == {**nothing, "sync": 1_795_270_826.5}
    text = "[Errno 5] Input/output error"
    assert found["last_error_texts"] == {**nothing, "sync": text}


def test_rings_are_null_or_have_each_counter(store: Store, fifo_store: Store) -> None:
    """With the volume that is being reclaimed, which has a state of its own."""
    assert ask(watch(fifo_store))["rings"] is None

    reclaim_some(store)
    disposition = store.stats.disposition = Disposition(*range(21, 30))
    stats = ask(watch(store))
    found, shown = stats["rings"], stats["store"]
    eviction = store.usage().eviction
    assert [ring["ring"] for ring in found["by"]] == ["main", "probation"]
    volumes = [volume for volume in shown["volumes"] if volume["ring"] == "probation"]
    assert found["by"][1] == {
        "ring": "probation",
        "volumes": len(volumes),
        "used_bytes": sum(volume["used_bytes"] for volume in volumes),
        "live_bytes": sum(volume["live_bytes"] for volume in volumes),
        "live_records": sum(volume["live_records"] for volume in volumes),
        "began": FakeClock().now_ms / 1000,
    }
    dropped = {
        "limited": disposition.unpaid,
        "skipped": disposition.left,
        "unread": disposition.unused,
    }
    same = ("damaged", "expired", "unreadable", "purged")
    assert found["dropped"] == dropped | {
        name: getattr(disposition, name) for name in same
    }
    copied = disposition.copied_bytes / eviction.put_bytes
    assert found["write_amplification"] == pytest.approx(1 + copied)
    assert 0 < found["reclaim"]["done_ratio"] <= 1
    expected = {
        "reinserted_records": disposition.copied,
        "reinserted_bytes": disposition.copied_bytes,
        "reinsertable_bytes": int(eviction.tokens),
        "probation_limit_bytes": eviction.probation_max,
        "ghost_hits": eviction.ghost_hits,
        "older_hits": eviction.older_hits,
        "gained_hits": None,
        "gained_hits_ratio": None,
    }
    assert expected.items() <= found.items()
    assert found["reclaim"]["volume"] == eviction.reclaiming >= 0
    assert shown["next_reclaimed"] == eviction.reclaiming
    states = [v["id"] for v in shown["volumes"] if v["state"] == "reclaiming"]
    assert states == [eviction.reclaiming]


def test_gained_hits_are_a_share_of_gets_without_heads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADs are not reads of the policy."""
    requests = RequestStats()
    for method in ("GET", "GET", "GET", "GET", "HEAD"):
        requests.answers[method, "200 OK", "DISK"].observe(0, 1000)
    monitor = watch(store, requests)
    snapshot = monitor.snapshot()
    eviction = replace(snapshot.usage.eviction, gained_hits=-1)
    gained = replace(snapshot, usage=replace(snapshot.usage, eviction=eviction))
    monkeypatch.setattr(monitor, "snapshot", lambda **_: gained)
    rings = ask(monitor)["rings"]
    assert (rings["gained_hits"], rings["gained_hits_ratio"]) == (-1, -0.25)


def test_rings_are_shown_after_a_change_to_fifo_until_probation_is_empty(
    tmp_path: Path,
) -> None:
    """Its volumes are reclaimed first."""
    store = open_store(tmp_path)
    reclaim_some(store)
    store = reopen(store, tmp_path, eviction="fifo")
    found = ask(watch(store))
    assert found["store"]["eviction"] == "fifo"
    (ring,) = [ring for ring in found["rings"]["by"] if ring["ring"] == "probation"]
    assert ring["volumes"] > 0
    following = found["store"]["volumes"][found["store"]["next_reclaimed"]]
    assert following["ring"] == "probation"
    for turn in range(2 * VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
    assert ask(watch(store))["rings"] is None
    store.close()


def test_requests_are_shown_by_method_and_status(store: Store) -> None:
    """With bytes, durations and the hottest keys."""
    requests = RequestStats(bytes_in=10, bytes_out=20)
    requests.answers["GET", "200 OK", "DISK"].observe(0, 100_000)
    requests.answers["GET", "200 OK", "MEMC"].observe(0, 3_000)
    requests.answers["GET", "404 Not Found", "MISS"].observe(0, 3_000)
    for number in range(100):  # A client that invents methods uses up no memory.
        requests.answers[f"X{number}", "405 Method Not Allowed", ""].observe(0, 3_000)
    requests.sample(b"a b/\xc3\xa9<script>\n")
    found = ask(watch(store, requests))

    assert found["requests"]["by"] == [
        {"method": "GET", "status": 200, "count": 2},
        {"method": "GET", "status": 404, "count": 1},
        {"method": "OTHER", "status": 405, "count": 100},
    ]
    shown = {"total": 103, "hits": {"MEMC": 1, "DISK": 1}, "missed": 1}
    shown |= {"bytes_in": 10, "bytes_out": 20}
    assert shown.items() <= found["requests"].items()
    latency = found["latency"]
    verbs = {"GET": 3, "HEAD": 0, "PUT": 0, "DELETE": 0, "OTHER": 100}
    assert {verb: sum(latency[verb]["counts"]) for verb in verbs} == verbs
    assert latency["GET"]["counts"][17] == 1
    assert latency["GET"]["sum_seconds"] == pytest.approx(106e-6)
    key = "a%20b/%C3%A9<script>%0A"
    assert found["hottest"] == [{"key": key, "reads": SAMPLE_ONE_IN}]


def test_hot_tier_is_null_or_has_each_server_and_counter(store: Store) -> None:
    """Servers by address, failures that have not occurred as 0."""
    found = ask(watch(store))
    assert found["hot"] is found["memcache"] is None
    assert sum(found["latency"]["memcached"]["counts"]) == 0

    monitor = watch_tiered(store)
    hot = monitor.cache.hot_state()
    assert isinstance(hot, HotState)
    assert ask(monitor)["hot"] == {
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
        "state_changes": 9,
        "failures": {
            **dict.fromkeys(("closed", "other", "protocol", "refused"), 0),
            "timeout": 1,
        },
    }


def test_read_series_of_encoded_statistics_returns_each_metric(
    store: Store, fifo_store: Store
) -> None:
    """Each metric, with all its series and no other; histograms as such."""
    for make, one in product((watch, watch_tiered), (store, fifo_store)):
        monitor = make(one)
        one.stats.scrub.rate = int(make is watch_tiered)
        for status in ("200 OK", "404 Not Found"):
            monitor.requests.answers["GET", status, ""].observe(0, 3_000)
        monitor.requests.sample(b"key")
        fill_volume(one)
        snapshot = monitor.snapshot()
        stats = json.loads(encode_stats(snapshot))
        for metric in METRICS:
            if metric.path:
                expected = {
                    labels: Histogram(value.counts, value.total_ns)  # without `long`
                    if isinstance(value, Histogram)
                    else value
                    for labels, value in metric.read(snapshot).items()
                }
                assert read_series(stats, metric) == expected, metric.path


def keys_of(value: Any) -> Any:
    """Return an object with its keys alone, lists with those of their first object."""
    if isinstance(value, dict):
        return {key: keys_of(found) for key, found in value.items()}
    return [keys_of(found) for found in value[:1]] if isinstance(value, list) else None


def test_the_list_of_volumes_is_left_out_on_request(store: Store) -> None:
    """All else is there; other parameters, as of a proxy, are ignored."""
    client = operator_of(watch(store, clock=lambda: 10**18))

    def ask_with(query: str) -> dict[str, Any]:
        answer = client.ask("GET", "/-/stats", QUERY_STRING=query)
        assert answer.status == "200 OK"
        found: dict[str, Any] = json.loads(answer.body)
        return found

    client.ask("GET", "/-/healthy")  # So that there was a request each time.
    whole = ask_with("")
    assert keys_of(ask_with("x=%ff&volumes=1")) == keys_of(whole)
    empty = whole["store"]["volumes"][1]  # Without a ring; not started in 1970.
    assert (empty["state"], empty["ring"], empty["began"]) == ("empty", None, None)
    short = ask_with("volumes=0&x")
    assert len(whole["store"].pop("volumes")) == VOLUME_NUM
    assert keys_of(short) == keys_of(whole)
    for found in (short, whole):  # Changes meanwhile.
        del found["store"]["disk"]["free_bytes"]
    assert short["store"] == whole["store"]
