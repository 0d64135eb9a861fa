"""Counters of a client, as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Outcome = Literal["hit", "miss", "done", "refused", "dropped", "error"]

# Upper limits of the classes of durations, seconds; the last class has no limit.
BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip


class Durations(NamedTuple):
    """
    Durations of one operation.

    Attributes:
        counts: One for each class of `BUCKETS`, and one for longer ones; not cumulative.
        seconds: Their sum.
    """

    counts: tuple[int, ...]
    seconds: float


class NodeNumbers(NamedTuple):
    """
    Numbers of one node.

    Attributes:
        is_up: Whether it is asked.
        requests: Sent, or begun to be, probes included.
        failures: Without an answer, and probes that were answered "not ready".
        in_flight: Requests that are not answered yet.
        connections: Opened and not closed; in use or kept.
    """

    is_up: bool
    requests: int
    failures: int
    in_flight: int
    connections: int


class Metrics(NamedTuple):
    """
    Numbers of a client since its start.

    Attributes:
        operations: By operation ("get") and outcome. "hit" and "miss" are of reads; "done",
            "refused" (a condition does not hold), and "dropped" (a node was down, and an
            error is not raised) of writes; "error" is raised.
        errors: By the name of the class, also those that are not raised.
        durations: By operation.
        made: Values that were made by `get_or_set`.
        waits: Calls of `get_or_set` that waited for another one that makes the value, of
            this client or another.
        nodes: By name.
    """

    operations: Mapping[tuple[str, Outcome], int]
    errors: Mapping[str, int]
    durations: Mapping[str, Durations]
    made: int
    waits: int
    nodes: Mapping[str, NodeNumbers]


class Counters:
    """
    Counts operations; used by all threads.

    Each method but `read` takes the lock once, for a third of a microsecond.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._outcomes: Counter[tuple[str, Outcome]] = Counter()
        self._errors: Counter[str] = Counter()
        # By operation: how many took how long, and their sum.
        self._counts: defaultdict[str, list[int]] = defaultdict(
            lambda: [0] * (len(BUCKETS) + 1)
        )
        self._seconds: defaultdict[str, float] = defaultdict(float)
        # By node: requests, those that ended, and failures.
        self._requests: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._made = 0
        self._waits = 0

    def after_fork(self) -> None:
        """Replace the lock, in a child process; what was in flight is not there."""
        self._lock = Lock()
        for requests in self._requests.values():
            requests[1] = requests[0]

    def operation_ended(
        self, name: str, outcome: Outcome, seconds: float, count: int = 1
    ) -> None:
        """Count an operation, or several that took the same time."""
        at = bisect_left(BUCKETS, seconds)
        with self._lock:
            self._outcomes[name, outcome] += count
            self._counts[name][at] += count
            self._seconds[name] += count * seconds

    def error(self, error: Exception) -> None:
        """Count an error."""
        with self._lock:
            self._errors[type(error).__name__] += 1

    def made(self) -> None:
        """Count a value that was made."""
        with self._lock:
            self._made += 1

    def waited(self) -> None:
        """Count a call that waited for the value."""
        with self._lock:
            self._waits += 1

    def request_began(self, node: str, count: int = 1) -> None:
        """Count requests; `request_ended` must follow."""
        with self._lock:
            self._requests[node][0] += count

    def request_ended(self, node: str, *, failures: int, count: int = 1) -> None:
        """Count the end of requests."""
        with self._lock:
            requests = self._requests[node]
            requests[1] += count
            requests[2] += failures

    def read(self, nodes: Mapping[str, tuple[bool, int]]) -> Metrics:
        """
        Return all numbers, of one moment.

        Args:
            nodes: By name, whether each is up, and its open connections.
        """
        with self._lock:
            durations = {
                name: Durations(tuple(counts), self._seconds[name])
                for name, counts in self._counts.items()
            }
            numbers = {}
            for name, (is_up, connections) in nodes.items():
                began, ended, failures = self._requests.get(name, (0, 0, 0))
                numbers[name] = NodeNumbers(
                    is_up, began, failures, began - ended, connections
                )
            return Metrics(
                operations=dict(self._outcomes),
                errors=dict(self._errors),
                durations=durations,
                made=self._made,
                waits=self._waits,
                nodes=numbers,
            )
