"""
How durations are counted: plain integers on the hot path, read when somebody asks.

A bucket is a power of two of nanoseconds, so that finding it is one `int.bit_length`; it
tells a duration to within a factor of two, and costs a tenth of a microsecond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

_NS_PER_SECOND: Final = 1_000_000_000
# What takes longer, a millisecond, is remembered for a while: a request that took long
# can so tell what it has waited for, and one that did not pays nothing.
LONG_NS: Final = 1_000_000
_LONG_KEPT_MAX: Final = 64
# Whatever a clock of 64 bits can tell has its bucket: the hot path need not look.
BUCKETS: Final = 64


@dataclass(slots=True)
class Histogram:
    """
    Durations, counted by their order of magnitude.

    `counts[i]` is the number of durations from 2^(i-1) up to but not including 2^i
    nanoseconds; `counts[0]` is that of durations of 0. Where a call is too dear, the hot
    path writes `counts` and `total_ns` itself.
    """

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    total_ns: int = 0
    # When the last long ones began, and how long they took.
    long: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=_LONG_KEPT_MAX)
    )

    def observe(self, started_ns: int, ns: int) -> None:
        """
        Count one duration.

        Args:
            started_ns: When, by `time.perf_counter_ns`.
            ns: How long it took, 0 to 2^63 nanoseconds.
        """
        self.counts[ns.bit_length()] += 1
        self.total_ns += ns
        if ns > LONG_NS:
            self.long.append((started_ns, ns))

    def since(self, since_ns: int) -> int:
        """Return how many nanoseconds went into long ones begun since a moment."""
        return sum(ns for started_ns, ns in self.long if started_ns >= since_ns)

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return for each bucket its upper bound in seconds and how many lie below."""
        found, below = [], 0
        for bits, count in enumerate(self.counts):
            below += count
            found.append(((1 << bits) / _NS_PER_SECOND, below))
        return found

    def merged(self, other: Histogram) -> Histogram:
        """Return both as one, and change neither."""
        counts = [
            mine + its for mine, its in zip(self.counts, other.counts, strict=True)
        ]
        return Histogram(counts, self.total_ns + other.total_ns)

    def quantile(self, share: float) -> float:
        """
        Return the duration, in seconds, that a share (0 to 1) of all stay below.

        To within its bucket, in which durations are taken to lie evenly on a logarithmic
        scale; 0.0 when nothing was counted.
        """
        wanted = share * self.count
        below = 0
        for bits, count in enumerate(self.counts):
            if count and below + count >= wanted:
                within = (wanted - below) / count
                return float(2.0 ** (bits - 1 + within)) / _NS_PER_SECOND
            below += count
        return 0.0
