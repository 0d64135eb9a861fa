"""A thread with one loop over epoll: it waits for sockets and for times, and has turns."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)

IN: Final = select.EPOLLIN
_EVENTS: Final = 64
# A loop that always has something to do gives others this pause that often. System calls
# release Python's lock too briefly for another thread to wake up and get it, and each
# release restarts the interval after which a thread that waits may demand it.
_BUSY_SECONDS: Final = 0.001
_REST_SECONDS: Final = 0.00005
# epoll accepts milliseconds in 32 bits; a time may be years away.
_SLEEP_SECONDS_MAX: Final = 86_400.0
# After a turn that raised: the next one may raise for the same reason.
_FAILURE_PAUSE: Final = 0.1
_LOG_SECONDS: Final = 10.0


class EventLoop(ABC):
    """Has its turns in its own thread, from `start` until it is over."""

    def __init__(self, name: str) -> None:
        """Prepare the thread; the name is that of the thread."""
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, IN)
        # Functions to call, and when, by the monotonic clock.
        self._timers: dict[Callable[[], None], float] = {}
        self._next_log: dict[str, float] = {}  # by event
        self._turn_started = 0.0  # 0: waits for epoll
        self._failing_since = 0.0  # 0: the last turn did not raise
        self._rested = 0.0  # when it waited last
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- From other threads ------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def set_pulse(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at an interval, in the thread; before `start`."""

        def pulse() -> None:
            self._timers[pulse] = time.monotonic() + seconds
            function()

        self._timers[pulse] = 0.0

    def stalled_seconds(self) -> float:
        """Return for how long a turn has taken, or all turns have failed; 0 if it waits."""
        started = self._failing_since or self._turn_started
        return time.monotonic() - started if started else 0.0

    @property
    def is_failing(self) -> bool:
        """Whether the last turn raised, because of a bug."""
        return self._failing_since > 0

    def _wake(self) -> None:
        with suppress(OSError):  # The loop has ended.
            os.eventfd_write(self._wake_fd, 1)

    def _join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.ident is None:
            self._run()  # It was never started.
        else:
            self._thread.join()

    # --- The loop ----------------------------------------------------------------------

    @abstractmethod
    def _is_over(self) -> bool:
        """Whether the loop is to end."""

    @abstractmethod
    def _timeout(self, now: float) -> float:
        """Return the most seconds to wait for events; below 0: until a timer is due."""

    @abstractmethod
    def _turn(self, events: list[tuple[int, int]]) -> None:
        """Do what is to be done after events: descriptors and their masks."""

    @abstractmethod
    def _end(self) -> None:
        """Close what is open."""

    def _run(self) -> None:
        try:
            while not self._is_over():
                try:
                    self._turn(self._wait())
                    if self._timers:
                        self._call_timers()
                    self._failing_since = 0.0
                except Exception:
                    self._failing_since = self._failing_since or time.monotonic()
                    if self._may_log("failed"):
                        _logger.exception("memcache.failed command=%s", "-")
                    time.sleep(_FAILURE_PAUSE)
        finally:
            self._turn_started = 0.0
            self._end()
            self._epoll.close()
            os.close(self._wake_fd)

    def _wait(self) -> list[tuple[int, int]]:
        """Wait for events; return them."""
        self._turn_started = 0.0
        asked = time.monotonic()
        if asked - self._rested > _BUSY_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = asked
        timeout = self._timeout(asked)
        if self._timers:
            due = min(_SLEEP_SECONDS_MAX, max(0.0, min(self._timers.values()) - asked))
            timeout = due if timeout < 0 else min(timeout, due)
        # After a failure, the end of a turn tells whether it goes on.
        events = self._epoll.poll(0 if self._failing_since else timeout, _EVENTS)
        self._turn_started = time.monotonic()
        if self._turn_started - asked > _REST_SECONDS:
            self._rested = self._turn_started
        if (self._wake_fd, IN) in events:
            os.eventfd_read(self._wake_fd)
        return events

    def _call_timers(self) -> None:
        for function, due in list(self._timers.items()):
            if due <= self._turn_started:
                del self._timers[function]
                function()

    def _may_log(self, event: str) -> bool:
        now = time.monotonic()
        if now < self._next_log.get(event, 0.0):
            return False
        self._next_log[event] = now + _LOG_SECONDS
        return True
