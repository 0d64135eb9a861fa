"""Several instances that serve numbers which a test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.ports import pick_port
from support.stats_server import StatsServer, empty_stats
from support.waiting import wait_until
from volcache.fleet.dashboard import Dashboard, DashboardServer, run
from volcache.fleet.poller import Poller
from volcache.fleet.targets import Target


@contextmanager
def fake_fleet(count: int) -> Iterator[list[StatsServer]]:
    """Run instances until the context ends."""
    with ExitStack() as stack:
        fleet = [stack.enter_context(StatsServer(empty_stats())) for _ in range(count)]
        for one in fleet:
            one.stats["process"]["pid"] = one.port
        yield fleet


def targets_of(fleet: list[StatsServer]) -> list[Target]:
    """Return the targets of instances."""
    return [Target(one.name, one.url) for one in fleet]


def free_address() -> str:
    """Return a HOST:PORT where nothing listens."""
    return f"127.0.0.1:{pick_port()}"


@contextmanager
def served(
    *sources: str, interval: float = 0.2, request_seconds: float = 20.0
) -> Iterator[tuple[str, tuple[str, int]]]:
    """Serve the dashboard of some instances; yield its URL and address."""
    poller = Poller(sources, interval=interval, timeout=1.0)
    server = DashboardServer(
        Dashboard(poller), "127.0.0.1", 0, request_seconds=request_seconds
    )
    is_over = threading.Event()
    others = set(threading.enumerate())
    thread = threading.Thread(target=run, args=[poller, server, is_over.wait])
    thread.start()
    try:
        yield server.url, ("127.0.0.1", server.server_port)
    finally:
        is_over.set()
        thread.join()
        # A loop on a closed socket would take a processor until the process ends.
        wait_until(
            lambda: all(
                one in others or one.name != "serve" for one in threading.enumerate()
            ),
            "the end of the loop",
        )
