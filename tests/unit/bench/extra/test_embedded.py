"""bench/extra/embedded.py: what it counts is what has happened."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from bench.extra.embedded import (
    CRASH_KEYS,
    SUBJECT,
    CrashCounts,
    Workload,
    check_after_kill,
    crash_value,
    key_of,
    open_volcache,
    operate,
    rows_of,
)

if TYPE_CHECKING:
    from pathlib import Path

WORKLOAD = Workload(
    name="test", operations=5000, keys=50, value=10, candidates=(SUBJECT,)
)


def test_operations_are_those_of_the_schedule_and_misses_are_counted(
    tmp_path: Path,
) -> None:
    """As a set of keys says; nine of ten are gets."""
    there: set[bytes] = set()
    counts, misses = (
        {"get": 0, "set": 0, "delete": 0},
        {"get": 0, "set": 0, "delete": 0},
    )
    for action, key in WORKLOAD.schedule(7):
        counts[action] += 1
        if action == "set":
            there.add(key)
        else:
            misses[action] += key not in there
            there -= {key} if action == "delete" else set()
    with closing(open_volcache(tmp_path)) as cache:
        timings = operate(cache, WORKLOAD, 7)
    assert timings.misses == misses
    assert {action: len(timings.seconds[action]) for action in counts} == counts
    assert 0.85 < counts["get"] / WORKLOAD.operations < 0.95
    assert misses["get"] > 0
    assert counts["set"] > counts["delete"] > 0
    rows = list(rows_of(timings))
    assert [row[:3] for row in rows] == [
        [action, str(counts[action]), str(misses[action])] for action in counts
    ]


def test_lost_and_wrong_values_are_counted_after_a_kill(tmp_path: Path) -> None:
    """Values that are what was acknowledged are not."""
    last = 2 * CRASH_KEYS
    with closing(open_volcache(tmp_path)) as cache:
        for number in range(CRASH_KEYS + 1, last + 1):
            value = b"%d " % number + crash_value(number, 10)
            cache.set(key_of(number % CRASH_KEYS), value)
    counts = CrashCounts()
    check_after_kill(SUBJECT, tmp_path, 10, last, counts)
    assert (counts.acknowledged, counts.lost, counts.wrong) == (CRASH_KEYS, 0, 0)
    with closing(open_volcache(tmp_path)) as cache:
        cache.delete(key_of(3))
        cache.set(key_of(4), b"4 older")
        cache.set(key_of(5), b"")
    counts = CrashCounts()
    check_after_kill(SUBJECT, tmp_path, 10, last, counts)
    assert (counts.acknowledged, counts.lost, counts.wrong) == (CRASH_KEYS, 1, 2)
