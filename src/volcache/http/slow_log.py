"""
The slow log: one line for each request above a threshold, with where the time went.

A disk that hangs makes every request slow, so the number of lines is limited; a line
tells how many were left out before it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.histogram import NS_PER_SECOND
from volcache.logs import SLOW_LINES_PER_SECOND_MAX, LineLimit
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
LINES_PER_SECOND_MAX: Final = SLOW_LINES_PER_SECOND_MAX
_KEY_LENGTH_MAX: Final = 1000  # characters of a line
_NEVER_NS: Final = 1 << 63


class SlowLog:
    """Logs slow requests; for the thread that answers requests."""

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
        self._limit = LineLimit(LINES_PER_SECOND_MAX, clock)

    def set_threshold(self, seconds: float) -> None:
        """Log requests that take longer from now on; 0 = none."""
        self.threshold_ns = round(seconds * NS_PER_SECOND) or _NEVER_NS

    def log(
        self,
        method: str,
        path: str,
        status: str,
        total_ns: int,
        disk_ns: int,
        memcached_ns: int,
    ) -> None:
        """
        Log a request, or count it as left out if this second has its lines.

        Args:
            method: Of the request.
            path: Decoded, one character per byte, as WSGI passes it.
            status: The status line.
            total_ns: The duration of the request, in nanoseconds.
            disk_ns: The part of it spent waiting for the disk.
            memcached_ns: The part of it spent waiting for memcached.
        """
        left_out = self._limit.left_out()
        if left_out is None:
            return
        _logger.warning(
            "request.slow method=%s key=%s status=%d seconds=%.6f memcached=%.6f"
            " disk=%.6f rest=%.6f left_out=%d",
            method,
            escape_path(path.removeprefix("/"), _KEY_LENGTH_MAX),
            int(status[:3]),
            total_ns / NS_PER_SECOND,
            memcached_ns / NS_PER_SECOND,
            disk_ns / NS_PER_SECOND,
            # The clocks are read at different times, so this may be below 0.
            max(0, total_ns - disk_ns - memcached_ns) / NS_PER_SECOND,
            left_out,
        )
