"""Progress of a tool: a bar on standard error; only on a terminal, and with tqdm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, Self, cast

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
    try:
        from tqdm import tqdm  # noqa: PLC0415
    except ImportError:
        return cast("tqdm[NoReturn]", _NoBar())

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


class _NoBar:
    """What the tools call of a bar; it shows nothing."""

    def __init__(self) -> None:
        self.n = 0

    def update(self, count: int = 1) -> None:
        """Count."""
        self.n += count

    def clear(self) -> None:
        """Show nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def above(bar: tqdm[NoReturn], report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints a line in place of the bar; the bar moves down."""

    def report_above(line: str) -> None:
        bar.clear()
        report(line)

    return report_above
