"""
An end for connections on which nothing moves: bjoern itself never closes one.

For an instance without nginx in front, which has time-outs of its own. A thread looks at
every connection a few times in each period; it sleeps between handfuls, so that requests
do not wait for it.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Final

from volcache.web.connections import accepted, is_silent, shut

_log: Final = logging.getLogger(__name__)
_LOOKS_A_PERIOD: Final = 4
_HANDFUL: Final = 32
_PAUSE_SECONDS: Final = 0.002


class IdleReaper:
    """Closes silent connections until it is stopped."""

    def __init__(self, listener: socket.socket, idle_timeout: float) -> None:
        """Start at once; `idle_timeout` in seconds, more than 0."""
        self._listener = listener
        self._quiet_ms = max(1, round(idle_timeout * 1000))
        self._interval = idle_timeout / _LOOKS_A_PERIOD
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                closed = self._look()
            except (
                OSError
            ) as error:  # Out of descriptors: the next look may be luckier.
                _log.warning("reaper.failed error=%r", str(error))
                continue
            if closed:
                _log.info("reaper.closed connections=%d", closed)

    def _look(self) -> int:
        """Look at every connection once; return how many were closed."""
        closed = 0
        for number, connection in enumerate(accepted(self._listener), 1):
            if is_silent(connection, quiet_ms=self._quiet_ms):
                shut(connection, socket.SHUT_RDWR)
                closed += 1
            if number % _HANDFUL == 0 and self._stopped.wait(_PAUSE_SECONDS):
                break
        return closed

    def stop(self) -> None:
        """Return when the thread has ended."""
        self._stopped.set()
        self._thread.join()
