"""Progress of a tool: a bar on standard error, shown only on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

_KNOWN: Final = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit}, {remaining} left"
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
        bar_format=_ENDLESS if total is None else _KNOWN,
    )


def above(bar: tqdm[NoReturn], report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints a line in place of the bar; the bar moves down."""

    def report_above(line: str) -> None:
        bar.clear()
        report(line)

    return report_above
