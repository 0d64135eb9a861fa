"""
The numbers of clients for Prometheus. The only import of prometheus_client.

The names:

    volcache_client_operations_total           by client, operation, outcome
    volcache_client_operation_seconds          a histogram, by client, operation
    volcache_client_errors_total               by client, error (the name of its class)
    volcache_client_made_total                 by client
    volcache_client_waits_total                by client
    volcache_client_node_up                    by client, node, as are all below
    volcache_client_node_requests_total
    volcache_client_node_failures_total
    volcache_client_node_connections
    volcache_client_node_in_use
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

from volcache_client.errors import InvalidArgumentError
from volcache_client.metrics import BUCKETS

try:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector as _Collector
except ImportError as missing:
    raise ImportError(
        "volcache_client.prometheus needs prometheus-client:"
        " pip install 'volcache[server]', or pip install prometheus-client"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from volcache_client.metrics import Stats

_LIMITS: Final = (*map(str, BUCKETS), "+Inf")
_C, _G = CounterMetricFamily, GaugeMetricFamily
# By the end of the name: the kind, what it is, and the labels after that of the client.
_FAMILIES: Final[dict[str, tuple[Any, str, tuple[str, ...]]]] = {
    "operations": (_C, "Operations that ended.", ("operation", "outcome")),
    "operation_seconds": (HistogramMetricFamily,
     "Durations of operations, from the call to the result.", ("operation",)),
    "errors": (_C, "Errors by their class, also those not raised.", ("error",)),
    "made": (_C, "Values made by get_or_set.", ()),
    "waits": (_C, "Calls of get_or_set that waited for another one.", ()),
    "node_up": (_G, "1 = the node is asked, 0 = it is down.", ("node",)),
    "node_requests": (_C, "Requests to a node that ended.", ("node",)),
    "node_failures": (_C, "Requests that a node did not answer.", ("node",)),
    "node_connections": (_G, "Open connections, in use or kept.", ("node",)),
    "node_in_use": (_G, "Connections in use.", ("node",)),
}  # fmt: skip


class HasStats(Protocol):
    """What a collector reads: `Client` and `AsyncClient`."""

    def stats(self) -> Stats:
        """Return the numbers."""


class Collector(_Collector):
    """
    Reads the numbers of clients when Prometheus does; used by all threads.

    A registry takes one collector: further clients of a process are added to it, each with
    a name of its own.

    Example:
        collector = Collector(client, name="thumbnails")
        prometheus_client.REGISTRY.register(collector)
        collector.add(other, name="sessions")
    """

    def __init__(self, client: HasStats, *, name: str = "default") -> None:
        """Begin with one client; see `add`."""
        self._clients: Final[dict[str, HasStats]] = {}
        self.add(client, name=name)

    def add(self, client: HasStats, *, name: Any) -> None:  # noqa: ANN401 - It is checked.
        """
        Read another client, too; `name` is the value of the label `client`.

        Raises:
            InvalidArgumentError: The name is not text, or empty, or that of another client.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"name={name!r}; allowed is text, not empty")
        if self._clients.setdefault(name, client) is not client:
            raise InvalidArgumentError(
                f"name={name!r} is that of another client; allowed is another name"
            )

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without numbers, so that a registry knows their names."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all clients."""
        families = _families()
        for name, client in list(self._clients.items()):
            for family, labels, values in _numbers(client.stats()):
                families[family].add_metric((name, *labels), *values)
        return families.values()


def _families() -> dict[str, Any]:
    """Return the metrics of one scrape, by the ends of their names."""
    return {
        name: kind(f"volcache_client_{name}", text, labels=("client", *labels))
        for name, (kind, text, labels) in _FAMILIES.items()
    }


def _numbers(stats: Stats) -> Iterator[tuple[str, tuple[str, ...], tuple[Any, ...]]]:
    """Yield the family, labels and values of each number of a client."""
    for operation, outcomes in stats["operations"].items():
        for outcome, count in outcomes.items():
            yield "operations", (operation, outcome), (count,)
    for operation, found in stats["durations"].items():
        buckets = list(zip(_LIMITS, accumulate(found["counts"]), strict=True))
        yield "operation_seconds", (operation,), (buckets, found["seconds"])
    for error, count in stats["errors"].items():
        yield "errors", (error,), (count,)
    yield "made", (), (stats["made"],)
    yield "waits", (), (stats["waits"],)
    for node, numbers in stats["nodes"].items():
        for name, number in numbers.items():
            yield f"node_{name}", (node,), (number,)
