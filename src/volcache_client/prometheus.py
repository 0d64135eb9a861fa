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
    volcache_client_node_requests_in_flight
    volcache_client_node_connections
"""

from __future__ import annotations

from itertools import accumulate
from threading import Lock
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
    from collections.abc import Iterable, Mapping

    from prometheus_client.metrics_core import Metric

    from volcache_client.metrics import Metrics

_LIMITS: Final = (*map(str, BUCKETS), "+Inf")
_NODE: Final = ("client", "node")
# Those of nodes are in the order of `NodeNumbers`.
_FAMILIES: Final = (
    (CounterMetricFamily, "operations", "Operations that ended.",
     ("client", "operation", "outcome")),
    (HistogramMetricFamily, "operation_seconds",
     "Durations of operations, from the call to the result.", ("client", "operation")),
    (CounterMetricFamily, "errors",
     "Errors by the name of their class, also those that were not raised.",
     ("client", "error")),
    (CounterMetricFamily, "made", "Values made by get_or_set.", ("client",)),
    (CounterMetricFamily, "waits", "Calls of get_or_set that waited for another one.",
     ("client",)),
    (GaugeMetricFamily, "node_up", "1 = the node is asked, 0 = it is down.", _NODE),
    (CounterMetricFamily, "node_requests", "Requests to a node.", _NODE),
    (CounterMetricFamily, "node_failures",
     "Requests to a node that were not answered.", _NODE),
    (GaugeMetricFamily, "node_requests_in_flight",
     "Requests to a node that are not answered yet.", _NODE),
    (GaugeMetricFamily, "node_connections",
     "Open connections to a node, in use or kept.", _NODE),
)  # fmt: skip


class HasStats(Protocol):
    """What a collector reads: `Client` and `AsyncClient`."""

    def stats(self) -> Metrics:
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
        """
        Begin with one client.

        Args:
            client: Anything with a method `stats`.
            name: The value of the label `client`.

        Raises:
            InvalidArgumentError: The name is not text, or empty.
        """
        self._lock: Final = Lock()
        self._clients: dict[str, HasStats] = {}
        self.add(client, name=name)

    def add(self, client: HasStats, *, name: Any) -> None:  # noqa: ANN401 - It is checked.
        """
        Read another client, too.

        Raises:
            InvalidArgumentError: The name is not text, or empty, or that of another client.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"name={name!r}; allowed is text, not empty")
        with self._lock:
            if name in self._clients:
                raise InvalidArgumentError(
                    f"name={name!r} is that of a client which was added before; allowed is"
                    " another one"
                )
            self._clients[name] = client

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without numbers, so that a registry knows their names."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all clients."""
        with self._lock:
            clients = tuple(self._clients.items())
        families = _families()
        for name, client in clients:
            _add(families, name, client.stats())
        return families.values()


def _families() -> dict[str, Any]:
    """Return the metrics of one scrape, by the ends of their names."""
    return {
        name: kind(f"volcache_client_{name}", text, labels=labels)
        for kind, name, text, labels in _FAMILIES
    }


def _add(families: Mapping[str, Any], client: str, metrics: Metrics) -> None:
    """Add the numbers of a client."""
    for (operation, outcome), count in metrics.operations.items():
        families["operations"].add_metric((client, operation, outcome), count)
    for operation, (counts, seconds) in metrics.durations.items():
        buckets = list(zip(_LIMITS, accumulate(counts), strict=True))
        families["operation_seconds"].add_metric((client, operation), buckets, seconds)
    for error, count in metrics.errors.items():
        families["errors"].add_metric((client, error), count)
    families["made"].add_metric((client,), metrics.made)
    families["waits"].add_metric((client,), metrics.waits)
    of_node = [family for name, family in families.items() if name.startswith("node_")]
    for node, numbers in metrics.nodes.items():
        for family, number in zip(of_node, numbers, strict=True):
            family.add_metric((client, node), float(number))
