"""Tests of a table in one case, instead of one case for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each_row(
    names: str | tuple[str, ...], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """
    Call a test for each row, and fail with all rows that fail.

    For a test that needs no fixtures. Args: as of `pytest.mark.parametrize`.
    """
    parameters = (
        [one.strip() for one in names.split(",")]
        if isinstance(names, str)
        else list(names)
    )

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            errors: list[Exception] = []
            for row in rows:
                values = (row,) if len(parameters) == 1 else row
                try:
                    test(**dict(zip(parameters, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - Raised below.
                    error.add_note(f"row: {row!r}")
                    errors.append(error)
            if errors:
                raise ExceptionGroup(f"{len(errors)} rows fail", errors)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        run.__module__, run.__qualname__ = test.__module__, test.__qualname__
        return run

    return decorate
