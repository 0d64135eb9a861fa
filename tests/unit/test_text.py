"""Counts, sizes and times as people read them."""

from __future__ import annotations

import pytest

from volcache.text import counted, duration, size, span


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (11, "11 files")]
)
def test_only_one_is_singular(count: int, text: str) -> None:
    """0 is plural, and so is 11."""
    assert counted(count, "file") == text


def test_count_has_the_format_asked_for() -> None:
    """With commas for a report, without for lines that programs read."""
    assert counted(1234, "live key") == "1234 live keys"
    assert counted(1234, "key", ",") == "1,234 keys"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5e-8, "50 ns"), (9.3e-5, "93 µs"), (0.0012, "1.2 ms"), (0.9999, "1.0 s")],
)
def test_durations_have_two_digits(seconds: float, text: str) -> None:
    """In the largest unit that fits."""
    assert duration(seconds) == text


def test_sizes_and_spans_round_into_the_next_unit() -> None:
    """1023.9 KiB is 1.0 MiB."""
    assert [size(n) for n in (0, 1023, 1024, (1 << 20) - 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
    ]
    assert [span(n) for n in (59.9, 61, 3600, 90000)] == [
        "59 s",
        "1 min 1 s",
        "1 h 0 min",
        "1 d 1 h",
    ]


def test_sizes_have_no_unit_above_the_last() -> None:
    """An exbibyte is 1024 PiB."""
    assert size(1 << 60) == "1024.0 PiB"
