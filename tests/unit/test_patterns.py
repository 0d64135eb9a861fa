"""Every regular expression of the source takes linear time, by its structure."""

from __future__ import annotations

import pytest

from support.patterns import SlowPatternError, patterns_of, require_linear


@pytest.mark.parametrize("package", ["volcache", "volcache_client"])
def test_no_pattern_can_take_more_than_linear_time(package: str) -> None:
    """Whoever sends a text could else choose one that takes hours."""
    slow = []
    places = list(patterns_of(package))
    for place, pattern, flags in places:
        try:
            require_linear(pattern, flags)
        except SlowPatternError as error:
            slow.append(f"{place} {pattern!r}: {error}")
    assert slow == []
    assert len(places) > 5


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s*bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*",
        *(
            r"(a+)*b",
            r"(ab|a.)*c",
            r"(ab)*(ab)*",
            r"a*b*a*",
            r"a*[ab]a*",
            r"(a[ab]+)+c",
        ),
        *(r"\s*\[*\s*x", r"(?:a?b*)*c", r".*x.*y", rb"[^:]*[0-9]*", r"(a.|.b)+-"),
    ],
)
def test_what_backtracks_is_found(pattern: str | bytes) -> None:
    """Quadratic, cubic and exponential patterns."""
    with pytest.raises(SlowPatternError):
        require_linear(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"([0-9]{0,18})-([0-9]{0,18})", r"[a-z]+\.[a-z_]+( [a-z_]+=\S+)*"),
        *(r'"(?:[ !#-\[\]-~]|\\[ -~])*"', r"(/[a-z]+)+", rb"[^:]*(:[0-9]*)?"),
    ],
)
def test_what_is_decided_by_the_next_character_is_not(pattern: str | bytes) -> None:
    """These have repeats, but one way to match."""
    require_linear(pattern)
