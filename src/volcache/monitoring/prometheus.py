"""
The metrics in Prometheus' text formats. The only import of prometheus_client.

The library's own counters and histograms are not used, since each takes a lock at every
request. A scrape builds the output from the integers that are counted anyway.
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

from volcache.histogram import NS_PER_SECOND, Histogram
from volcache.monitoring.metrics import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from volcache.monitoring.metrics import Metric, Series
    from volcache.monitoring.snapshot import Snapshot

# Every other power of two from 4 microseconds to 17 seconds: half the number of series,
# and enough to distinguish memory, flash and a disk that seeks.
BOUND_BITS: Final = range(12, 35, 2)
_FAMILIES: Final[dict[str, Callable[..., Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Metrics(Collector):
    """All metrics of one instance."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Call `snapshot` at each scrape."""
        self._snapshot = snapshot
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text, in the format that `Accept` asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # It asks for a version that is not a number.
            encode, content_type = choose_encoder("")
        return content_type, encode(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yield every metric of one snapshot."""
        snapshot = self._snapshot()
        for section in SECTIONS:
            if not section.is_part(snapshot):
                continue
            for metric in section.metrics:
                if metric.name:
                    yield _family(metric, metric.read(snapshot))


def _family(metric: Metric, series: Series) -> Family:
    labels = [label.name for label in metric.labels]
    made: Any = _FAMILIES[metric.kind](metric.name, metric.text, labels=labels)
    for values, value in series.items():
        texts = [str(text) for text in values]
        if isinstance(value, Histogram):
            seconds = value.total_ns / NS_PER_SECOND
            made.add_metric(texts, _buckets(value), sum_value=seconds)
        elif value is not None:
            made.add_metric(texts, value)
    family: Family = made
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    below = histogram.cumulative()
    found = [(str(below[bits][0]), below[bits][1]) for bits in BOUND_BITS]
    return [*found, ("+Inf", below[-1][1])]
