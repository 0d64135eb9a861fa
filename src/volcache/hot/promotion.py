"""
When a key is hot: it was read from disk so many times within so many seconds.

Bounded in number and in age: a counter is forgotten when it could no longer lead to
anything, and when there are too many, those read least recently go first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTERS_MAX: Final = 65_536  # About 20 MB with keys of 50 bytes.


class MissCounters:
    """Counts reads from disk, each a miss of the hot tier."""

    def __init__(
        self,
        *,
        count: int,
        duration_ms: int,
        clock: Callable[[], int],
        counters_max: int = COUNTERS_MAX,
    ) -> None:
        """
        Count to `count`, at least 1, within `duration_ms`.

        Args:
            count: The read that reaches it makes a key hot.
            duration_ms: From the first of these reads to the last, at the most.
            clock: Milliseconds.
            counters_max: How many keys are counted at a time.
        """
        self._before = count - 1
        self._duration_ms = duration_ms
        self._clock = clock
        self._counters_max = counters_max
        # The times of the last reads before this one; least recently read keys first.
        self._reads: dict[bytes, tuple[int, ...]] = {}

    def is_hot_now(self, key: bytes) -> bool:
        """Count one read; tell whether it is the one that makes the key hot."""
        now = self._clock()
        reads = self._reads.pop(key, ())
        if len(reads) >= self._before and (
            not self._before or now - reads[-self._before] <= self._duration_ms
        ):
            return True
        self._reads[key] = (*reads[-self._before + 1 :], now) if reads else (now,)
        if len(self._reads) > self._counters_max:
            del self._reads[next(iter(self._reads))]
        return False

    def clear(self) -> None:
        """Begin anew with all keys, in constant time."""
        self._reads = {}

    def __len__(self) -> int:
        """Return how many keys are being counted."""
        return len(self._reads)
