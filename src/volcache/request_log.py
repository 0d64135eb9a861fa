"""
Lines about requests, for HTTP and the memcached protocol alike: access log and slow log.

A line of the access log has nginx's format `main` with a few fields more, or is JSON. What
reads the lines of one protocol reads those of the other. Everything that comes from a
client is escaped, so no client can end a field or a line.

A disk that hangs makes every request slow, so the number of lines of a slow log is limited;
a line tells how many were left out before it.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.histogram import NS_PER_SECOND
from volcache.log_writer import LineTime
from volcache.text import escape_header, escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
SLOW_LINES_PER_SECOND_MAX: Final = 10
_FIELD_LENGTH_MAX: Final = 200  # Characters of a line.
_NEVER_NS: Final = 1 << 63


def word(text: str) -> str:
    """Return a field without quotes; `-` if it is absent."""
    return escape_path(text, _FIELD_LENGTH_MAX) or "-"


def quoted(text: str) -> str | None:
    """Return a field in quotes; None if it is absent."""
    return escape_header(text, _FIELD_LENGTH_MAX) if text else None


class AccessLine(NamedTuple):
    """The fields of a line, in its order, escaped; None: absent."""

    ns: int  # the duration, which is last in the line
    remote: str
    method: str
    uri: str
    protocol: str
    status: int
    bytes: int
    referer: str | None = None
    agent: str | None = None
    forwarded: str | None = None
    cache: str | None = None
    position: str | None = None
    result: str | None = None  # of the memcached protocol only


class AccessLines:
    """Writes the access log; for one thread."""

    def __init__(
        self,
        add: Callable[[str], None],
        *,
        as_json: bool,
        clock: Callable[[], int],
    ) -> None:
        """
        Write no line yet.

        Args:
            add: Gets a line with its line feed; must not block.
            as_json: Write one JSON object per line.
            clock: Nanoseconds since the epoch.
        """
        self._add = add
        self._format = self._as_json if as_json else self._as_text
        self._clock = clock
        self._time = LineTime()

    def write(self, line: Callable[[], AccessLine], now_ns: int = 0) -> None:
        """
        Write a line; never raises.

        Args:
            line: Returns it.
            now_ns: The time of the line, nanoseconds since the epoch; 0 = now.
        """
        try:
            self._add(self._format(line(), now_ns or self._clock()) + "\n")
        except Exception:
            _logger.exception("access.line_failed")

    def _as_text(self, line: AccessLine, now_ns: int) -> str:
        """Return a line in nginx's format `main`, with three or four fields more."""
        result = f" result={line.result}" if line.result else ""
        return (
            f"{line.remote} - - [{self._time.text(now_ns)}]"
            f' "{line.method} {line.uri} {line.protocol}" {line.status} {line.bytes}'
            f' "{line.referer or "-"}" "{line.agent or "-"}" "{line.forwarded or "-"}"'
            f" cache={line.cache or '-'} position={line.position or '-'}"
            f"{result} seconds={line.ns / NS_PER_SECOND:.6f}"
        )

    def _as_json(self, line: AccessLine, now_ns: int) -> str:
        """Return a JSON object; absent fields are null."""
        fields: dict[str, Any] = {"time": self._time.json(now_ns), **line._asdict()}
        ns = fields.pop("ns")
        if line.result is None:
            del fields["result"]
        return json.dumps({**fields, "seconds": round(ns / NS_PER_SECOND, 6)})


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
