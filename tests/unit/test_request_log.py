"""request_log.py: the lines about requests of both protocols."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from volcache.request_log import (
    SLOW_LINES_PER_SECOND_MAX,
    AccessLine,
    AccessLines,
    SlowLimit,
)

NOW_NS = 1_795_251_600_123_456_789  # 2026-11-21, 09:00.
SHORT = AccessLine(12_500_000, "10.0.0.1", "PUT", "/a", "HTTP/1.1", 201, 0)
FULL = SHORT._replace(
    referer="referer",
    agent="agent",
    forwarded="forwarded",
    cache="DISK",
    position="0,4096,1500",
    result="hit",
)


def line_of(line: AccessLine, *, as_json: bool = False) -> str:
    """Return a line as it is written."""
    lines: list[str] = []
    AccessLines(lines.append, as_json=as_json, clock=lambda: NOW_NS).write(lambda: line)
    assert lines[0].endswith("\n")
    return lines[0].removesuffix("\n")


def test_json_has_the_same_fields() -> None:
    """Absent ones are null, except the result, which HTTP does not have."""
    fields: dict[str, Any] = {
        "time": "2026-11-21T09:00:00.123Z",
        "remote": "10.0.0.1",
        "method": "PUT",
        "uri": "/a",
        "protocol": "HTTP/1.1",
        "status": 201,
        "bytes": 0,
        **dict.fromkeys(("referer", "agent", "forwarded", "cache", "position")),
        "seconds": 0.0125,
    }
    assert list(json.loads(line_of(SHORT, as_json=True)).items()) == [*fields.items()]
    full = json.loads(line_of(FULL, as_json=True))
    assert list(full)[-2:] == ["result", "seconds"]
    assert (full["agent"], full["cache"], full["result"]) == ("agent", "DISK", "hit")


def test_time_is_that_of_the_line() -> None:
    """The text of a second is reused within that second only."""
    lines: list[str] = []
    times = iter([NOW_NS, NOW_NS + 800_000_000, NOW_NS + 900_000_000])
    log = AccessLines(lines.append, as_json=False, clock=lambda: next(times))
    for _ in range(3):
        log.write(lambda: SHORT)
    log.write(lambda: SHORT, NOW_NS + 7_000_000_000)
    assert re.findall(r":00:(\d\d) ", "".join(lines)) == ["00", "00", "01", "07"]


def test_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It does not reach the client."""

    def fail(_line: str) -> None:
        raise OSError("full")

    AccessLines(fail, as_json=False, clock=lambda: 0).write(lambda: SHORT)
    assert caplog.messages == ["access.line_failed"]


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
    found = [slow.shares(1, 0, 0) for _ in range(SLOW_LINES_PER_SECOND_MAX + 3)]
    assert found.count(None) == 5
    now[0] += 1
    assert [shares and shares[-1] for shares in (slow.shares(1, 0, 0),) * 2] == [5, 5]
    assert (slow.shares(1, 9, 9) or ())[-1:] == (0,)
    slow.set_threshold(0)
    assert slow.threshold_ns > 10**18
