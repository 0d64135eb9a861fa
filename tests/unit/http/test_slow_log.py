"""slow_log.py: where the time went, at most a few lines per second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from volcache.http.slow_log import LINES_PER_SECOND_MAX, SlowLog

if TYPE_CHECKING:
    import pytest


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        """Start at a round second."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_line_splits_the_duration(caplog: pytest.LogCaptureFixture) -> None:
    """What is neither memcached nor disk is the rest."""
    SlowLog(1).log("GET", "/a/key", "200 OK", 350_000_000, 100_000_000, 50_000_000)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (line,) = caplog.messages
    assert line == (
        "request.slow method=GET key=a/key status=200 seconds=0.350000"
        " memcached=0.050000 disk=0.100000 rest=0.200000 left_out=0"
    )


def test_rest_is_not_negative(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The clocks are read at different times."""
    SlowLog(1).log("GET", "/key", "200 OK", 100, 99, 2)
    assert " rest=0.000000 " in caplog.messages[0]


def test_key_cannot_forge_a_field(caplog: pytest.LogCaptureFixture) -> None:
    """A path of any bytes is one word of printable characters."""
    SlowLog(1).log("PUT", "/a status=500\n\xe9", "200 OK", 1, 0, 0)
    assert " key=a%20status=500%0A%E9 status=200 " in caplog.messages[0]


def test_path_that_is_not_a_key_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Up to a maximum length."""
    slow_log = SlowLog(1)
    slow_log.log("CONNECT", "", "400 Bad Request", 1, 0, 0)
    slow_log.log("GET", "/" + "a" * 80_000, "400 Bad Request", 1, 0, 0)
    assert " key= status=400 " in caplog.messages[0]
    assert len(caplog.messages[1]) < 1500


def test_excess_lines_are_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next line has the number of lines left out before it."""
    clock = Clock()
    slow_log = SlowLog(1, clock=clock)
    for _ in range(LINES_PER_SECOND_MAX + 5):
        clock.now += 0.01
        slow_log.log("GET", "/key", "200 OK", 1, 0, 0)
    assert len(caplog.messages) == LINES_PER_SECOND_MAX
    assert all(line.endswith(" left_out=0") for line in caplog.messages)
    clock.now += 1
    slow_log.log("GET", "/key", "200 OK", 1, 0, 0)
    slow_log.log("GET", "/key", "200 OK", 1, 0, 0)
    assert caplog.messages[-2].endswith(" left_out=5")
    assert caplog.messages[-1].endswith(" left_out=0")


def test_zero_seconds_turns_the_log_off() -> None:
    """No duration exceeds the threshold."""
    assert SlowLog(0.25).threshold_ns == 250_000_000
    assert SlowLog(0).threshold_ns > 10**18
