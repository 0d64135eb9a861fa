"""Signals that end a command, so that it can put back what it has changed."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """
    Let SIGTERM and SIGHUP raise `SystemExit` with 128 + their number. Main thread only.

    A signal that is ignored, as after `nohup`, stays ignored.
    """

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
