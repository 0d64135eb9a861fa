"""slow_log.py: where the time went, at most a few lines per second."""

from __future__ import annotations

import logging

import pytest

from volcache.http.slow_log import LINES_PER_SECOND_MAX, SlowLog


def test_line_splits_the_duration(caplog: pytest.LogCaptureFixture) -> None:
    """What is neither memcached nor disk is the rest, and not negative."""
    log = SlowLog(1)
    log.log("GET", "/a/key", "200 OK", 350_000_000, 100_000_000, 50_000_000)
    log.log("GET", "/key", "200 OK", 100, 99, 2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0] == (
        "request.slow method=GET key=a/key status=200 seconds=0.350000"
        " memcached=0.050000 disk=0.100000 rest=0.200000 left_out=0"
    )
    assert " rest=0.000000 " in caplog.messages[1]


def test_path_is_one_word_of_limited_length(caplog: pytest.LogCaptureFixture) -> None:
    """Of printable characters, also if it is not a key."""
    log = SlowLog(1)
    for path in ("/a status=500\n\xe9", "", "/" + "a" * 80_000):
        log.log("PUT", path, "200 OK", 1, 0, 0)
    first, second, third = caplog.messages
    assert " key=a%20status=500%0A%E9 status=200 " in first
    assert " key= status=200 " in second
    assert len(third) < 1500


def test_excess_lines_are_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next line has the number of lines left out before it."""
    now = [1000.0]
    log = SlowLog(1, clock=lambda: now[0])
    for _ in range(LINES_PER_SECOND_MAX + 5):
        now[0] += 0.01
        log.log("GET", "/key", "200 OK", 1, 0, 0)
    now[0] += 1
    for _ in range(2):
        log.log("GET", "/key", "200 OK", 1, 0, 0)
    left_out = [int(line.rpartition("=")[2]) for line in caplog.messages]
    assert left_out == [*[0] * LINES_PER_SECOND_MAX, 5, 0]


def test_zero_seconds_turns_the_log_off() -> None:
    """No duration exceeds the threshold."""
    assert SlowLog(0.25).threshold_ns == 250_000_000
    assert SlowLog(0).threshold_ns > 10**18
