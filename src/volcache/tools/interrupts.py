"""Ctrl-C for a tool that writes: noted, and acted upon where nothing is half done."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """
    Let SIGINT only be noted, and give what tells whether it came; main thread only.

    A second one ends the process at once, as SIGKILL would: the disk may hang.
    """
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.getsignal(signal.SIGINT)
    # Ignored, as for a background job of a script, it stays ignored.
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
