"""Several instances that serve numbers which a test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.ports import pick_port
from support.stats_server import StatsServer, empty_stats
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
