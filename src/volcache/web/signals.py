"""
Signals that wait for the stopper instead of striking, and what stands ready for them.

For the whole process, and for threads started later; knows nothing of bjoern.
"""

from __future__ import annotations

import ctypes
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

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
