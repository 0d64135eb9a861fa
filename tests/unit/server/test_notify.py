"""notify.py: messages to the service manager, the watchdog, and what extends a start."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from support.service_manager import ServiceManager
from support.waiting import wait_until
from volcache.server.notify import (
    Heartbeat,
    Notifier,
    completed_requests,
)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceManager]:
    """Yield one at a path, and one at an abstract address."""
    with ServiceManager(tmp_path if request.param == "path" else None) as manager:
        yield manager


Connect = Callable[..., Notifier]


@pytest.fixture
def connect(manager: ServiceManager) -> Iterator[Connect]:
    """Return a function that returns a notifier with a watchdog, or without one."""
    with ExitStack() as stack:

        def connect(watchdog_seconds: float = 0, **environ: str) -> Notifier:
            notifier = Notifier(manager.environment(watchdog_seconds) | environ)
            stack.callback(notifier.close)
            return notifier

        yield connect


def test_messages_to_a_manager_arrive_and_variables_are_removed(
    manager: ServiceManager,
) -> None:
    """Each value is one line; the variables are removed."""
    environ = {**manager.environment(watchdog_seconds=3), "A": "1"}
    notifier = Notifier(environ)
    assert environ == {"A": "1"}
    assert (notifier.is_on, notifier.watchdog_seconds) == (True, 3)
    notifier.send("STATUS=a\nREADY=1", "WATCHDOG=1")
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    notifier.ready()
    notifier.stopping()
    status, reloading, *rest = manager.receive()
    assert status == ["STATUS=a READY=1", "WATCHDOG=1"]
    assert reloading[0] == "RELOADING=1"
    assert before <= int(reloading[1].removeprefix("MONOTONIC_USEC=")) < before + 10**7
    assert rest == [["READY=1"], ["STOPPING=1", "STATUS=stopping"]]
    notifier.close()


def test_notifier_without_a_manager_sends_nothing() -> None:
    """There is no watchdog either."""
    notifier = Notifier({"WATCHDOG_USEC": "1000000"})
    assert (notifier.is_on, notifier.watchdog_seconds) == (False, 0)
    threads = threading.active_count()
    with notifier.extending("starting", check_seconds=0.001):
        assert threading.active_count() == threads
    notifier.ready()
    notifier.close()


def test_watchdog_of_another_process_is_not_fed(connect: Connect) -> None:
    """Nor one without a time."""
    for usec, pid in (("1000000", "1"), ("x", ""), ("-5", ""), ("", "")):
        notifier = connect(WATCHDOG_USEC=usec, WATCHDOG_PID=pid)
        assert notifier.watchdog_seconds == 0


def test_manager_that_cannot_be_reached_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process serves all the same."""
    for address in ("/none/at/all", "@", "relative", "vsock:2:1", "/" * 200):
        caplog.clear()
        notifier = Notifier({"NOTIFY_SOCKET": address})
        for _ in range(3):
            notifier.ready()
        assert [m.split()[0] for m in caplog.messages] == ["notify.failed"], address
        notifier.close()


def test_full_socket_does_not_wait_and_loses_only_what_is_repeated(
    manager: ServiceManager, connect: Connect
) -> None:
    """`READY=1` is sent with the next message for which there is room."""
    notifier = connect()
    for _ in range(10_000):
        notifier.send("STATUS=x")
    notifier.ready()
    notifier.send("STATUS=y")
    assert set(manager.lines) == {"STATUS=x"}
    notifier.send("STATUS=z")
    assert manager.receive()[-2:] == [["READY=1"], ["STATUS=z"]]


def idle_disk() -> SimpleNamespace:
    """Return what a heartbeat asks, on a device that is known."""
    return SimpleNamespace(stalled=0.0, completed=7)


def heart_of(connect: Connect, disk: SimpleNamespace, seconds: float = 4) -> Heartbeat:
    """Return a heartbeat with a watchdog of some seconds."""
    return Heartbeat(
        connect(seconds),
        stalled=lambda: disk.stalled,
        completed=lambda: disk.completed,
        status=lambda: "fine",
    )


def test_first_beat_says_ready(manager: ServiceManager, connect: Connect) -> None:
    """Once; the interval is half of the watchdog's time, at most ten seconds."""
    heart = heart_of(connect, idle_disk())
    assert heart.interval == 2
    heart.beat()
    heart.beat()
    beat = ["STATUS=fine", "WATCHDOG=1"]
    assert manager.receive() == [["READY=1"], beat, beat]
    for seconds in (60, 0):
        heart = heart_of(connect, idle_disk(), seconds)
        assert heart.interval == 10
        heart.beat()
    ready = ["READY=1"]
    assert manager.receive()[3:] == [ready, beat, ready, ["STATUS=fine"]]


def test_watchdog_is_not_fed_while_the_disk_completes_nothing(
    manager: ServiceManager, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor if it is unknown what it completes. It is logged once for each time."""
    caplog.set_level(logging.INFO)
    disk = idle_disk()
    heart = heart_of(connect, disk)

    def is_fed() -> bool:
        manager.receive()
        manager.messages.clear()
        heart.beat()
        return "WATCHDOG=1" in manager.lines

    assert is_fed()
    disk.stalled = 1.9
    assert is_fed()
    disk.stalled = 2.1  # What the disk completed before is not known yet.
    assert [is_fed() for _ in range(3)] == [True, False, False]
    disk.completed = 8  # It is slow.
    assert is_fed()
    assert not is_fed()
    disk.stalled, disk.completed = 601, 9  # It is something else that hangs.
    assert not is_fed()
    disk.stalled = 0
    assert is_fed()
    disk.stalled, disk.completed = 9, None
    assert not is_fed()
    events = [message.split()[0] for message in caplog.messages]
    assert events == ["watchdog.withheld"] * 2


def test_start_is_extended_while_the_process_works(
    manager: ServiceManager, connect: Connect
) -> None:
    """Not while it waits; by default, its CPU time tells."""
    notifier = connect()
    line = "EXTEND_TIMEOUT_USEC=60000000"
    for first, then, extends in (
        ((1.0, 5), (2.0, 5), True),
        ((1.0, 5), (1.0, 6), True),
        ((1.0, 5), (1.001, 5), False),
    ):
        work_done = Mock(side_effect=chain([first], repeat(then)))
        with notifier.extending("opening", check_seconds=0.005, work_done=work_done):
            wait_until(partial(lambda done: done.call_count > 3, work_done), "checks")
        assert manager.lines[0] == "STATUS=opening"
        assert manager.lines.count(line) == extends
        manager.messages.clear()

    def works() -> bool:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return line in manager.lines

    with notifier.extending("opening", check_seconds=0.05):
        wait_until(works, "a message")


def test_completed_requests_without_a_device_are_unknown() -> None:
    """As of /proc; of others it is a number."""
    assert completed_requests("/proc")() is None
    device = os.stat("/").st_dev  # noqa: PTH116
    is_known = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists()
    assert (completed_requests("/")() is not None) == is_known
