"""Threads that work in the background: no error ends them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)
# After a call that raised: the next one may raise for the same reason.
_PAUSE_SECONDS: Final = 0.1

# How often the work of a thread has raised since the process began, by its name.
failures: Final[Counter[str]] = Counter()


def _log(name: str, error: Exception) -> None:
    """Log the 1st, 2nd, 4th, 8th failure of a thread, and so on."""
    count = failures[name]
    if count & (count - 1) == 0:
        _logger.error("thread.failed name=%s count=%d", name, count, exc_info=error)


class Background(threading.Thread):
    """
    A thread that calls a function again and again.

    What the function raises is counted and logged, and after a tenth of a second it is
    called again. The interpreter does not wait for the thread when it exits.

    Attributes (read-only for others):
        failing_since: When the calls began to raise, by `time.monotonic`; 0: the last one
            did not.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        is_over: Callable[[], bool],
        log: Callable[[str, Exception], None] = _log,
    ) -> None:
        """
        Prepare; `start` begins.

        Args:
            name: Of the thread.
            work: Waits for something to do, and does it.
            is_over: Returns whether to end, before each call; must not raise.
            log: Logs what was raised.
        """
        super().__init__(name=name, daemon=True)
        self._work, self._is_over, self._log_failure = work, is_over, log
        self.failing_since = 0.0

    def run(self) -> None:
        """Work until it is over."""
        while not self._is_over():
            try:
                self._work()
                self.failing_since = 0.0
            except Exception as error:  # noqa: BLE001 - See the class.
                self.failing_since = self.failing_since or time.monotonic()
                failures[self.name] += 1
                self._log_failure(self.name, error)
                time.sleep(_PAUSE_SECONDS)
