"""
How serving ends: a signal in, a finished bjoern out.

bjoern ends by itself on SIGINT alone: the handler libev puts there makes it stop
accepting, and its loop returns when the last connection has closed. Idle keep-alive
connections would hold it for ever, a second SIGINT would kill it, and SIGTERM would
kill it at once. Therefore:

1. Both signals are blocked while serving, so that they strike nowhere. The stopper, a
   thread, takes them with sigtimedwait.
2. On the first, the stopper sends itself one SIGINT, unblocked for that moment, as soon
   as libev's handler is there. sigaction tells: SIGINT has Python's handler before
   bjoern's loop, another while bjoern accepts, and its default afterwards. (Ignoring it
   before the loop would be simpler to tell, but throws away a signal that waits.)
3. Then it closes the door (`shutdown` of the listening socket) and shuts down the
   reading side of connections that wait for a request, again and again; bjoern closes
   them. A request that is on its way is read and answered.
4. At the deadline it shuts down whatever is left, in both directions.

Signals that come in addition stay pending and are thrown away at the end.

SIGHUP, where somebody waits for it, is taken by the same thread on its way.

Signals that wait for the stopper instead of striking, and what stands ready for them.

For the whole process, and for threads started later; knows nothing of bjoern.
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
from enum import Enum
from typing import TYPE_CHECKING, Final

from volcache.server.connections import accepted, is_idle, shut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_logger: Final = logging.getLogger(__name__)

# How long a connection must have been silent after an answer to count as idle; more
# than a client needs to go on after `100 Continue`.
_QUIET_MS: Final = 200
_WATCH_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.05
_LATE_PAUSE_SECONDS: Final = 0.005
_STEP_SECONDS: Final = 0.001
# Descriptors given back when the end begins: a process that has run out of them could
# not look at its connections.
_RESERVE: Final = 4


@contextmanager
def drained_by_signal(
    listener: socket.socket,
    *,
    drain_seconds: float,
    owns_listener: bool,
    on_draining: Callable[[], None],
    on_hangup: Callable[[], None] | None = None,
) -> Iterator[None]:
    """
    Let SIGTERM and SIGINT end the bjoern loop that runs inside; main thread only.

    See `server.serve` for the arguments. Mask and handlers of both signals are as
    before at the end.
    """
    with ExitStack() as stack:
        stack.enter_context(stop_signals_held())
        stopper = _Drainer(
            listener,
            drain_seconds=drain_seconds,
            owns_listener=owns_listener,
            on_draining=on_draining,
            on_hangup=on_hangup,
        )
        stack.callback(stopper.close)
        stack.enter_context(_handlers(stopper))
        stopper.start()
        stack.callback(stopper.finish)
        yield


@contextmanager
def _handlers(stopper: _Drainer) -> Iterator[None]:
    """
    Set the handlers the stopper counts on.

    Both signals are blocked, but a thread that was started before the hold may catch
    SIGTERM; then this handler runs in the main thread, from bjoern's timer.
    """

    def ask(_number: int, _frame: FrameType | None) -> None:
        stopper.is_asked = True  # No more than that: raising here crashes bjoern.

    # To ignore a signal throws away one that is pending, so that is taken before.
    if signal.sigtimedwait({signal.SIGINT}, 0) is not None:
        stopper.is_asked = True
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, ask),
        signal.SIGINT: signal.signal(signal.SIGINT, ask),
    }
    stopper.python_handler = handler_address(signal.SIGINT)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not set from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class _Phase(Enum):
    """Where bjoern's loop stands."""

    BEFORE = "not entered"
    ACCEPTING = "accepting"
    ENDING = "no longer accepting"


