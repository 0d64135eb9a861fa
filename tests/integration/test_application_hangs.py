"""
The application hangs: the loops go on, and the watchdog and nginx are told.

Its thread leaves the processor to them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from support.cluster import list_of
from support.process import SHARED, SOURCE, ServerProcess
from support.service_manager import ServiceManager
from support.waiting import wait_until
from support.wire import exchange, read_reply, request_bytes, sending

pytestmark = pytest.mark.integration

# OPTIONS hangs while there is a file. The disk does not tell what it completes.
PROGRAM: Final = """
import os, runpy, sys, time

from volcache.http.app import App
from volcache.server import notify

source, path = sys.argv[1:]
options = App._options

def hang(*arguments):
    while os.path.exists(path):
        time.sleep(0.01)
    return options(*arguments)

App._options = hang
notify.completed_requests = lambda _directory: lambda: None
sys.argv = [source]
runpy.run_path(source, run_name="__main__")
"""


def hung_server(folder: Path, manager: ServiceManager) -> ServerProcess:
    """Return a server with a watchdog, whose OPTIONS hang while there is `hanging`."""
    environment = manager.environment(1.0) | {"PYTHONPATH": str(SOURCE)}
    program = ("-c", PROGRAM, SOURCE, folder / "hanging")
    return ServerProcess(
        folder / "data", settings=SHARED, environment=environment, program=program
    )


def test_request_in_a_ring_that_waits_for_the_application_is_refused_in_a_second(
    tmp_path: Path, manager: ServiceManager
) -> None:
    """So is one that waits behind it; the operator's waits, and GETs are answered."""
    server = hung_server(tmp_path, manager)
    name, hanging = f"127.0.0.1:{server.port}", tmp_path / "hanging"
    (tmp_path / "list").write_text(list_of([name]))
    server.settings |= {"ring": tmp_path / "list", "ring_self": name}
    with server:
        assert exchange(server.port, "PUT", "/a", b"value").status == 200
        manager.wait_for("WATCHDOG=1")
        hanging.touch()
        with (
            sending(server.port, request_bytes("OPTIONS", "/a")) as first,
            sending(server.port, request_bytes("PROPFIND", "/a")) as second,
            sending(server.port, request_bytes("GET", "/-/stats")) as operator,
        ):
            assert exchange(server.port, "GET", "/a").body == b"value"
            for connection in (first, second):
                reply = read_reply(connection)
                assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
                assert b"the application does not answer" in reply.body
            # Although no client waits.
            wait_until(lambda: " watchdog.withheld " in server.stderr, "the event")
            assert exchange(server.port, "GET", "/a").body == b"value"
            hanging.unlink()
            assert read_reply(operator).status == 200
        before = manager.lines.count("WATCHDOG=1")
        manager.wait_for("WATCHDOG=1", times=before + 1)
        assert exchange(server.port, "OPTIONS", "/a").status == 200


def test_request_without_a_ring_waits_for_the_application_and_stops_the_watchdog(
    tmp_path: Path, manager: ServiceManager
) -> None:
    """Until the application goes on."""
    hanging = tmp_path / "hanging"
    with hung_server(tmp_path, manager) as server:
        manager.wait_for("WATCHDOG=1")
        hanging.touch()
        with sending(server.port, request_bytes("OPTIONS", "/a")) as connection:
            wait_until(lambda: " watchdog.withheld " in server.stderr, "the event")
            manager.receive()
            manager.messages.clear()
            wait_until(lambda: len(manager.receive()) >= 3, "messages")
            assert "WATCHDOG=1" not in manager.lines
            hanging.unlink()
            assert read_reply(connection).status == 200
            manager.wait_for("WATCHDOG=1")


def scheduling_of(pid: int) -> list[tuple[str, int, int]]:
    """Return name, policy and niceness of each thread, see proc(5)."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(") ")
        fields = rest.split()
        found.append((name, int(fields[38]), int(fields[16])))
    return found


def test_threads_beside_the_loops_have_a_lower_priority(tmp_path: Path) -> None:
    """The kernel lets a loop that wakes up run before bjoern and before reads."""
    settings = {**SHARED, "threads": 2, "read_threads": 3}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        threads = scheduling_of(server.pid)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    loops = {tuple(rest) for name, *rest in threads if name == "front"}
    assert loops == {(os.SCHED_OTHER, usual)}
    lower = [rest for _, *rest in threads if rest[1] != usual]
    assert lower == [[os.SCHED_BATCH, min(usual + 10, 19)]] * 4
