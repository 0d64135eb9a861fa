"""bench/extra/embedded.py: what it counts is what has happened."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from bench.extra.embedded import (
    CRASH_KEYS,
    SUBJECT,
    CrashCounts,
    check_after_kill,
    crash_value,
    key_of,
    open_volcache,
)


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
