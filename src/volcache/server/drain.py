"""
Graceful shutdown: from SIGTERM or SIGINT to the end of bjoern's loop.

bjoern stops by itself on SIGINT only: libev's handler makes it stop accepting, and its
loop returns when the last connection is closed. Idle keep-alive connections would keep it
running without end, a second SIGINT would kill it, and SIGTERM kills it at once.
Therefore:

1. Both signals are blocked while serving. The drainer, a thread, waits for them with
   sigtimedwait.
2. On the first signal the drainer raises one SIGINT, unblocked for that moment, as soon
   as libev's handler is installed. sigaction tells when: the handler of SIGINT is
   Python's before bjoern's loop, libev's while bjoern accepts, and the default
   afterwards. (Ignoring SIGINT before the loop would be easier to detect, but it would
   discard a pending signal.)
3. It shuts down the listening socket and, repeatedly, the reading side of the idle
   connections; bjoern closes those. Requests in progress are read and answered.
4. At the deadline it shuts down the remaining connections in both directions.

Signals that arrive later stay pending and are discarded at the end. SIGHUP, if it is
handled, is taken by the same thread.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from volcache.background import Background
from volcache.server.connections import accepted, is_idle, shut

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

_logger: Final = logging.getLogger(__name__)

# How long a connection must be silent after a response to count as idle; more than a
# client takes to continue after `100 Continue`.
_QUIET_MS: Final = 200
_WATCH_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.05
_LATE_PAUSE_SECONDS: Final = 0.005
_STEP_SECONDS: Final = 0.001
# Descriptors released when the drain starts: without a free one, a process cannot list
# its connections.
_RESERVE: Final = 4

# For requests in progress.
DRAIN_SECONDS: Final = 3.0
STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
# More than struct sigaction and sigset_t of any libc have.
_SIGACTION_BYTES: Final = 512
_SIGSET_BYTES: Final = 256


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """
    Block SIGTERM and SIGINT; those that arrive wait for the drainer.

    Threads started inside inherit the mask. Around opening and closing as well, it keeps
    a second signal from killing a process that is stopping. Signals that are pending at
    the outermost end are discarded. May be nested.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        if not before >= STOP_SIGNALS:
            while signal.sigtimedwait(STOP_SIGNALS, 0) is not None:
                pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_hangups() -> None:
    """
    Block SIGHUP until the process ends; those that arrive wait for the drainer.

    Main thread only, before other threads start and before `stop_signals_blocked`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # For threads that do not block it. A blocked signal stays pending even if ignored, but
    # to ignore it once more would discard it.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def wait_for_stop(on_hangup: Callable[[], None]) -> None:
    """
    Wait for SIGTERM or SIGINT without bjoern; main thread only.

    Requires `block_hangups`, and to be inside of `stop_signals_blocked`.

    Args:
        on_hangup: Called on SIGHUP; must not raise.
    """
    wanted = STOP_SIGNALS | {signal.SIGHUP}
    while True:
        taken = take_signal(wanted, _WATCH_SECONDS)
        # SIGHUP has the lowest number, so the kernel hands it out first.
        if taken in STOP_SIGNALS or signal.sigtimedwait(STOP_SIGNALS, 0) is not None:
            return
        if taken == signal.SIGHUP:
            on_hangup()


class _Phase(Enum):
    """The phases of bjoern's loop."""

    BEFORE = "not entered"
    ACCEPTING = "accepting"
    ENDING = "not accepting"


