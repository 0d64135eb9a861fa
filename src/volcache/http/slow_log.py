"""The slow log: one line for each request above a threshold, with where the time went."""

from __future__ import annotations

import logging
from typing import Final

from volcache.request_log import SlowLimit
from volcache.text import escape_path

_logger: Final = logging.getLogger(__name__)
_KEY_LENGTH_MAX: Final = 1000  # characters of a line


class SlowLog(SlowLimit):
    """Logs slow requests; for the thread that answers requests."""

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
                escape_path(path.removeprefix("/"), _KEY_LENGTH_MAX),
                int(status[:3]),
                *shares,
            )
