"""Marks: the versions that were marked last have numbers."""

from __future__ import annotations

import pytest

from volcache.front import Marks

COUNT = 1024
# Times in microseconds, as close as the values are that follow one another.
VERSIONS = [1_790_000_000_000_000 + 3 * i for i in range(6 * COUNT)]


@pytest.fixture
def marks() -> Marks:
    """Return an empty table."""
    return Marks(COUNT)


def test_a_version_has_the_number_that_was_put_last(marks: Marks) -> None:
    """Other versions have none."""
    one, other = VERSIONS[:2]
    assert marks.get(one) is None
    for number in (0, 7, 2**32 - 1):
        marks.put(one, number)
        assert (marks.get(one), marks.get(other)) == (number, None)


def test_the_latest_versions_are_remembered(marks: Marks) -> None:
    """Nearly as many as there are places, and no old one; marked again is late."""
    kept, *others = VERSIONS
    for version in others:
        marks.put(version, 1)
        marks.put(kept, 2)
    latest, oldest = others[-COUNT // 2 :], others[: 4 * COUNT]
    assert marks.get(kept) == 2
    assert sum(marks.get(version) == 1 for version in latest) > 0.95 * len(latest)
    assert not any(marks.get(version) for version in oldest)


def test_a_small_table_forgets_exactly_the_oldest() -> None:
    """With 8 places, there is no approximation."""
    marks = Marks(8)
    for version in VERSIONS[:8]:
        marks.put(version, 1)
    marks.put(VERSIONS[0], 1)
    marks.put(VERSIONS[8], 1)
    known = [marks.get(version) for version in VERSIONS[:9]]
    assert known == [1, None, 1, 1, 1, 1, 1, 1, 1]
