"""
The lines about commands: the access log, which HTTP shares, and the slow log.

A line of the access log has the fields and the order of one about a request over HTTP: the
command stands in place of the method, the key in that of the path, `memcache` in that of
the version, and the status is what HTTP answers in the same case. A field more has the
result. Values, users and passwords are never written.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.memcache.commands import Get, Simple, Status
from volcache.monitoring.commands import ERROR
from volcache.request_log import AccessLine, AccessLines, SlowLimit, word
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.commands import Command, Result

_logger: Final = logging.getLogger(__name__)
_KEY_LENGTH_MAX: Final = 1000  # Characters of a line.
_ALWAYS_NS: Final = -1
_PROTOCOL: Final = "memcache"
_STATUSES: Final = {
    result: status
    for status, results in {
        200: (Status.HIT, Status.OK, Status.AUTHENTICATED),
        201: (Status.STORED,),
        204: (Status.DELETED, Status.TOUCHED),
        400: (Status.NON_NUMERIC, Status.BAD_KEY),
        401: (Status.DENIED, Status.UNAUTHORIZED),
        403: (Status.FORBIDDEN,),
        404: (Status.MISS, Status.NOT_FOUND),
        412: (Status.NOT_STORED, Status.EXISTS),
        413: (Status.TOO_LARGE,),
        503: (Status.FAILED,),
    }.items()
    for result in results
}


def result_of(command: Command, result: Result) -> str:
    """Return the result of a command as metrics and logs name it."""
    if type(command) is Simple and command.is_error:
        return ERROR
    # `value` is a property in Python: 0.1 us more for each command.
    return result.status._value_


class CommandLog:
    """
    Writes the lines; for one thread.

    `threshold_ns`: only commands that took longer need be passed to `done`. If all lines
    are off, none does.
    """

    def __init__(
        self,
        slow_seconds: float,
        waited_since: Callable[[int], tuple[int, int]],
        *,
        add: Callable[[str], None] | None = None,
        as_json: bool = False,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Set what is logged.

        Args:
            slow_seconds: Commands that take longer go to the slow log; 0 = none.
            waited_since: Returns the times for disk and memcached, as `Cache` does.
            add: Takes a line of the access log with its line feed, and must not block;
                None = no access log.
            as_json: Write one JSON object per line of the access log.
            clock: Nanoseconds since the epoch.
            timer: Seconds, monotonic.
        """
        self._waited_since = waited_since
        self._lines = AccessLines(add, as_json=as_json, clock=clock) if add else None
        self._slow = SlowLimit(slow_seconds, clock=timer)
        self.set_slow(slow_seconds)

    def set_slow(self, seconds: float) -> None:
        """Log commands that take longer from now on; 0 = none. From any thread."""
        self._slow.set_threshold(seconds)
        self.threshold_ns = _ALWAYS_NS if self._lines else self._slow.threshold_ns

    def done(
        self,
        remote: str,
        command: Command,
        result: Result,
        started_ns: int,
        took_ns: int,
        size: int,
    ) -> None:
        """
        Log a command as far as it is to be logged.

        Args:
            remote: The address of the client; empty if it has none.
            command: What was asked for.
            result: What became of it.
            started_ns: By `time.perf_counter_ns`.
            took_ns: The duration, in nanoseconds.
            size: Bytes of the reply.
        """
        if took_ns > self._slow.threshold_ns:
            shares = self._slow.shares(took_ns, *self._waited_since(started_ns))
            if shares is not None:
                _logger.warning(
                    "command.slow remote=%s command=%s key=%s result=%s seconds=%.6f"
                    " memcached=%.6f disk=%.6f rest=%.6f left_out=%d",
                    word(remote),
                    word(command.name),
                    _key(command),
                    result_of(command, result),
                    *shares,
                )
        if self._lines is not None:
            self._lines.write(lambda: _line(remote, command, result, took_ns, size))


def _line(
    remote: str, command: Command, result: Result, ns: int, size: int
) -> AccessLine:
    """Return the line of a command; cache and position as a response would have them."""
    record, name = result.record, result_of(command, result)
    cache = position = None
    if record is not None:
        cache = record.source if isinstance(command, Get) else None
        position = f"{record.volume},{record.offset},{record.size}"
    elif result.status is Status.MISS:
        cache = "MISS"
    return AccessLine(
        ns,
        word(remote),
        word(command.name),
        f"/{_key(command)}" if hasattr(command, "key") else "-",
        _PROTOCOL,
        400 if name == ERROR else _STATUSES[result.status],
        size,
        cache=cache,
        position=position,
        result=name,
    )


def _key(command: Command) -> str:
    """Return the key, encoded as in a request line; empty without one."""
    key: bytes = getattr(command, "key", b"")
    return escape_path(key.decode("latin-1"), _KEY_LENGTH_MAX)
