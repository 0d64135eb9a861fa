"""Counters of the memcached protocol."""

from __future__ import annotations

from volcache.monitoring.commands import KIND_OF, KINDS, CommandStats


def test_commands_are_counted_by_name_and_result() -> None:
    """With their durations, by kind. Unknown ones share one count, to bound memory."""
    stats = CommandStats()
    durations = {
        ("get", "hit"): 2000,
        ("mg", "hit"): 3000,
        ("gat", "miss"): 4000,
        ("cas", "stored"): 9000,
        ("delete", "not_found"): 9000,
    }
    for answer, ns in durations.items():
        stats.answers[answer].observe(0, ns)
    for number in range(100):
        stats.answers[f"x{number}", "error"].observe(0, 10)
    assert stats.commands() == dict.fromkeys(durations, 1) | {("other", "error"): 100}
    assert len(stats.answers) == 6
    assert stats.total == 105
    assert (stats.hits, stats.misses, stats.stored) == (2, 1, 1)
    latencies = stats.latencies()
    assert list(latencies) == list(KINDS)
    assert (latencies["get"].count, latencies["get"].total_ns) == (2, 5000)
    assert latencies["touch"].total_ns == 4000
    assert latencies["incr"].count == 0


def test_every_name_has_one_kind() -> None:
    """A command is not counted twice."""
    assert len(KIND_OF) == sum(len(names) for names in KINDS.values())
    assert set(KIND_OF.values()) == set(KINDS)
