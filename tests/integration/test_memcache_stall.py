"""The thread of slow commands fails: health, the watchdog and the log say so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from support.memcache import MemcacheServer
from support.process import SOURCE
from support.service_manager import ServiceManager
from support.waiting import wait_until

pytestmark = pytest.mark.integration

PAUSE: Final = 0.1  # Seconds, at least, between two turns that raise.
# Every turn raises while there is a file, and adds a byte to it.
PROGRAM: Final = """
import os, runpy, sys

from volcache.http import admin
from volcache.memcache.service import Service

source, path = sys.argv[1:]

def fail(service):
    if os.path.exists(path):
        with open(path, "ab") as file:
            file.write(b"x")
        raise ZeroDivisionError

admin._STALL_SECONDS_MAX = 1.0
Service.seconds_to_flush = fail
sys.argv = [source]
runpy.run_path(source, run_name="__main__")
"""


def test_turns_that_raise_are_a_stall(tmp_path: Path) -> None:
    """Although HTTP and the disk answer; it ends when they no longer raise."""
    path = tmp_path / "failing"
    with ServiceManager() as manager:
        server = MemcacheServer(
            tmp_path / "data",
            environment=manager.environment(1.0) | {"PYTHONPATH": str(SOURCE)},
            program=("-c", PROGRAM, SOURCE, path),
        )
        with server, server.client() as client:
            assert health(server) == (200, "ok\n")
            manager.wait_for("WATCHDOG=1")
            started = time.monotonic()
            path.touch()
            client.send(b"stats none\r\n")  # The thread of Python may sleep.
            wait_until(lambda: health(server)[0] == 503, "the stall")
            wait_until(lambda: " watchdog.withheld " in server.stderr, "the event")
            manager.receive()
            manager.messages.clear()
            wait_until(lambda: len(manager.receive()) >= 3, "messages")
            assert "WATCHDOG=1" not in manager.lines
            assert "the memcached protocol has not got on" in health(server)[1]
            failures = server.stderr.count(" thread.failed name=memcache ")
            assert server.stderr.count("Traceback") == failures
            turns = path.stat().st_size
            assert 2 <= turns <= (time.monotonic() - started) / PAUSE + 1
            path.unlink()
            wait_until(lambda: health(server)[0] == 200, "the end of the stall")
            manager.wait_for("WATCHDOG=1")
            with server.client() as other:
                assert other.ask(b"mn\r\n") == b"MN"


def health(server: MemcacheServer) -> tuple[int, str]:
    """Return status and text of `/-/healthy`."""
    answer = server.ask("GET", "/-/healthy")
    return answer.status, answer.text
