"""slow_log.py: how many requests get a line, and what it shows."""

from __future__ import annotations

import logging

import pytest

from volcache.slow_log import LINES_PER_SECOND_MAX, CommandLog, SlowLimit, SlowLog


def test_slow_requests_are_limited_and_their_time_is_divided() -> None:
    """What other threads waited for is no part of it; a line counts those left out."""
    now = [1000.0]
    slow = SlowLimit(0.25, clock=lambda: now[0])
    assert slow.threshold_ns == 250_000_000
    assert slow.shares(350_000_000, 50_000_000, 100_000_000) == (
        0.35,
        0.1,
        0.05,
        0.2,
        0,
    )
    assert slow.shares(100_000_000, 99_000_000, 5_000_000) == (0.1, 0.001, 0.099, 0, 0)
    found = [slow.shares(1, 0, 0) for _ in range(LINES_PER_SECOND_MAX + 3)]
    assert found.count(None) == 5
    now[0] += 1
    assert [shares and shares[-1] for shares in (slow.shares(1, 0, 0),) * 2] == [5, 5]
    assert (slow.shares(1, 9, 9) or ())[-1:] == (0,)
    slow.set_threshold(0)
    assert slow.threshold_ns > 10**18


def test_slow_log_shows_a_path_as_one_word_of_limited_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of printable characters, also if it is not a key."""
    log = SlowLog(1)
    for path in ("/a status=500\n\xe9", "", "/" + "a" * 80_000):
        log.log("PUT", path, "200 OK", 1, 0, 0)
    first, second, third = caplog.messages
    assert " key=a%20status=500%0A%E9 status=200 " in first
    assert " key= status=200 " in second
    assert len(third) < 1500


def test_slow_command_is_logged_with_what_it_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing that a client sends can forge a field."""
    log = CommandLog(0.02, lambda _: (20_000_000, 5_000_000))
    log.add("192.0.2.1", "get", b"a key=\n", "hit", 0, 50_000_000)
    log.add("", "version", b"", "ok", 0, 50_000_000)
    (record, other) = caplog.records
    assert record.levelno == logging.WARNING
    times = "seconds=0.050000 memcached=0.005000 disk=0.020000 rest=0.025000 left_out=0"
    assert record.message == (
        f"command.slow remote=192.0.2.1 command=get key=a%20key=%0A result=hit {times}"
    )
    assert other.message == (
        f"command.slow remote=- command=version key= result=ok {times}"
    )
    assert log.threshold_ns == 20_000_000
    log.set_threshold(0.5)
    assert log.threshold_ns == 500_000_000
