"""A process and its service manager: readiness, status, reloads, and a disk that hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.machine import Machine
from support.process import ServerProcess
from support.service_manager import ServiceManager
from support.waiting import wait_until
from support.wire import exchange, request_bytes, sending

pytestmark = pytest.mark.integration

MIB: Final = 1 << 20
SETTINGS: Final = {"volume_size": 16 * MIB, "volume_num": 2, "max_value_size": 4 * MIB}
WATCHDOG_SECONDS: Final = 1.0


def start(
    folder: Path, manager: ServiceManager, machine: Machine | None = None
) -> ServerProcess:
    """Return a server that is watched."""
    environment = manager.environment(WATCHDOG_SECONDS)
    return ServerProcess(
        folder / "store",
        settings=SETTINGS,
        environment=environment | (machine.environment if machine else {}),
    )


def test_manager_is_told_the_life_of_a_process(
    tmp_path: Path, manager: ServiceManager
) -> None:
    """Ready when it answers, with a status; reloads; and the stop."""
    server = start(tmp_path, manager)
    server.launch()
    try:
        manager.wait_for("READY=1")
        assert server.answers()
        assert manager.lines[0] == f"STATUS=opening the store {tmp_path}/store"
        manager.wait_for("WATCHDOG=1", times=3)
        assert exchange(server.port, "PUT", "/a", b"1").status == 200
        assert exchange(server.port, "GET", "/a").status == 200
        wait_until(
            lambda: any(
                line.startswith("STATUS=1 keys, ")
                and line.endswith(" GET/s, 100.0 % hits")
                for line in manager.lines
            ),
            "the figures of the GET",
        )
        server.send_signal(signal.SIGHUP)
        manager.wait_for("READY=1", times=2)
        lines = manager.lines
        assert lines.index("RELOADING=1") > lines.index("READY=1")
        assert server.terminate() == 0
        lines = manager.lines
        assert "STATUS=stopping" in lines
        assert lines.index("STOPPING=1") > lines.index("RELOADING=1")
    finally:
        server.__exit__()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return a machine whose disk can hang, and which does not tell what it completes."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.fail_reads_of("/sys/devices/")
    return machine


@pytest.fixture
def hung(
    tmp_path: Path, manager: ServiceManager, machine: Machine
) -> Iterator[ServerProcess]:
    """Yield a server whose disk hangs, with `/cold`, `/large` and `/hot`."""
    machine.slow_down("nothing", 0)
    with start(tmp_path, manager, machine) as server:
        values = (("cold", bytes(9000)), ("large", bytes(2 * MIB)), ("hot", b"hot"))
        for key, value in values:
            assert exchange(server.port, "PUT", f"/{key}", value).status == 200
        exchange(server.port, "PUT", "/end", bytes(9000))
        manager.wait_for("WATCHDOG=1")
        machine.slow_down("store/data/", 3600)
        yield server
        server.kill()  # As the service manager does.


def test_thread_that_hangs_at_the_disk_stops_the_watchdog(
    hung: ServerProcess, manager: ServiceManager
) -> None:
    """Although the loop lives, and sends the status."""
    with sending(hung.port, request_bytes("GET", "/cold")):
        wait_until(lambda: " watchdog.withheld " in hung.stderr, "the event")
        manager.receive()
        manager.messages.clear()
        wait_until(lambda: len(manager.receive()) >= 3, "messages")
        assert "WATCHDOG=1" not in manager.lines
        assert hung.answers()
