"""
Histograms of durations: plain integers that the request path increments.

A bucket is a power of two of nanoseconds: `int.bit_length` finds it, and a duration is
recorded to within a factor of two, at the cost of a tenth of a microsecond.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

NS_PER_SECOND: Final = 1_000_000_000
# Durations above one millisecond are kept for a while, with the time they started: a
# slow request can sum up what it waited for, and a fast one pays nothing.
LONG_NS: Final = 1_000_000
_LONG_KEPT_MAX: Final = 64
# Every duration that fits 64 bits has a bucket, so `observe` needs no range check.
BUCKETS: Final = 64


@dataclass(slots=True)
class Histogram:
    """
    Durations, counted by order of magnitude.

    `counts[i]` is the number of durations from 2^(i-1) up to but not including 2^i
    nanoseconds; `counts[0]` that of durations of 0. Where a call is too expensive, the
    request path may increment `counts[ns.bit_length()]` and add to `total_ns` itself.
    """

    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    total_ns: int = 0
    # Start and length of the last long durations.
    long: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=_LONG_KEPT_MAX)
    )

    def observe(self, started_ns: int, ns: int) -> None:
        """
        Count one duration.

        Args:
            started_ns: Its start, by `time.perf_counter_ns`.
            ns: Its length, 0 to 2^63 nanoseconds.
        """
        self.counts[ns.bit_length()] += 1
        self.total_ns += ns
        if ns > LONG_NS:
            self.long.append((started_ns, ns))

    def since(self, since_ns: int) -> int:
        """Return the sum, in nanoseconds, of the long durations started since a time."""
        long = self.long.copy()  # Another thread may add one.
        return sum(ns for started_ns, ns in long if started_ns >= since_ns)

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def merged(self, other: Histogram) -> Histogram:
        """Return the sum of two histograms; neither is changed."""
        counts = [
            mine + its for mine, its in zip(self.counts, other.counts, strict=True)
        ]
        return Histogram(counts, self.total_ns + other.total_ns)

    def without(self, earlier: Histogram) -> Histogram:
        """
        Return what was counted after an earlier state of this histogram.

        Counts that are smaller than before, as after a restart, become 0.
        """
        counts = [
            max(0, now - before)
            for now, before in zip(self.counts, earlier.counts, strict=True)
        ]
        return Histogram(counts, max(0, self.total_ns - earlier.total_ns))

    def quantile(self, share: float) -> float:
        """
        Return the duration, in seconds, that a share (0 to 1) of all stay below.

        It is interpolated within its bucket, on a logarithmic scale; 0.0 when nothing
        was counted.
        """
        wanted = share * self.count
        below = 0
        for bits, count in enumerate(self.counts):
            if count and below + count >= wanted:
                within = (wanted - below) / count
                return float(2.0 ** (bits - 1 + within)) / NS_PER_SECOND
            below += count
        return 0.0


class Answers(dict[tuple[str, ...], Histogram]):
    """The durations of answers, by what was asked for, its result and perhaps more."""

    def __init__(self, names: Container[str], other: str) -> None:
        """Count what is not one of these names as `other`, so clients add few."""
        super().__init__()
        self._names = names
        self._other = other

    def __missing__(self, answer: tuple[str, ...]) -> Histogram:
        """Add a histogram."""
        name, *more = answer
        if name not in self._names:
            return self[self._other, *more]
        histogram = self[answer] = Histogram()
        return histogram

    def number(self, matches: Callable[[tuple[str, ...]], bool]) -> int:
        """Return how many answers match; another thread may add one meanwhile."""
        found = self.copy().items()
        return sum(histogram.count for answer, histogram in found if matches(answer))

    def merged(self, kind_of: Mapping[str, str]) -> dict[str, Histogram]:
        """Return the durations by the kinds of the names."""
        merged = {kind: Histogram() for kind in kind_of.values()}
        for (name, *_), histogram in self.copy().items():
            merged[kind_of[name]] = merged[kind_of[name]].merged(histogram)
        return merged
