"""The slow log of commands: values, users and passwords are never written."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.request_log import SlowLimit
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
_FIELD_LENGTH_MAX: Final = 1000  # Characters of a line.


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
