"""
Keys that are pressed while a command shows something: for `q`, which ends it.

The terminal gives each key at once and does not show it; Ctrl-C and Ctrl-Z work. However
the command ends, but by SIGKILL, the terminal is put back as it was.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from volcache.cli.streams import exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_QUIT: Final = frozenset({"q", "Q"})
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"


def has_keyboard() -> bool:
    """Return whether standard input is a terminal; it may also be closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def show(screen: Callable[[], Iterable[str]], seconds: float) -> None:
    """
    Show lines over the last ones, until the user quits; main thread only.

    Args:
        screen: Returns lines that fit the terminal.
        seconds: Until they are shown again; a key does so at once.
    """
    with keyboard() as wait:
        while True:
            ended = [f"{line}{_TO_END_OF_LINE}\n" for line in screen()]
            text = "".join([_HOME, *ended, _TO_END_OF_SCREEN])
            print(text, end="", flush=True)
            if wait(seconds) in _QUIT:
                return


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """
    Yield a function that waits for a key, for a number of seconds; main thread only.

    It returns the character, or an empty string after that time. Without a terminal as
    standard input, or in the background, it only waits.
    """
    fd = _terminal()
    with exit_on_sigterm():
        if fd is None:
            yield _pause
            return
        before = termios.tcgetattr(fd)

        def suspend(*_: object) -> None:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
            os.kill(os.getpid(), signal.SIGSTOP)
            # Continued, perhaps in the background: then the terminal is the shell's.
            if _terminal() is not None:
                tty.setcbreak(fd, termios.TCSADRAIN)

        handler = signal.signal(signal.SIGTSTP, suspend)
        try:
            tty.setcbreak(fd, termios.TCSADRAIN)
            yield lambda seconds: _wait(fd, seconds)
        finally:
            signal.signal(signal.SIGTSTP, handler)
            if _terminal() is not None:
                termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _terminal() -> int | None:
    """Return the descriptor of the terminal if this process may use it."""
    try:
        fd = sys.stdin.fileno()
        is_ours = os.tcgetpgrp(fd) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # Closed, or not a terminal.
        return None
    return fd if is_ours else None


def _pause(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _wait(fd: int, seconds: float) -> str:
    end = time.monotonic() + seconds
    if _terminal() is None:  # In the background: reading would stop the process.
        return _pause(seconds)
    if not select.select([fd], [], [], seconds)[0]:
        return ""
    data = os.read(fd, 1)
    if not data:  # The terminal is gone.
        return _pause(max(0.0, end - time.monotonic()))
    return data.decode("latin-1")
