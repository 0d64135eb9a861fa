"""
Signals: SIGTERM and SIGINT stop a server, SIGHUP lets it read its settings again.

They are blocked in all threads. The main thread waits for them with sigtimedwait, while
other threads serve.
"""

from __future__ import annotations

import ctypes
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_WATCH_SECONDS: Final = 0.5
# For requests in progress.
DRAIN_SECONDS: Final = 3.0
STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
# More than sigset_t of any libc has.
_SIGSET_BYTES: Final = 256


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """
    Block SIGTERM and SIGINT; those that arrive wait for `wait_for_stop`.

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
    Block SIGHUP until the process ends; those that arrive wait for `wait_for_stop`.

    Main thread only, before other threads start and before `stop_signals_blocked`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # For threads that do not block it. A blocked signal stays pending even if ignored, but
    # to ignore it once more would discard it.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def wait_for_stop(on_hangup: Callable[[], None]) -> None:
    """
    Wait for SIGTERM or SIGINT; main thread only.

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
