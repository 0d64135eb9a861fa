"""
Promotion: a key is hot when it is read from disk `count` times within `duration_ms`.

The counters are bounded in number: when there are too many, the key read least recently is
forgotten. They are bounded in age: a read older than `duration_ms` does not count.

Any thread may call the methods; a lock, inside of which nothing is waited for, keeps the
counters together.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTERS_MAX: Final = 65_536  # About 20 MB with keys of 50 bytes.


class MissCounters:
    """Counts the reads of each key from disk, which are misses of the hot tier."""

    def __init__(
        self,
        *,
        count: int,
        duration_ms: int,
        clock: Callable[[], int],
        counters_max: int = COUNTERS_MAX,
    ) -> None:
        """
        Count nothing so far.

        Args:
            count: Reads that make a key hot, at least 1.
            duration_ms: The longest time from the first of these reads to the last.
            clock: Milliseconds.
            counters_max: How many keys are counted at a time.
        """
        self._earlier_reads = count - 1
        self._duration_ms = duration_ms
        self._clock = clock
        self._counters_max = counters_max
        # The times of the earlier reads of each key; the key read least recently first.
        self._reads: dict[bytes, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def is_hot_now(self, key: bytes) -> bool:
        """Count one read; return whether this read makes the key hot."""
        with self._lock:
            return self._count(key)

    def _count(self, key: bytes) -> bool:
        now = self._clock()
        needed = self._earlier_reads
        reads = self._reads.pop(key, ())
        if not needed or (
            len(reads) >= needed and now - reads[-needed] <= self._duration_ms
        ):
            return True
        self._reads[key] = (*reads[1 - needed :], now) if needed > 1 else (now,)
        if len(self._reads) > self._counters_max:
            del self._reads[next(iter(self._reads))]
        return False

    def clear(self) -> None:
        """Forget all counts, in constant time."""
        with self._lock:
            self._reads = {}

    def __len__(self) -> int:
        """Return the number of keys being counted."""
        return len(self._reads)