@dataclass(eq=False)
class Drainer:
    """The thread that waits for a signal and then drains bjoern; see `serve`."""

    listener: socket.socket
    drain_seconds: float
    owns_listener: bool
    on_draining: Callable[[], None]
    on_hangup: Callable[[], None] | None

    def __post_init__(self) -> None:
        """Begin without a signal."""
        self._is_requested = False
        self._signals = STOP_SIGNALS | ({signal.SIGHUP} if self.on_hangup else set())
        self._finished = threading.Event()
        self._python_handler = 0
        self._reserve: list[int] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """
        Let SIGTERM and SIGINT end the bjoern loop that runs inside; main thread only.

        At the end the mask and the handlers of both signals are as before.
        """
        thread = Background("drainer", self._run, self._finished.is_set)
        with ExitStack() as stack:
            stack.enter_context(stop_signals_blocked())
            stack.callback(self._release_reserve)
            self._reserve += (os.open(os.devnull, os.O_RDONLY) for _ in range(_RESERVE))
            stack.enter_context(self._handlers())
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._finished.set)
            yield

    @contextmanager
    def _handlers(self) -> Iterator[None]:
        """
        Install the handlers that the drainer relies on.

        Both signals are blocked, but a thread that was started before may receive
        SIGTERM; then this handler runs in the main thread, from bjoern's timer.
        """

        def request_stop(_number: int, _frame: FrameType | None) -> None:
            self._is_requested = True  # Only this: an exception here crashes bjoern.

        # Ignoring a signal discards a pending one, so a pending SIGINT is taken first.
        if signal.sigtimedwait({signal.SIGINT}, 0) is not None:
            self._is_requested = True
        before = {
            number: signal.signal(number, request_stop)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._python_handler = _handler_address(signal.SIGINT)
        try:
            yield
        finally:
            for number, handler in before.items():
                # None is a handler that was not installed by Python.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _run(self) -> None:
        if self._wait_for_signal():
            self._is_requested = True  # Also if the stop raises: it is tried again.
            self._stop()

    def _wait_for_signal(self) -> bool:
        """Return True on a signal, False if the loop has ended without one."""
        while not self._finished.is_set():
            # In the ending phase a thread without the mask has received the signal.
            if self._is_requested or self._phase() is _Phase.ENDING:
                return True
            taken = take_signal(self._signals, _WATCH_SECONDS)
            if taken in STOP_SIGNALS:
                return True
            # SIGHUP has the lowest number, so the kernel hands it out first: many of them
            # must not keep a stop waiting.
            if signal.sigtimedwait(STOP_SIGNALS, 0) is not None:
                return True
            if taken == signal.SIGHUP and self.on_hangup is not None:
                self.on_hangup()
        return False

    def _stop(self) -> None:
        """Drain: returns when the loop has ended, soon after the deadline at the latest."""
        started = time.monotonic()
        self.on_draining()
        _logger.info("stop.started drain_seconds=%g", self.drain_seconds)
        self._interrupt()
        self._release_reserve()
        if self.owns_listener:
            shut(self.listener, socket.SHUT_RDWR)
        cut = 0
        pause = 0.0
        while not self._finished.wait(pause):
            scanned = time.monotonic()
            elapsed = scanned - started
            # The second half is for clients that send requests without a pause: they
            # are idle only for a moment, so the scans are frequent.
            is_late = elapsed >= self.drain_seconds / 2
            if elapsed >= self.drain_seconds:
                cut += self._cut_all()
            else:
                self._shut_idle(0 if is_late else _QUIET_MS)
            pause = _LATE_PAUSE_SECONDS if is_late else _PAUSE_SECONDS
            # Scanning thousands of connections must leave time for the loop.
            pause = max(pause, 4 * (time.monotonic() - scanned))
        _logger.info(
            "stop.completed cut=%d seconds=%.2f", cut, time.monotonic() - started
        )

    def _interrupt(self) -> None:
        """Raise the one SIGINT, and wait until bjoern has stopped accepting."""
        while self._phase() is _Phase.BEFORE:
            if self._finished.wait(_STEP_SECONDS):
                return
        if self._phase() is _Phase.ACCEPTING:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.raise_signal(signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while self._phase() is _Phase.ACCEPTING:
            if self._finished.wait(_STEP_SECONDS):
                return

    def _phase(self) -> _Phase:
        """Return the phase of bjoern's loop, as the handler of SIGINT shows it."""
        handler = _handler_address(signal.SIGINT)
        if handler == self._python_handler:
            return _Phase.BEFORE
        return _Phase.ACCEPTING if handler else _Phase.ENDING

    def _shut_idle(self, quiet_ms: int) -> None:
        """Shut down the reading side of the idle connections."""
        with suppress(OSError):  # Out of descriptors: the next scan may succeed.
            for connection in accepted(self.listener):
                if is_idle(connection, quiet_ms=quiet_ms):
                    shut(connection, socket.SHUT_RD)

    def _cut_all(self) -> int:
        """Shut down the remaining connections; return how many there were."""
        cut = 0
        with suppress(OSError):
            for connection in accepted(self.listener):
                shut(connection, socket.SHUT_RDWR)
                cut += 1
        return cut

    def _release_reserve(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def take_signal(numbers: Collection[signal.Signals], seconds: float) -> int | None:
    """
    Wait for one of the signals, which the thread has blocked; return its number.

    Not `signal.sigtimedwait`: after a SIGSTOP that was longer than the timeout, CPython
    returns the number of a signal that was not sent.

    Args:
        numbers: Of the signals.
        seconds: The longest time to wait, rounded down to milliseconds.

    Returns:
        None if there was none, sooner if the process was stopped meanwhile.
    """
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    libc = ctypes.CDLL(None)
    for number in numbers:
        libc.sigaddset(wanted, int(number))
    timeout = _Timespec(int(seconds), int(seconds * 1000) % 1000 * 1_000_000)
    taken: int = libc.sigtimedwait(wanted, None, ctypes.byref(timeout))
    return taken if taken > 0 else None


def _handler_address(number: signal.Signals) -> int:
    """Return the address of a signal's handler, 0 for the default; from any thread."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if ctypes.CDLL(None).sigaction(int(number), None, action):
        raise OSError(f"sigaction of {number!r} failed")
    # The handler is the first field.
    return ctypes.c_void_p.from_buffer(action).value or 0