class _Drainer:
    """The thread that waits for a signal and then ends bjoern."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        drain_seconds: float,
        owns_listener: bool,
        on_draining: Callable[[], None],
        on_hangup: Callable[[], None] | None,
    ) -> None:
        self.is_asked = False
        self._on_hangup = on_hangup
        self._signals = STOP_SIGNALS | ({signal.SIGHUP} if on_hangup else set())
        self._listener = listener
        self._drain_seconds = drain_seconds
        self._owns_listener = owns_listener
        self._on_draining = on_draining
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stopper", daemon=True)
        self.python_handler = 0
        self._reserve = [os.open(os.devnull, os.O_RDONLY) for _ in range(_RESERVE)]

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def finish(self) -> None:
        """Tell the thread that the loop has ended, and wait for it."""
        self._finished.set()
        self._thread.join()

    def close(self) -> None:
        """Give back the descriptors."""
        self._release_reserve()

    def _run(self) -> None:
        try:
            if self._wait_for_signal():
                self._stop()
        except Exception:
            _logger.exception("stop.failed")

    def _wait_for_signal(self) -> bool:
        """Return True on a signal, False when the loop has ended without one."""
        while not self._finished.is_set():
            # The phase without a signal: a thread from before the hold has caught it.
            if self.is_asked or self._phase() is _Phase.ENDING:
                return True
            taken = signal.sigtimedwait(self._signals, _WATCH_SECONDS)
            if taken is not None and taken.si_signo != signal.SIGHUP:
                return True
            if taken is not None and self._on_hangup is not None:
                self._on_hangup()
        return False

    def _stop(self) -> None:
        """End the loop: at once without connections, at the deadline at the latest."""
        started = time.monotonic()
        self._on_draining()
        _logger.info("stop.started drain_seconds=%g", self._drain_seconds)
        self._interrupt()
        self._release_reserve()
        if self._owns_listener:
            shut(self._listener, socket.SHUT_RDWR)
        cut = 0
        pause = 0.0
        while not self._finished.wait(pause):
            looked = time.monotonic()
            elapsed = looked - started
            # In the second half, clients that send one request after the other are
            # stopped between two of them, which is a short moment to meet.
            is_late = elapsed >= self._drain_seconds / 2
            if elapsed >= self._drain_seconds:
                cut += self._cut_all()
            else:
                self._shut_idle(0 if is_late else _QUIET_MS)
            pause = _LATE_PAUSE_SECONDS if is_late else _PAUSE_SECONDS
            # Looking at thousands of connections must not take the loop's time.
            pause = max(pause, 4 * (time.monotonic() - looked))
        _logger.info(
            "stop.completed cut=%d seconds=%.2f", cut, time.monotonic() - started
        )

    def _interrupt(self) -> None:
        """Send the one SIGINT, and wait until bjoern has stopped accepting."""
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
        """Return what the handler of SIGINT says of bjoern's loop."""
        handler = handler_address(signal.SIGINT)
        if handler == self.python_handler:
            return _Phase.BEFORE
        return _Phase.ACCEPTING if handler else _Phase.ENDING

    def _shut_idle(self, quiet_ms: int) -> None:
        """Shut down the reading side of connections that wait for a request."""
        with suppress(OSError):  # Out of descriptors: the next round may be luckier.
            for connection in accepted(self._listener):
                if is_idle(connection, quiet_ms=quiet_ms):
                    shut(connection, socket.SHUT_RD)

    def _cut_all(self) -> int:
        """Shut down every connection that is left, and count them."""
        cut = 0
        with suppress(OSError):
            for connection in accepted(self._listener):
                shut(connection, socket.SHUT_RDWR)
                cut += 1
        return cut

    def _release_reserve(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())


STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})

_SIGACTION_BYTES: Final = 512  # More than any libc's struct; the handler comes first.


@contextmanager
def stop_signals_held() -> Iterator[None]:
    """
    Keep SIGTERM and SIGINT waiting for the stopper.

    Threads started inside inherit it. Put around opening and closing as well, it keeps
    a second signal from killing what the first one has begun to end. What is still
    pending at the end is thrown away. May be nested.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        if not before >= STOP_SIGNALS:
            while signal.sigtimedwait(STOP_SIGNALS, 0) is not None:
                pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hold_hangups() -> None:
    """
    Keep SIGHUP from ending this process, for good, and waiting for the stopper.

    Main thread only, before others are started and before `stop_signals_held`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # For threads that do not block it. One that is blocked waits even if ignored.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def handler_address(number: signal.Signals) -> int:
    """Return where the handler of a signal is, 0 for its default; for any thread."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if ctypes.CDLL(None).sigaction(int(number), None, action):
        raise OSError(f"sigaction of {number!r} failed")
    return ctypes.c_void_p.from_buffer(action).value or 0
