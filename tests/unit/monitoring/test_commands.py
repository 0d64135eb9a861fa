"""Counters of the memcached protocol."""

from __future__ import annotations

from volcache.monitoring.commands import KIND_OF, KINDS, CommandStats


def test_commands_are_counted_by_name_and_result() -> None:
    """With their durations, by kind."""
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
    assert stats.commands() == dict.fromkeys(durations, 1)
    assert stats.total == 5
    assert (stats.hits, stats.misses, stats.stored) == (2, 1, 1)
    latencies = stats.latencies()
    assert list(latencies) == list(KINDS)
    assert (latencies["get"].count, latencies["get"].total_ns) == (2, 5000)
    assert latencies["touch"].total_ns == 4000
    assert latencies["incr"].count == 0


def test_unknown_commands_share_one_count() -> None:
    """A client that invents commands does not use up memory."""
    stats = CommandStats()
    for number in range(100):
        stats.answers[f"x{number}", "error"].observe(0, 10)
    assert stats.commands() == {("other", "error"): 100}
    assert len(stats.answers) == 1


def test_every_name_has_one_kind() -> None:
    """A command is not counted twice."""
    assert len(KIND_OF) == sum(len(names) for names in KINDS.values())
    assert set(KIND_OF.values()) == set(KINDS)
