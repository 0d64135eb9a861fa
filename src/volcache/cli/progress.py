"""A bar on standard error, only where somebody sees it; and figures in words."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

# With fewer columns there is no room for a bar.
_COLUMNS_MIN: Final = 60
_WIDE: Final = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit}, {remaining} left"
_NARROW: Final = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt}, {remaining} left"
_ENDLESS: Final = "{desc}: {n_fmt}{unit}"


def progress(total: int | None, what: str, unit: str = "B") -> tqdm[NoReturn]:
    """
    Return a bar to be used in a `with`; nothing is shown without a terminal.

    Args:
        total: How many there are; None: that is not known.
        what: Is being done.
        unit: Of the total; bytes are shown in larger ones.
    """
    # Here, so that a server that shows no bar does not load it.
    from tqdm import tqdm  # noqa: PLC0415

    # Its thread would outlive the bar, and take signals that others have held back.
    tqdm.monitor_interval = 0
    is_bytes = unit == "B"
    return tqdm(
        total=total,
        desc=what,
        unit=unit if is_bytes else f" {unit}",
        unit_scale=is_bytes,
        leave=False,
        disable=None,  # Unless standard error is a terminal.
        dynamic_ncols=True,
        bar_format=_format(total),
    )


def _format(total: int | None) -> str:
    """Return what is shown on the terminal there is, if any."""
    if total is None:
        return _ENDLESS
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # ValueError: a stand-in that is no file.
        return _WIDE
    return _NARROW if 0 < columns < _COLUMNS_MIN else _WIDE


def above(bar: tqdm[NoReturn], say: Callable[[str], None]) -> Callable[[str], None]:
    """Return what says a line in the place of the bar, which goes on below it."""

    def say_above(line: str) -> None:
        bar.clear()
        say(line)

    return say_above


def in_words(count: float) -> str:
    """Return a number of bytes for people."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(round(count), "byte")
