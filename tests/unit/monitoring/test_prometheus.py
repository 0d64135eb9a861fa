"""The metrics in the formats of Prometheus, at `/-/metrics`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.registry import Collector, CollectorRegistry

from support.instances import operator_of, watch, watch_tiered
from support.samples import samples_of, total
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    fill_volume,
    reclaim_some,
)
from volcache import __version__
from volcache.histogram import Histogram
from volcache.monitoring.metrics import SECTIONS
from volcache.monitoring.prometheus import BOUND_BITS, Metrics
from volcache.monitoring.requests import RequestStats
from volcache.store.stats import STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.monitoring.metrics import Metric
    from volcache.monitoring.snapshot import Monitor, Snapshot
    from volcache.store import Store

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"


def scrape(monitor: Monitor, *, volumes: bool = False) -> dict[str, float]:
    """Return all samples, named as Prometheus shows them."""
    client = operator_of(monitor, metrics_volumes=volumes)
    answer = client.ask("GET", "/-/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == ("200 OK", PLAIN)
    return samples_of(answer.body.decode())


def test_requests_hits_and_misses_add_up(store: Store) -> None:
    """Each request has one status and one duration; each read is a hit or a miss."""
    requests = RequestStats()
    for method, status, source in (
        *[("GET", 200, "DISK")] * 4,
        *(("GET", 206, "MEMC"), ("HEAD", 200, "MEMC")),
        *(("GET", 404, "MISS"), ("HEAD", 404, "MISS")),
        *(("PUT", 507, ""), ("BREW", 405, "")),
    ):
        requests.answers[method, f"{status} X", source].observe(0, 3_000)
    found = scrape(watch(store, requests))
    assert found["volcache_requests_total{method=GET,status=200}"] == 4
    assert found["volcache_requests_total{method=OTHER,status=405}"] == 1
    asked = total(found, "volcache_requests_total")
    assert asked == 10 == total(found, "volcache_request_duration_seconds_count")
    assert found["volcache_hits_total{source=DISK}"] == 4
    assert total(found, "volcache_hits_total") + found["volcache_misses_total"] == 8


def test_buckets_are_cumulative(store: Store) -> None:
    """A duration above the last bound is in `+Inf` and in the count."""
    durations = [0, 5_000, 5_000, 1_000_000, 10**9, 100 * 10**9]
    for ns in durations:
        store.stats.reads.observe(0, ns)
    found = scrape(watch(store))
    name = "volcache_disk_read_duration_seconds"
    bounds = {
        float(key.partition("le=")[2].rstrip("}")): value
        for key, value in found.items()
        if key.startswith(f"{name}_bucket")
    }
    for bound, count in bounds.items():
        assert count == sum(ns / 1e9 < bound for ns in durations)
    assert list(bounds) == sorted(bounds)
    assert min(bounds) < 10e-6
    assert 10 < sorted(bounds)[-2] < 100
    assert found[f"{name}_count"] == len(durations) == bounds[float("inf")]
    assert found[f"{name}_sum"] == pytest.approx(sum(durations) / 1e9)


def test_volumes_add_up_to_the_store(fifo_store: Store) -> None:
    """Live, dead and free bytes add up to the capacity."""
    store = fifo_store
    for turn in range(VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
    found = scrape(watch(store), volumes=True)
    for kind in ("live_bytes", "dead_bytes"):
        assert total(found, f"volcache_volume_{kind}") == found[f"volcache_{kind}"] > 0
    assert total(found, "volcache_volume_live_records") == found["volcache_keys"]
    sizes = [found[f"volcache_{kind}_bytes"] for kind in ("live", "dead", "free")]
    assert sum(sizes) == found["volcache_capacity_bytes"] == VOLUME_NUM * VOLUME_SIZE
    sequences = [
        found[f"volcache_volume_sequence{{volume={volume}}}"]
        for volume in range(VOLUME_NUM)
    ]
    assert sequences == [VOLUME_NUM + 1, *range(2, VOLUME_NUM + 1)]
    rotations = found["volcache_rotations_total"]
    assert rotations == found["volcache_rotation_duration_seconds_count"] == VOLUME_NUM


def test_volumes_have_a_summary_in_place_of_series(store: Store) -> None:
    """Unless the setting asks for the series."""
    clock = FakeClock()
    reclaim_some(store)
    found = scrape(watch(store))
    assert not [name for name in found if name.startswith("volcache_volume_")]
    usage = store.usage()
    for state in STATES:
        number = sum(volume.state == state for volume in usage.volumes)
        assert found[f"volcache_volumes{{state={state}}}"] == number
    began = clock.now_ms / 1000
    assert found["volcache_oldest_volume_began_timestamp_seconds"] == began
    assert found["volcache_active_volume_began_timestamp_seconds"] == began
    series = set(scrape(watch(store), volumes=True)) - set(found)
    assert len(series) > VOLUME_NUM
    assert all(name.startswith("volcache_volume_") for name in series)


def test_empty_volume_has_no_start_time(store: Store) -> None:
    """It has no series, rather than one of the year 1970."""
    found = scrape(watch(store), volumes=True)
    assert "volcache_volume_began_timestamp_seconds{volume=0}" in found
    assert "volcache_volume_began_timestamp_seconds{volume=1}" not in found


def test_metrics_of_the_rings_agree_with_the_store(store: Store) -> None:
    """Rings add up to the volumes; records are reinserted, or dropped with a reason."""
    reclaim_some(store)
    store.stats.fate = store.stats.fate._replace(unpaid=11, left=12, damaged=13)
    requests = RequestStats()
    requests.answers["GET", "404 Not Found", "MISS"].observe(0, 1000)
    found = scrape(watch(store, requests))
    usage = store.usage()
    eviction = usage.eviction
    assert found["volcache_eviction_info{policy=frequency}"] == 1

    for ring in ("main", "probation"):
        volumes = [v for v in usage.volumes if v.ring == ring]
        shown = {
            "volumes": len(volumes),
            "used_bytes": sum(v.used for v in volumes),
            "live_bytes": sum(v.live for v in volumes),
            "live_records": sum(v.live_records for v in volumes),
            "began_timestamp_seconds": min(v.started_ms for v in volumes) / 1000,
        }
        for kind, value in shown.items():
            assert found[f"volcache_ring_{kind}{{ring={ring}}}"] == value > 0
    assert found["volcache_probation_limit_bytes"] == eviction.probation_max > 0
    assert found["volcache_put_bytes_total"] == eviction.put_bytes > 0
    copied = found["volcache_reinserted_bytes_total"]
    assert copied == eviction.reinserted_bytes > 0
    assert found["volcache_reinserted_records_total"] == eviction.fate.copied > 0
    amplification = found["volcache_write_amplification"]
    assert amplification == pytest.approx(1 + copied / eviction.put_bytes)
    reasons = ("limited", "expired", "skipped", "damaged", "unreadable")
    dropped = "volcache_dropped_records_total{{reason={}}}".format
    assert [found[dropped(reason)] for reason in reasons] == [11, 0, 12, 13, 0]
    assert found[dropped("unread")] == eviction.fate.unused > 0
    assert found["volcache_reinsertable_bytes"] == int(eviction.tokens) > 0
    assert found["volcache_reclaimed_volume"] == eviction.reclaiming >= 0
    assert 0 < found["volcache_reclaimed_ratio"] <= 1
    assert found["volcache_ghost_hits_total"] == eviction.ghost_hits
    assert found["volcache_older_hits_total"] == eviction.older_hits


def test_gain_is_a_share_of_gets_and_absent_until_it_is_known(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEADs are not reads of the policy."""
    requests = RequestStats()
    for method in ("GET", "GET", "GET", "GET", "HEAD"):
        requests.answers[method, "200 OK", "DISK"].observe(0, 1000)
    monitor = watch(store, requests)
    assert "volcache_gained_hits" not in "".join(scrape(monitor))
    snapshot = monitor.snapshot()
    eviction = replace(snapshot.usage.eviction, gained_hits=-1)
    usage = replace(snapshot.usage, eviction=eviction)
    gained = replace(snapshot, usage=usage)
    monkeypatch.setattr(monitor, "snapshot", lambda **_: gained)
    found = scrape(monitor)
    assert found["volcache_gained_hits"] == -1
    assert found["volcache_gained_hits_ratio"] == -0.25


