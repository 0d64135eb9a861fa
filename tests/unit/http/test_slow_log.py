"""slow_log.py: where the time went."""

from __future__ import annotations

import pytest

from volcache.http.slow_log import SlowLog


def test_path_is_one_word_of_limited_length(caplog: pytest.LogCaptureFixture) -> None:
    """Of printable characters, also if it is not a key."""
    log = SlowLog(1)
    for path in ("/a status=500\n\xe9", "", "/" + "a" * 80_000):
        log.log("PUT", path, "200 OK", 1, 0, 0)
    first, second, third = caplog.messages
    assert " key=a%20status=500%0A%E9 status=200 " in first
    assert " key= status=200 " in second
    assert len(third) < 1500
