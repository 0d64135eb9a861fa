"""slow_log.py: where the time went."""

from __future__ import annotations

import logging

import pytest

from volcache.http.slow_log import SlowLog


def test_line_splits_the_duration(caplog: pytest.LogCaptureFixture) -> None:
    """What is neither memcached nor disk is the rest."""
    SlowLog(1).log("GET", "/a/key", "200 OK", 350_000_000, 100_000_000, 50_000_000)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == (
        "request.slow method=GET key=a/key status=200 seconds=0.350000"
        " memcached=0.050000 disk=0.100000 rest=0.200000 left_out=0"
    )


def test_path_is_one_word_of_limited_length(caplog: pytest.LogCaptureFixture) -> None:
    """Of printable characters, also if it is not a key."""
    log = SlowLog(1)
    for path in ("/a status=500\n\xe9", "", "/" + "a" * 80_000):
        log.log("PUT", path, "200 OK", 1, 0, 0)
    first, second, third = caplog.messages
    assert " key=a%20status=500%0A%E9 status=200 " in first
    assert " key= status=200 " in second
    assert len(third) < 1500
