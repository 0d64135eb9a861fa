"""What a command shows on a terminal until Ctrl-C."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"


def show(screen: Callable[[], Iterable[str]], seconds: float) -> NoReturn:
    """
    Show lines over the last ones, again and again.

    Args:
        screen: Returns lines that fit the terminal.
        seconds: Until they are shown again.

    Raises:
        KeyboardInterrupt: The user ends it.
    """
    while True:
        ended = [f"{line}{_TO_END_OF_LINE}\n" for line in screen()]
        print("".join([_HOME, *ended, _TO_END_OF_SCREEN]), end="", flush=True)
        time.sleep(seconds)
