"""
The thread that executes commands of memcached clients that may take long.

They are executed one after the other: C executes them (front/calls.c), too, and asks the
`Service` for what only Python does. The thread also does what is due at a time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from volcache.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.service import Service

# A time may be years away.
_SLEEP_SECONDS_MAX: Final = 86_400.0


class Caller:
    """The thread; from `start` until the loops have ended."""

    def __init__(self, service: Service, serve_call: Callable[[float], bool]) -> None:
        """
        Prepare.

        Args:
            service: What has something to do at a time.
            serve_call: `Server.serve_call`.
        """
        self._service = service
        self._serve_call = serve_call
        self._has_ended = False
        self._started = 0.0  # 0: it waits
        self._thread = Background("memcache", self._turn, lambda: self._has_ended)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, if it was started; the loops end."""
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_failing(self) -> bool:
        """Whether the last turn raised, because of a bug."""
        return self._thread.failing_since > 0

    def stalled_seconds(self) -> float:
        """Return for how long a turn has taken, or all turns have failed; 0 if it waits."""
        started = self._thread.failing_since or self._started
        return time.monotonic() - started if started else 0.0

    def _turn(self) -> None:
        """Wait for a call or a time, and do what there is to do."""
        self._started = 0.0
        seconds = self._service.seconds_to_flush()
        timeout = -1.0 if seconds is None else min(seconds, _SLEEP_SECONDS_MAX)
        # After a failure, the end of a turn tells whether it goes on.
        self._has_ended = self._serve_call(0 if self.is_failing else timeout)
        self._started = 0.0 if self._has_ended else time.monotonic()
        self._service.flush_if_due()
