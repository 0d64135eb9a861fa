"""Several instances that serve numbers which a test sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from support.ports import pick_port
from support.stats_server import StatsServer, add_reads, empty_stats
from volcache.errors import InstanceError
from volcache.fleet.collector import Watched
from volcache.fleet.targets import Target

URL = "http://h:1"


@contextmanager
def fake_fleet(count: int) -> Iterator[list[StatsServer]]:
    """Run instances until the context ends."""
    with ExitStack() as stack:
        fleet = [stack.enter_context(StatsServer(empty_stats())) for _ in range(count)]
        for one in fleet:
            one.stats["process"]["pid"] = one.port
        yield fleet


def busy(hits: int, misses: int, *, seconds: float = 10.0) -> dict[str, Any]:
    """Return the numbers of an instance that was started seconds ago."""
    stats = empty_stats()
    stats["uptime_seconds"] = seconds
    stats["started"] = stats["now"] - seconds
    add_reads(stats, hits, misses)
    return stats


def watched(name: str, stats: dict[str, Any] | str, **target: Any) -> Watched:
    """Return an instance that has answered, or has not for a reason."""
    one = Watched(Target(name, URL, **target))
    tell(one, stats, 1000.0)
    return one


def tell(one: Watched, stats: dict[str, Any] | str, now: float) -> None:
    """Let an instance answer at a time."""
    if isinstance(stats, str):
        one.fail(InstanceError(URL, stats))
    else:
        one.receive(json.loads(json.dumps(stats)), now, now)


def free_address() -> str:
    """Return a HOST:PORT where nothing listens."""
    return f"127.0.0.1:{pick_port()}"
