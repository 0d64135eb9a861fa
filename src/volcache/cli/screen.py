"""What a command shows on a terminal until Ctrl-C."""

from __future__ import annotations

import shutil
import textwrap
import time
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_INDENT: Final = " " * 12  # The width of a name in a report.
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"


def show(screen: Callable[[], Iterable[str]], seconds: float) -> NoReturn:
    """
    Show lines over the last ones, again and again.

    Args:
        screen: Returns lines; a long one is continued, and the last are left out, so that
            they fit the terminal.
        seconds: Until they are shown again.

    Raises:
        KeyboardInterrupt: The user ends it.
    """
    while True:
        ended = [f"{line}{_TO_END_OF_LINE}\n" for line in _fitted(screen())]
        print("".join([_HOME, *ended, _TO_END_OF_SCREEN]), end="", flush=True)
        time.sleep(seconds)


def _fitted(lines: Iterable[str]) -> list[str]:
    columns, rows = shutil.get_terminal_size()
    fitted: list[str] = []
    for line in lines:
        fitted += textwrap.wrap(line, columns - 1, subsequent_indent=_INDENT) or [""]
    room = rows - 1
    if len(fitted) <= room:
        return fitted
    hidden = len(fitted) - room + 1
    return [*fitted[: room - 1], f"... {hidden} more lines"]
