"""Dates that the front writes are those of the application."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import pytest

from support.tables import rows
from volcache.front import http_date
from volcache.http.responses import format_date

DAY: Final = 86_400
SECOND_MAX: Final = 253_402_300_799


def seconds_to_try() -> Iterator[int]:
    """Yield the ends of all months of all years, and more of the years in use."""
    for year in range(1970, 10_000):
        for month in range(1, 13):
            first = int(datetime(year, month, 1, tzinfo=UTC).timestamp())
            yield from (max(0, first - 1), first)
        yield int(datetime(year, 2, 28, 12, tzinfo=UTC).timestamp()) + DAY
    yield from range(0, 140 * 365 * DAY, DAY + 61)
    yield SECOND_MAX


@pytest.mark.slow
def test_http_date_of_any_second_equals_that_of_the_application() -> None:
    """Leap years and the turns of months, years and centuries, from 1970 to 9999."""
    for second in seconds_to_try():
        assert http_date(second) == format_date(second)


@rows(-1, SECOND_MAX + 1, -(2**63), 2**63 - 1)
def test_http_date_before_1970_or_after_9999_is_refused(second: int) -> None:
    with pytest.raises(ValueError, match="no date"):
        http_date(second)
