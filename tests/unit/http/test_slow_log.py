"""The slow log says where the time went, and cannot flood."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from volcache.http.slow_log import LINES_A_SECOND, SlowLog

if TYPE_CHECKING:
    import pytest


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        """Begin at a round second."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def test_line_says_where_the_time_went(caplog: pytest.LogCaptureFixture) -> None:
    """What is neither memcached nor disk is the rest; the parts are the whole."""
    SlowLog().note("GET", "/a/key", 200, 350_000_000, 100_000_000, 50_000_000)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (line,) = caplog.messages
    assert line == (
        "request.slow method=GET key=a/key status=200 seconds=0.350000"
        " memcached=0.050000 disk=0.100000 rest=0.200000 left_out=0"
    )


def test_parts_larger_than_the_whole_leave_no_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clocks read at different moments never make a negative time."""
    SlowLog().note("GET", "/key", 200, 100, 99, 2)
    assert " rest=0.000000 " in caplog.messages[0]


def test_key_cannot_forge_a_field(caplog: pytest.LogCaptureFixture) -> None:
    """A path of any bytes is one word of printable characters."""
    SlowLog().note("PUT", "/a status=500\n\xe9", 200, 1, 0, 0)
    assert " key=a%20status=500%0A%E9 status=200 " in caplog.messages[0]


def test_path_without_slash_and_long_path(caplog: pytest.LogCaptureFixture) -> None:
    """What can be no key is shown as well, but not at any length."""
    slow_log = SlowLog()
    slow_log.note("CONNECT", "", 400, 1, 0, 0)
    slow_log.note("GET", "/" + "a" * 80_000, 400, 1, 0, 0)
    assert " key= status=400 " in caplog.messages[0]
    assert len(caplog.messages[1]) < 1500


def test_flood_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """So many lines a second, and the next line says how many there were not."""
    clock = Clock()
    slow_log = SlowLog(clock)
    for _ in range(LINES_A_SECOND + 5):
        clock.now += 0.01
        slow_log.note("GET", "/key", 200, 1, 0, 0)
    assert len(caplog.messages) == LINES_A_SECOND
    assert all(line.endswith(" left_out=0") for line in caplog.messages)
    clock.now += 1
    slow_log.note("GET", "/key", 200, 1, 0, 0)
    slow_log.note("GET", "/key", 200, 1, 0, 0)
    assert caplog.messages[-2].endswith(" left_out=5")
    assert caplog.messages[-1].endswith(" left_out=0")
