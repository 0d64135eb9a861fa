"""The logs of a running server, and their rotation."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.load import Load
from support.process import SHARED, ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_rotation_under_load_loses_no_line(tmp_path: Path) -> None:
    """Rename and SIGHUP: every response has exactly one line."""
    access, events = tmp_path / "access.log", tmp_path / "event.log"
    settings = {**SHARED, "log_access": access, "log_file": events}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        with Load(server.port, clients=3) as load:
            for turn in range(4):
                load.wait_for(200)
                access.rename(tmp_path / f"access.log.{turn}")
                events.rename(tmp_path / f"event.log.{turn}")
                server.send_signal(signal.SIGHUP)
                wait_until(lambda: access.exists() and events.exists(), "new files")
            load.wait_for(200)
        assert server.terminate() == 0
    assert all(answer.status and answer.is_right for answer in load.answers)
    lines = [
        line.split('"')[1]
        for path in tmp_path.glob("access.log*")
        for line in path.read_text().splitlines()
    ]
    expected = [f"{answer.method} {answer.key} HTTP/1.1" for answer in load.answers]
    assert sorted(x for x in lines if "/load/" in x) == sorted(expected)
    texts = [path.read_text() for path in tmp_path.glob("event.log*")]
    assert len(texts) == 5
    assert "".join(texts).count(" log.reopened\n") >= 4
    assert "".join(texts).count(" store.closed ") == 1
