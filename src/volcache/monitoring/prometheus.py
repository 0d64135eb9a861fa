"""
The metrics as Prometheus reads them. The only import of prometheus_client.

Its own counters and histograms are not used: each costs a lock with every request. Here a
scrape makes the metrics anew, from the integers that are counted anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from volcache.histogram import Histogram
from volcache.monitoring.metrics import families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from volcache.monitoring.metrics import Family
    from volcache.monitoring.snapshot import Snapshot

# Every other power of two from 4 microseconds to 17 seconds: half the series, and enough
# to tell memory, flash and a disk that seeks from one another.
BOUND_BITS: Final = range(12, 35, 2)
_NS_PER_SECOND: Final = 1_000_000_000
_KINDS: Final[dict[str, Callable[..., Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Metrics(Collector):
    """All metrics of one instance."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Make them from a new snapshot with each scrape."""
        self._snapshot = snapshot
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text, in the format that `Accept` asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # The version it asks for is none.
            encode, content_type = choose_encoder("")
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Look at everything once, and yield it."""
        for family in families(self._snapshot()):
            yield _metric(family)


def _metric(family: Family) -> Metric:
    made: Any = _KINDS[family.kind](family.name, family.text, labels=family.labels)
    for labels, value in family.values.items():
        if isinstance(value, Histogram):
            seconds = value.total_ns / _NS_PER_SECOND
            made.add_metric(labels, _buckets(value), sum_value=seconds)
        else:
            made.add_metric(labels, value)
    found: Metric = made
    return found


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    below = histogram.cumulative()
    found = [(str(below[bits][0]), below[bits][1]) for bits in BOUND_BITS]
    return [*found, ("+Inf", below[-1][1])]
