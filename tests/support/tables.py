"""Tests of a table in one case, instead of one case for each row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def rows(*table: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """
    Call a test for each row, and fail with all rows that fail.

    A row has the arguments of the test; that of a test with one is the argument
    itself. For a test that needs no fixtures.
    """

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        names = list(inspect.signature(test).parameters)

        def run() -> None:
            errors: list[Exception] = []
            for row in table:
                values = (row,) if len(names) == 1 else row
                try:
                    test(**dict(zip(names, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - Raised below.
                    error.add_note(f"row: {row!r}")
                    errors.append(error)
            if errors:
                raise ExceptionGroup(f"{len(errors)} rows fail", errors)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        run.__module__, run.__qualname__ = test.__module__, test.__qualname__
        return run

    return decorate


def each_row(
    _names: str | tuple[str, ...], table: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Do what `rows` does, with the names of the arguments."""
    return rows(*table)
