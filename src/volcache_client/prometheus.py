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
from typing import TYPE_CHECKING, Final, Protocol

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

    from volcache_client.metrics import Durations, Metrics, NodeNumbers

_PREFIX: Final = "volcache_client_"
_LIMITS: Final = (*map(str, BUCKETS), "+Inf")


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

    def add(self, client: HasStats, *, name: str) -> None:
        """
        Read another client, too.

        Raises:
            InvalidArgumentError: The name is not text, or empty, or that of another client.
        """
        if not name or not _is_text(name):
            raise InvalidArgumentError(f"name={name!r}; allowed is text, not empty")
        with self._lock:
            if name in self._clients:
                raise InvalidArgumentError(
                    f"name={name!r} is that of a client which was added before; allowed is"
                    " another one"
                )
            self._clients[name] = client

    def remove(self, name: str) -> None:
        """Read a client no longer; harmless if there is none of that name."""
        with self._lock:
            self._clients.pop(name, None)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without numbers, so that a registry knows their names."""
        return _Families().all()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all clients."""
        with self._lock:
            clients = tuple(self._clients.items())
        families = _Families()
        for name, client in clients:
            families.add(name, client.stats())
        return families.all()


def _is_text(value: object) -> bool:
    return isinstance(value, str)


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        by_client = ("client",)
        by_node = ("client", "node")
        self._operations: Final = CounterMetricFamily(
            f"{_PREFIX}operations",
            "Operations that ended.",
            labels=("client", "operation", "outcome"),
        )
        self._seconds: Final = HistogramMetricFamily(
            f"{_PREFIX}operation_seconds",
            "Durations of operations, from the call to the result.",
            labels=("client", "operation"),
        )
        self._errors: Final = CounterMetricFamily(
            f"{_PREFIX}errors",
            "Errors by the name of their class, also those that were not raised.",
            labels=("client", "error"),
        )
        self._made: Final = CounterMetricFamily(
            f"{_PREFIX}made", "Values made by get_or_set.", labels=by_client
        )
        self._waits: Final = CounterMetricFamily(
            f"{_PREFIX}waits",
            "Calls of get_or_set that waited for another one.",
            labels=by_client,
        )
        self._up: Final = GaugeMetricFamily(
            f"{_PREFIX}node_up",
            "1 = the node is asked, 0 = it is down.",
            labels=by_node,
        )
        self._requests: Final = CounterMetricFamily(
            f"{_PREFIX}node_requests", "Requests to a node.", labels=by_node
        )
        self._failures: Final = CounterMetricFamily(
            f"{_PREFIX}node_failures",
            "Requests to a node that were not answered.",
            labels=by_node,
        )
        self._in_flight: Final = GaugeMetricFamily(
            f"{_PREFIX}node_requests_in_flight",
            "Requests to a node that are not answered yet.",
            labels=by_node,
        )
        self._connections: Final = GaugeMetricFamily(
            f"{_PREFIX}node_connections",
            "Open connections to a node, in use or kept.",
            labels=by_node,
        )

    def all(self) -> tuple[Metric, ...]:
        """Return the metrics."""
        return (
            self._operations, self._seconds, self._errors, self._made, self._waits,
            self._up, self._requests, self._failures, self._in_flight,
            self._connections,
        )  # fmt: skip

    def add(self, client: str, metrics: Metrics) -> None:
        """Add the numbers of a client."""
        for (operation, outcome), count in metrics.operations.items():
            self._operations.add_metric((client, operation, outcome), count)
        for error, count in metrics.errors.items():
            self._errors.add_metric((client, error), count)
        self._made.add_metric((client,), metrics.made)
        self._waits.add_metric((client,), metrics.waits)
        self._add_durations(client, metrics.durations)
        self._add_nodes(client, metrics.nodes)

    def _add_durations(self, client: str, durations: Mapping[str, Durations]) -> None:
        for operation, (counts, seconds) in durations.items():
            buckets = list(zip(_LIMITS, accumulate(counts), strict=True))
            self._seconds.add_metric((client, operation), buckets, seconds)

    def _add_nodes(self, client: str, nodes: Mapping[str, NodeNumbers]) -> None:
        for node, numbers in nodes.items():
            labels = (client, node)
            self._up.add_metric(labels, float(numbers.is_up))
            self._requests.add_metric(labels, numbers.requests)
            self._failures.add_metric(labels, numbers.failures)
            self._in_flight.add_metric(labels, numbers.in_flight)
            self._connections.add_metric(labels, numbers.connections)
