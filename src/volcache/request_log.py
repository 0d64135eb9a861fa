"""
Which requests get a line of a slow log, for HTTP and the memcached protocol alike.

A disk that hangs makes every request slow, so the number of lines is limited; a line tells
how many were left out before it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from volcache.histogram import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_LINES_PER_SECOND_MAX: Final = 10
_NEVER_NS: Final = 1 << 63


class SlowLimit:
    """Which requests get a line of a slow log; for one thread."""

    def __init__(
        self, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Set the threshold.

        Args:
            seconds: Requests that take longer are to be logged; 0 = none.
            clock: Seconds, monotonic.
        """
        self.set_threshold(seconds)
        self._clock = clock
        self._second = self._lines = self._left_out = 0

    def set_threshold(self, seconds: float) -> None:
        """Log requests that take longer from now on; 0 = none. From any thread."""
        self.threshold_ns = round(seconds * NS_PER_SECOND) or _NEVER_NS

    def shares(
        self, total_ns: int, disk_ns: int, memcached_ns: int
    ) -> tuple[float, float, float, float, int] | None:
        """
        Return what a line shows; None if this second has its lines.

        Args:
            total_ns: The duration of the request, in nanoseconds.
            disk_ns: The part of it spent waiting for the disk.
            memcached_ns: The part of it spent waiting for memcached.

        Returns:
            The seconds in all, for memcached, for the disk and for all else; how many
            lines were left out before this one.
        """
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= SLOW_LINES_PER_SECOND_MAX:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        # Other threads wait, too, and the clocks are read at different times.
        disk_ns = min(disk_ns, total_ns)
        memcached_ns = min(memcached_ns, total_ns - disk_ns)
        rest_ns = total_ns - disk_ns - memcached_ns
        total, memcached, disk, rest = (
            ns / NS_PER_SECOND for ns in (total_ns, memcached_ns, disk_ns, rest_ns)
        )
        return total, memcached, disk, rest, left_out
