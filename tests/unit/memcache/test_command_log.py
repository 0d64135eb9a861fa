"""command_log.py: what lines about slow commands show."""

from __future__ import annotations

import logging

import pytest

from volcache.memcache.command_log import CommandLog


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
