"""Progress of a tool: a bar on standard error, shown only on a terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

# A narrower terminal has no room for a bar.
_COLUMNS_MIN: Final = 60
_WIDE: Final = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit}, {remaining} left"
_NARROW: Final = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt}, {remaining} left"
_ENDLESS: Final = "{desc}: {n_fmt}{unit}"


def progress(total: int | None, what: str, unit: str = "B") -> tqdm[NoReturn]:
    """
    Return a bar, to be used in a `with`.

    Args:
        total: The number at the end; None: unknown.
        what: The name of the task.
        unit: Of the total; bytes are shown in larger units.
    """
    # Imported late: --help and a pipe need no bar, and loading it takes time.
    from tqdm import tqdm  # noqa: PLC0415

    # Its monitor thread would outlive the bar and receive signals that are blocked here.
    tqdm.monitor_interval = 0
    is_bytes = unit == "B"
    return tqdm(
        total=total,
        desc=what,
        unit=unit if is_bytes else f" {unit}",
        unit_scale=is_bytes,
        leave=False,
        disable=None,  # Disabled unless standard error is a terminal.
        dynamic_ncols=True,
        bar_format=_format(total),
    )


def _format(total: int | None) -> str:
    """Return the format that fits the terminal."""
    if total is None:
        return _ENDLESS
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # ValueError: standard error was replaced by a test.
        return _WIDE
    return _NARROW if 0 < columns < _COLUMNS_MIN else _WIDE


def above(bar: tqdm[NoReturn], report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints a line in place of the bar; the bar moves down."""

    def report_above(line: str) -> None:
        bar.clear()
        report(line)

    return report_above
