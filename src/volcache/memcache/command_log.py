"""
The lines about commands: the access log, which HTTP shares, and the slow log.

A line of the access log has the fields and the order of one about a request, so what reads
those reads these: the command stands in place of the method, the key in that of the path,
`memcache` in that of the version, and the status is what HTTP answers in the same case. A
field more has the result. Everything that comes from a client is escaped, so no client
can end a field or a line. Values, users and passwords are never written.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.histogram import NS_PER_SECOND
from volcache.log_writer import LineTime
from volcache.logs import SLOW_LINES_PER_SECOND_MAX, LineLimit
from volcache.memcache.commands import Get, Simple, Status
from volcache.monitoring.commands import ERROR
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.commands import Command, Result

_logger: Final = logging.getLogger(__name__)
_WORD_LENGTH_MAX: Final = 200  # Characters of a line.
_KEY_LENGTH_MAX: Final = 1000
_NEVER_NS: Final = 1 << 63
_ALWAYS_NS: Final = -1
_PROTOCOL: Final = "memcache"
# By value: the hash of a member of an enum is a call in Python.
_STATUSES: Final = {
    Status.HIT.value: 200,
    Status.MISS.value: 404,
    Status.STORED.value: 201,
    Status.NOT_STORED.value: 412,
    Status.EXISTS.value: 412,
    Status.NOT_FOUND.value: 404,
    Status.NON_NUMERIC.value: 400,
    Status.DELETED.value: 204,
    Status.TOUCHED.value: 204,
    Status.OK.value: 200,
    Status.AUTHENTICATED.value: 200,
    Status.DENIED.value: 401,
    Status.UNAUTHORIZED.value: 401,
    Status.FORBIDDEN.value: 403,
    Status.BAD_KEY.value: 400,
    Status.TOO_LARGE.value: 413,
    Status.FAILED.value: 503,
    ERROR: 400,
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
        self._add = add
        self._format = self._as_json if as_json else self._as_text
        self._clock = clock
        self._time = LineTime()
        self._limit = LineLimit(SLOW_LINES_PER_SECOND_MAX, timer)
        self.set_slow(slow_seconds)

    def set_slow(self, seconds: float) -> None:
        """Log commands that take longer from now on; 0 = none. From any thread."""
        self._slow_ns = round(seconds * NS_PER_SECOND) or _NEVER_NS
        self.threshold_ns = _ALWAYS_NS if self._add else self._slow_ns

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
        Log a command as far as it is to be logged; never raises.

        Args:
            remote: The address of the client; empty if it has none.
            command: What was asked for.
            result: What became of it.
            started_ns: By `time.perf_counter_ns`.
            took_ns: The duration, in nanoseconds.
            size: Bytes of the reply.
        """
        try:
            if took_ns > self._slow_ns:
                self._log_slow(remote, command, result, started_ns, took_ns)
            if self._add is not None:
                self._add(self._format(remote, command, result, took_ns, size) + "\n")
        except Exception:
            _logger.exception("access.line_failed")

    def _log_slow(
        self, remote: str, command: Command, result: Result, started_ns: int, ns: int
    ) -> None:
        left_out = self._limit.left_out()
        if left_out is None:
            return
        disk_ns, memcached_ns = self._waited_since(started_ns)
        # Other threads use them, too: what they waited for is no part of this command.
        disk_ns = min(disk_ns, ns)
        memcached_ns = min(memcached_ns, ns - disk_ns)
        _logger.warning(
            "command.slow remote=%s command=%s key=%s result=%s seconds=%.6f"
            " memcached=%.6f disk=%.6f rest=%.6f left_out=%d",
            _word(remote),
            _word(command.name),
            _key(command),
            result_of(command, result),
            ns / NS_PER_SECOND,
            memcached_ns / NS_PER_SECOND,
            disk_ns / NS_PER_SECOND,
            (ns - disk_ns - memcached_ns) / NS_PER_SECOND,
            left_out,
        )

    def _as_text(
        self, remote: str, command: Command, result: Result, ns: int, size: int
    ) -> str:
        cache, position = _cache_and_position(command, result)
        name = result_of(command, result)
        return (
            f"{_word(remote)} - - [{self._time.text(self._clock())}]"
            f' "{_word(command.name)} {_uri(command)} {_PROTOCOL}"'
            f' {_STATUSES[name]} {size} "-" "-" "-"'
            f" cache={cache or '-'} position={position or '-'}"
            f" result={name} seconds={ns / NS_PER_SECOND:.6f}"
        )

    def _as_json(
        self, remote: str, command: Command, result: Result, ns: int, size: int
    ) -> str:
        cache, position = _cache_and_position(command, result)
        name = result_of(command, result)
        return json.dumps(
            {
                "time": self._time.json(self._clock()),
                "remote": _word(remote),
                "method": _word(command.name),
                "uri": _uri(command),
                "protocol": _PROTOCOL,
                "status": _STATUSES[name],
                "bytes": size,
                "referer": None,
                "agent": None,
                "forwarded": None,
                "cache": cache,
                "position": position,
                "result": name,
                "seconds": round(ns / NS_PER_SECOND, 6),
            }
        )


def _cache_and_position(
    command: Command, result: Result
) -> tuple[str | None, str | None]:
    """Return what X-Cache and X-Position of a response over HTTP would be."""
    record = result.record
    if record is None:
        return ("MISS" if result.status is Status.MISS else None), None
    source = record.source if isinstance(command, Get) else None
    return source, f"{record.volume},{record.offset},{record.size}"


def _word(text: str) -> str:
    return escape_path(text, _WORD_LENGTH_MAX) or "-"


def _key(command: Command) -> str:
    """Return the key, encoded as in a request line; empty without one."""
    key: bytes = getattr(command, "key", b"")
    return escape_path(key.decode("latin-1"), _KEY_LENGTH_MAX)


def _uri(command: Command) -> str:
    """Return the key as a path; `-` if the command has none."""
    return f"/{_key(command)}" if hasattr(command, "key") else "-"
