"""What a run of requests comes to: how many, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MILLISECONDS_PER_SECOND = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Requests answered in some seconds; latencies in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    p999: float
    max: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return what so many percent of at least one ordered figure do not exceed."""
    rank = -(-len(ordered) * percent // 100)  # Rounded up: the nearest rank.
    return ordered[max(0, int(rank) - 1)]


def with_waiting(latencies: Sequence[float], usual: float) -> list[float]:
    """
    Add the requests that could not be sent meanwhile.

    A client that waits for an answer sends nothing while the server stands still, so
    that a pause of a second counts as one slow request. wrk adds what it would have
    sent: for a latency of n times the usual distance of two requests on a connection,
    n - 2 more, each waiting one distance less than the one before. Ours does the same,
    so that the two can be compared.

    Args:
        latencies: As measured.
        usual: The mean distance; 0 adds nothing.

    """
    everything = list(latencies)
    if usual > 0:
        for latency in latencies:
            waited = latency - usual
            while waited > usual:
                everything.append(waited)
                waited -= usual
    return everything


def summarise(latencies: Sequence[float], seconds: float, connections: int) -> Run:
    """
    Make the summary of a closed loop.

    Args:
        latencies: Of every request, in seconds; at least one.
        seconds: From the first request to the last answer.
        connections: That were kept busy.

    """
    usual = seconds * connections / len(latencies)
    ordered = sorted(with_waiting(latencies, usual))
    p50, p99, p999 = (
        percentile(ordered, percent) * MILLISECONDS_PER_SECOND
        for percent in (50, 99, 99.9)
    )
    return Run(
        requests=len(latencies),
        seconds=seconds,
        p50=p50,
        p99=p99,
        p999=p999,
        max=ordered[-1] * MILLISECONDS_PER_SECOND,
    )
