"""A bar on standard error, only where somebody sees it; and figures in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm


def progress(total: int, what: str, unit: str = "B") -> tqdm[NoReturn]:
    """Return a bar to be used in a `with`; nothing is shown without a terminal."""
    # Here, so that a server that shows no bar does not load it.
    from tqdm import tqdm  # noqa: PLC0415

    # Its thread would outlive the bar, and take signals that others have held back.
    tqdm.monitor_interval = 0
    return tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        leave=False,
        disable=None,  # Unless standard error is a terminal.
    )


def in_words(count: float) -> str:
    """Return a number of bytes for people."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
