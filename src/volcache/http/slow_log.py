"""
The slow log: a line for each request that took too long, with where the time went.

A disk that hangs makes every request slow, so lines are limited; each line says how many
were left out before it. Knows neither clocks of requests nor settings: whoever measures
decides what is slow.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
LINES_A_SECOND: Final = 10
_KEY_SIZE_MAX: Final = 1000  # Characters of a line.
_NS_PER_SECOND: Final = 1_000_000_000


class SlowLog:
    """Writes at most `LINES_A_SECOND`; for the thread that answers requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with no lines written; the clock counts seconds."""
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def note(
        self,
        method: str,
        path: str,
        status: int,
        total_ns: int,
        disk_ns: int,
        memcached_ns: int,
    ) -> None:
        """
        Say that a request took long, or count it.

        Args:
            method: Its verb.
            path: Its path, decoded, a character for each byte, as WSGI has it.
            status: What was answered.
            total_ns: How long it took, nanoseconds.
            disk_ns: How much of it was spent on waiting for the disk.
            memcached_ns: How much of it was spent on waiting for memcached.
        """
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LINES_A_SECOND:
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        _logger.warning(
            "request.slow method=%s key=%s status=%d seconds=%.6f memcached=%.6f"
            " disk=%.6f rest=%.6f left_out=%d",
            method,
            escape_path(path.removeprefix("/"), _KEY_SIZE_MAX),
            status,
            total_ns / _NS_PER_SECOND,
            memcached_ns / _NS_PER_SECOND,
            disk_ns / _NS_PER_SECOND,
            max(0, total_ns - disk_ns - memcached_ns) / _NS_PER_SECOND,
            left_out,
        )
