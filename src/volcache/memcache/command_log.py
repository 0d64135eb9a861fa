"""
The lines about commands: the access log, which HTTP shares, and the slow log.

A line of the access log has the fields and the order of one about a request over HTTP: the
command stands in place of the method, the key in that of the path, `memcache` in that of
the version, and the status is what HTTP answers in the same case. A field more has the
result. Values, users and passwords are never written.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from volcache.request_log import AccessLine, AccessLines, SlowLimit, word
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
_KEY_LENGTH_MAX: Final = 1000  # Characters of a line.
_ALWAYS_NS: Final = -1
_PROTOCOL: Final = "memcache"
# What HTTP answers in the same case, by result.
_STATUSES: Final = {
    result: status
    for status, results in {
        200: ("hit", "ok", "authenticated"),
        201: ("stored",),
        204: ("deleted", "touched"),
        400: ("non_numeric", "bad_key", "error"),
        401: ("denied", "unauthorized"),
        403: ("forbidden",),
        404: ("miss", "not_found"),
        412: ("not_stored", "exists"),
        413: ("too_large",),
        503: ("failed",),
    }.items()
    for result in results
}


class CommandLog:
    """
    Writes the lines; from any thread.

    `threshold_ns`: only commands that took longer need be passed to `add`. If all lines
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
        self._lock = threading.Lock()
        self.set_slow(slow_seconds)

    def set_slow(self, seconds: float) -> None:
        """Log commands that take longer from now on; 0 = none. From any thread."""
        self._slow.set_threshold(seconds)
        self.threshold_ns = _ALWAYS_NS if self._lines else self._slow.threshold_ns

    def failed(self, error: BaseException) -> None:
        """Log a bug in what is due after a command."""
        _logger.error("memcache.failed command=%s", "-", exc_info=error)

    def add(  # noqa: PLR0913 - What a line has.
        self,
        remote: str,
        name: str,
        key: bytes | None,
        result: str,
        *,
        started_ns: int,
        took_ns: int,
        size: int,
        position: tuple[int, int, int] | None,
        source: str = "DISK",
    ) -> None:
        """
        Log a command as far as it is to be logged.

        Args:
            remote: The address of the client; empty if it has none.
            name: Of the command.
            key: None if it has none.
            result: As the metrics name it.
            started_ns: By `time.perf_counter_ns`.
            took_ns: The duration, in nanoseconds.
            size: Bytes of the reply.
            position: Volume, offset and size of the record that was read or stored.
            source: Where it was read.
        """
        with self._lock:
            if took_ns > self._slow.threshold_ns:
                self._add_slow(remote, name, key, result, started_ns, took_ns)
            if self._lines is None:
                return
            # As a response would have them.
            cache = {"hit": source, "miss": "MISS"}.get(result)
            self._lines.write(
                lambda: AccessLine(
                    took_ns,
                    word(remote),
                    word(name),
                    "-" if key is None else f"/{_escaped(key)}",
                    _PROTOCOL,
                    _STATUSES[result],
                    size,
                    cache=cache,
                    position="{},{},{}".format(*position) if position else None,
                    result=result,
                )
            )

    def _add_slow(
        self,
        remote: str,
        name: str,
        key: bytes | None,
        result: str,
        started_ns: int,
        took_ns: int,
    ) -> None:
        shares = self._slow.shares(took_ns, *self._waited_since(started_ns))
        if shares is not None:
            _logger.warning(
                "command.slow remote=%s command=%s key=%s result=%s seconds=%.6f"
                " memcached=%.6f disk=%.6f rest=%.6f left_out=%d",
                word(remote),
                word(name),
                _escaped(key or b""),
                result,
                *shares,
            )


def _escaped(key: bytes) -> str:
    """Return a key, encoded as in a request line."""
    return escape_path(key.decode("latin-1"), _KEY_LENGTH_MAX)
