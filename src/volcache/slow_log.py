"""
The slow logs: a line for each request or command above a threshold.

It shows where the time went, and no values, users and passwords. A disk that hangs makes
every request slow, so the number of lines is limited; a line tells how many were left out
before it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.histogram import NS_PER_SECOND
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
LINES_PER_SECOND_MAX: Final = 10
_FIELD_LENGTH_MAX: Final = 1000  # Characters of a line.
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
        if self._lines >= LINES_PER_SECOND_MAX:
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


class SlowLog(SlowLimit):
    """Logs slow requests of HTTP; for one thread at a time, except `set_threshold`."""

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
        shares = self.shares(total_ns, disk_ns, memcached_ns)
        if shares is not None:
            _logger.warning(
                "request.slow method=%s key=%s status=%d seconds=%.6f memcached=%.6f"
                " disk=%.6f rest=%.6f left_out=%d",
                method,
                escape_path(path.removeprefix("/"), _FIELD_LENGTH_MAX),
                int(status[:3]),
                *shares,
            )


class CommandLog(SlowLimit):
    """Logs slow commands; for one thread at a time, except `set_threshold`."""

    def __init__(
        self,
        seconds: float,
        waited_since: Callable[[int], tuple[int, int]],
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Set what is logged.

        Args:
            seconds: Commands that take longer are logged; 0 = none.
            waited_since: Returns the times for disk and memcached, as `Cache` does.
            timer: Seconds, monotonic.
        """
        super().__init__(seconds, clock=timer)
        self._waited_since = waited_since

    def failed(self, error: BaseException) -> None:
        """Log a bug."""
        _logger.error("memcache.failed command=%s", "-", exc_info=error)

    def add(
        self,
        remote: str,
        name: str,
        key: bytes,
        result: str,
        started_ns: int,
        took_ns: int,
    ) -> None:
        """
        Log a command that was slow, or count it as left out.

        Args:
            remote: The address of the client; empty if it has none.
            name: Of the command.
            key: Empty if it has none.
            result: As the metrics name it.
            started_ns: By `time.perf_counter_ns`.
            took_ns: The duration, in nanoseconds.
        """
        shares = self.shares(took_ns, *self._waited_since(started_ns))
        if shares is not None:
            _logger.warning(
                "command.slow remote=%s command=%s key=%s result=%s seconds=%.6f"
                " memcached=%.6f disk=%.6f rest=%.6f left_out=%d",
                escape_path(remote, _FIELD_LENGTH_MAX) or "-",
                name,
                escape_path(key.decode("latin-1"), _FIELD_LENGTH_MAX),
                result,
                *shares,
            )
