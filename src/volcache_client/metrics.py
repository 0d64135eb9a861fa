"""Counters of a client, as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from threading import Lock
from typing import Final, Literal, TypedDict

Outcome = Literal["hit", "miss", "done", "refused", "dropped", "error"]

# Upper limits of the classes of durations, seconds; the last class has no limit.
BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip


class Durations(TypedDict):
    """
    Durations of one operation.

    Attributes:
        counts: One for each class of `BUCKETS`, and one for longer ones; not cumulative.
        seconds: Their sum.
    """

    counts: list[int]
    seconds: float


class NodeNumbers(TypedDict):
    """
    Numbers of one node.

    Attributes:
        up: 1 = it is asked, 0 = it is down.
        requests: Those that ended, probes included.
        failures: Without an answer, and probes that were answered "not ready".
        connections: Opened and not closed; in use or kept.
        in_use: Those of them that wait for an answer.
    """

    up: int
    requests: int
    failures: int
    connections: int
    in_use: int


class Stats(TypedDict):
    """
    Numbers of a client since its start.

    Attributes:
        operations: By operation ("get") and outcome. "hit" and "miss" are of reads; "done",
            "refused" (a condition does not hold), and "dropped" (a node was down, and an
            error is not raised) of writes; "error" is raised.
        durations: By operation.
        errors: By the name of the class, also those that are not raised.
        made: Values that were made by `get_or_set`.
        waits: Calls of `get_or_set` that waited for another one that makes the value, of
            this client or another.
        nodes: By name.
    """

    operations: dict[str, dict[Outcome, int]]
    durations: dict[str, Durations]
    errors: dict[str, int]
    made: int
    waits: int
    nodes: dict[str, NodeNumbers]


class Counters:
    """Counts operations; used by all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._operations: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
        self._errors: Counter[str] = Counter()
        # By operation: how many took how long, and the sum of that.
        self._durations: defaultdict[str, list[float]] = defaultdict(
            lambda: [0] * (len(BUCKETS) + 2)
        )
        self._making: Counter[str] = Counter()

    def after_fork(self) -> None:
        """Replace the lock, in a child process."""
        self._lock = Lock()

    def operation_ended(
        self, name: str, outcome: Outcome, seconds: float, count: int = 1
    ) -> None:
        """Count an operation, or several that took the same time."""
        at = bisect_left(BUCKETS, seconds)
        with self._lock:
            self._operations[name][outcome] += count
            durations = self._durations[name]
            durations[at] += count
            durations[-1] += count * seconds

    def error(self, error: Exception) -> None:
        """Count an error."""
        with self._lock:
            self._errors[type(error).__name__] += 1

    def making(self, what: Literal["made", "waits"]) -> None:
        """Count a value that was made, or a call that waited for one."""
        with self._lock:
            self._making[what] += 1

    def read(self, nodes: dict[str, NodeNumbers]) -> Stats:
        """Return all numbers, of one moment; those of the nodes are given."""
        with self._lock:
            return {
                "operations": {
                    name: dict(found) for name, found in self._operations.items()
                },
                "durations": {
                    name: {"counts": [*map(int, found[:-1])], "seconds": found[-1]}
                    for name, found in self._durations.items()
                },
                "errors": dict(self._errors),
                "made": self._making["made"],
                "waits": self._making["waits"],
                "nodes": nodes,
            }
