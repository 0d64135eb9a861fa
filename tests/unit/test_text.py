"""Numbers in the sentences that people read."""

from __future__ import annotations

import pytest

from volcache.text import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (11, "11 files")]
)
def test_one_is_not_several(count: int, text: str) -> None:
    """None and many have the plural, also a many that ends in one."""
    assert counted(count, "file") == text


def test_number_takes_the_form_that_is_asked_for() -> None:
    """With commas for a report, without for lines that programs read."""
    assert counted(1234, "live key") == "1234 live keys"
    assert counted(1234, "key", ",") == "1,234 keys"
