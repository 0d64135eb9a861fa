"""The numbers of an instance in words, and what is said of a bad one."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from support.stats_server import StatsServer, add_reads, empty_stats, hot_tier
from volcache.errors import InstanceError
from volcache.monitoring import terminal as live

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[StatsServer]:
    """An instance that was started a moment ago."""
    with StatsServer(empty_stats()) as running:
        yield running


def test_empty_instance_has_a_report() -> None:
    """Nothing is divided by nothing."""
    text = "\n".join(live.report(empty_stats()))
    assert "reads     none yet" in text
    assert "; volume 0 is written up to 0 B; " in text
    assert "hot tier  off" in text
    assert "errors    none" in text


def test_rates_are_those_since_the_report_before() -> None:
    """Also times; after a restart, when counters are smaller, those since the start."""
    before = empty_stats()
    add_reads(before, 1000, 1000, bucket=30)
    now = copy.deepcopy(before)
    now["now"] += 2
    add_reads(now, 90, 10, bucket=17)
    text = "\n".join(live.report(now, before))
    assert "90.0% hits" in text
    assert "requests  50.0/s" in text
    assert "GET       half within 93 µs, 99 of 100 within 130 µs" in text
    again = empty_stats()
    again["started"] = before["started"] + 1
    add_reads(again, 5, 5)
    assert "50.0% hits" in "\n".join(live.report(again, now))


def test_trouble_is_said_in_words() -> None:
    """A disk that cannot be read, errors, memcached down."""
    stats = empty_stats()
    stats["ready"] = False
    stats["store"]["damaged_records"] = 3
    stats["hot"] = hot_tier(is_up=False)
    text = "\n".join(live.report(stats))
    assert text.splitlines()[0].endswith("NOT READY")
    assert "errors    damaged records 3" in text
    assert "127.0.0.1:11211 DOWN; 0 keys promoted; failures: refused 3" in text


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 keys"), (1, "1 key"), (1234, "1,234 keys")]
)
def test_one_key_is_not_several(count: int, words: str) -> None:
    """Of the store as of the hot tier."""
    stats = empty_stats()
    stats["store"]["keys"] = count
    stats["hot"] = hot_tier(is_up=True)
    stats["hot"]["promoted_keys"] = count
    lines = live.report(stats)
    assert any(line.endswith(f" free; {words}") for line in lines)
    assert any(line.endswith(f"up; {words} promoted") for line in lines)


def test_text_of_the_instance_cannot_steer_the_terminal() -> None:
    """Whoever sends the numbers may be anybody."""
    stats = empty_stats()
    stats["hottest"] = [{"key": "a\x1b[2J\x9b\u202eb", "reads": 1}]
    text = "\n".join(live.report(stats))
    assert "a?[2J??b (about 1)" in text


def test_terminal_is_written_over_until_interrupted(server: StatsServer) -> None:
    """Each report stands where the last one did; an instance gone is said and asked."""
    written: list[str] = []
    steps = iter(
        [
            lambda: add_reads(server.stats, 10, 0),
            server.stop,
            server.start,
        ]
    )

    def pause(_seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    with pytest.raises(KeyboardInterrupt):
        live.refresh(server.url, written.append, pause=pause)
    first, second, third, fourth = written
    assert all(w.startswith("\x1b[H") and w.endswith("\x1b[J") for w in written)
    assert "none yet" in first
    assert "100.0% hits" in second
    assert f"{server.url}: Connection refused" in third
    assert "volcache 0.1.0" in fourth


def test_numbers_that_are_missing_are_no_traceback() -> None:
    """As of an instance of another version."""
    stats = empty_stats()
    del stats["latency"]
    with pytest.raises(InstanceError, match="numbers are missing"):
        live.report(stats)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5e-8, "50 ns"), (9.3e-5, "93 µs"), (0.0012, "1.2 ms"), (0.9999, "1.0 s")],
)
def test_durations_have_two_digits(seconds: float, text: str) -> None:
    """In the unit that suits them."""
    assert live.duration(seconds) == text


def test_sizes_and_spans_round_into_the_next_unit() -> None:
    """1023.9 KiB is 1.0 MiB."""
    assert [live.size(n) for n in (0, 1023, 1024, (1 << 20) - 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
    ]
    assert [live.span(n) for n in (59.9, 61, 3600, 90000)] == [
        "59 s",
        "1 min 1 s",
        "1 h 0 min",
        "1 d 1 h",
    ]