def test_parts_that_are_off_have_no_metrics(fifo_store: Store) -> None:
    """Of one ring only the name of the policy, and what was put."""
    fill_volume(fifo_store)
    found = scrape(watch(fifo_store))
    assert found["volcache_eviction_info{policy=fifo}"] == 1
    assert found["volcache_put_bytes_total"] > 0
    rings = (
        "ring",
        "probation",
        "reinsert",
        "dropped_rec",
        "ghost",
        "gained",
        "amplif",
    )
    assert not [
        n for n in found if any(word in n for word in (*rings, "hot", "memcache"))
    ]
    tiered = "".join(scrape(watch_tiered(fifo_store)))
    assert "volcache_hot_server_up{server=127.0.0.1:11211}" in tiered
    assert "volcache_memcache_command_duration_seconds_count{kind=get}" in tiered


def test_instance_and_process_have_metrics(store: Store) -> None:
    """Version, readiness, times, and the `process_` metrics of Prometheus."""
    now = 1_795_270_826
    found = scrape(watch(store, clock=lambda: now * 10**9))
    assert found[f"volcache_build_info{{version={__version__}}}"] == 1
    assert (found["volcache_ready"], found["volcache_boot_seconds"]) == (1, 1.5)
    assert found["process_start_time_seconds"] == now - 1.5
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert 3 <= found["process_open_fds"] < found["process_max_fds"]
    assert found["process_cpu_seconds_total"] > 0
    assert found["process_threads"] >= 1
    assert scrape(watch(store, is_draining=lambda: True))["volcache_ready"] == 0


