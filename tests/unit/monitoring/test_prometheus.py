"""The metrics in the formats of Prometheus, at `/-/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import pytest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from support.instances import operator_of, watch, watch_tiered
from support.samples import samples_of
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    fill_volume,
    reclaim_some,
)
from volcache import __version__
from volcache.histogram import Histogram
from volcache.monitoring.metrics import SECTIONS, Metric
from volcache.monitoring.prometheus import BOUND_BITS, MetricsRenderer
from volcache.monitoring.snapshot import Monitor, Snapshot
from volcache.store import Store
from volcache.store.stats import STATES

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"


def scrape(monitor: Monitor, *, volumes: bool = False) -> dict[str, float]:
    """Return all samples, named as Prometheus shows them."""
    client = operator_of(monitor, metrics_volumes=volumes)
    answer = client.ask("GET", "/-/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == ("200 OK", PLAIN)
    return samples_of(answer.body.decode())


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


def test_parts_that_are_off_have_no_metrics(fifo_store: Store) -> None:
    """Of one ring only the name of the policy, and what was put."""
    fill_volume(fifo_store)
    found = scrape(watch(fifo_store))
    assert found["volcache_eviction_info{policy=fifo}"] == 1
    assert found["volcache_put_bytes_total"] > 0
    rings = ("ring", "probation", "reinsert", "dropped_rec", "ghost", "gained")
    for word in (*rings, "amplif", "hot", "memcache"):
        assert not [name for name in found if word in name]
    tiered = "".join(scrape(watch_tiered(fifo_store)))
    assert "volcache_hot_server_up{server=127.0.0.1:11211}" in tiered
    assert "volcache_memcache_command_duration_seconds_count{kind=get}" in tiered


def test_metrics_that_only_prometheus_has_are_shown(store: Store) -> None:
    """Or has another form in the JSON."""
    found = scrape(watch(store))
    assert found[f"volcache_build_info{{version={__version__}}}"] == 1
    assert found["volcache_eviction_info{policy=frequency}"] == 1
    assert found["volcache_disk_writable"] == found["volcache_ready"] == 1
    assert found["volcache_capacity_bytes"] == VOLUME_NUM * VOLUME_SIZE
    assert scrape(watch(store, is_draining=lambda: True))["volcache_ready"] == 0


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
                below = list(accumulate(value.counts))
                buckets = [(str(2**bits / 1e9), below[bits]) for bits in BOUND_BITS]
                made.add_metric(
                    texts,
                    [*buckets, ("+Inf", below[-1])],
                    sum_value=value.total_ns / 1e9,
                )
            elif value is not None:
                made.add_metric(texts, value)
        return made


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
@pytest.mark.parametrize("make", [watch, watch_tiered])
def test_metrics_are_written_as_the_library_writes_them(
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
    found = MetricsRenderer(lambda: snapshot).render(accept)
    assert found == (content_type, encode(registry))
    assert found[1].count(b"\n") > 300