def test_plain_text_is_the_default_format(store: Store) -> None:
    """Also when `Accept` asks for an invalid version; a HEAD has the same headers."""
    client = operator_of(watch(store))
    openmetrics = "application/openmetrics-text; version="
    wrong = (f"{openmetrics}x", f"{openmetrics}{'9' * 5000}", "text/plain; version=a.b")
    for accept in ("", "*/*", ";;,=,", *wrong):
        answer = client.ask("GET", "/-/metrics", HTTP_ACCEPT=accept)
        assert (answer.status, answer.headers["Content-Type"]) == ("200 OK", PLAIN)
        assert answer.headers["Vary"] == "Accept, Accept-Encoding"
        assert answer.headers["Cache-Control"] == "no-store"
        head = client.ask("HEAD", "/-/metrics", HTTP_ACCEPT=accept)
        assert (head.status, head.body) == ("200 OK", b"")
        assert head.headers["Content-Type"] == PLAIN
        assert int(head.headers["Content-Length"]) > 1000


class LibraryMetrics(Collector):
    """The metrics of a snapshot as the library would be used, to compare with."""

    kinds: Final[dict[str, Any]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }

    def __init__(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self.snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        """Yield each metric."""
        for section in SECTIONS:
            if section.is_part(self.snapshot):
                for metric in section.metrics:
                    if metric.name:
                        yield self.family(metric)

    def family(self, metric: Metric) -> Any:
        """Return a metric with its samples."""
        names = [label.name for label in metric.labels]
        made = self.kinds[metric.kind](metric.name, metric.text, labels=names)
        for values, value in metric.read(self.snapshot).items():
            texts = [str(text) for text in values]
            if isinstance(value, Histogram):
                below = value.cumulative()
                buckets = [(str(below[bits][0]), below[bits][1]) for bits in BOUND_BITS]
                made.add_metric(
                    texts,
                    [*buckets, ("+Inf", below[-1][1])],
                    sum_value=value.total_ns / 1e9,
                )
            elif value is not None:
                made.add_metric(texts, value)
        return made


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
@pytest.mark.parametrize("make", [watch, watch_tiered])
def test_output_is_what_the_library_would_write(
    store: Store, make: Callable[..., Monitor], accept: str
) -> None:
    """Byte by byte: labels in order, characters escaped, numbers as Go writes them."""
    reclaim_some(store)
    monitor = make(store)
    for ns in (0, 3_000, 10**9, 10**13):
        monitor.requests.answers["GET", "200 OK", "DISK"].observe(0, ns)
    monitor.requests.bytes_in, monitor.requests.bytes_out = 10**6, 123_456_789_012
    snapshot = monitor.snapshot()
    if snapshot.hot:
        up = {'quote " backslash \\ line\n end': True, "é": False}
        snapshot = replace(snapshot, hot=snapshot.hot._replace(up=up))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LibraryMetrics(snapshot))
    encode, content_type = choose_encoder(accept)
    found = Metrics(lambda: snapshot).render(accept)
    assert found == (content_type, encode(registry))
    assert found[1].count(b"\n") > 300


def test_openmetrics_is_sent_on_request(store: Store) -> None:
    """With the `Accept` header of Prometheus; its own parser accepts the output."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1"
    client = operator_of(watch_tiered(store))
    answer = client.ask("GET", "/-/metrics", HTTP_ACCEPT=accept)
    kind = answer.headers["Content-Type"]
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert answer.body.endswith(b"# EOF\n")
    families = parse_openmetrics(answer.body.decode())  # type: ignore[no-untyped-call]
    names = [family.name for family in families]
    assert "volcache_requests" in names
