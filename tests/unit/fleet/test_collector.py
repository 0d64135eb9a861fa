"""What is known of instances: figures, their rates, and what is not an answer."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from typing import Any

import pytest

from support.background import in_background
from support.fake_fleet import busy, free_address, tell, watched
from support.stats_server import memcache
from support.tables import rows
from volcache.fleet.collector import Figures, FleetCollector, Watched
from volcache.fleet.targets import Target


def figures_after(*polls: tuple[float, dict[str, Any]]) -> Figures:
    """Return the figures after polls at these times."""
    one = Watched(Target("a", "http://h:1"))
    for now, stats in polls:
        tell(one, stats, now)
    assert one.figures
    return one.figures


def test_rates_are_those_since_the_start_or_the_last_poll() -> None:
    """Paths of the operator are in the answers, and are no reads."""
    then, now = busy(75, 25), busy(95, 45)
    now["started"] = then["started"]
    now["requests"]["by"] += [
        {"method": "PUT", "status": 200, "count": 6},
        {"method": "GET", "status": 421, "count": 1000},
    ]
    first = figures_after((1000.0, then))
    second = figures_after((1000.0, then), (1002.0, now))
    assert (first.get_rate, first.put_rate, first.hit_ratio) == (10.0, 0.0, 0.75)
    assert (second.get_rate, second.put_rate, second.hit_ratio) == (20.0, 3.0, 0.5)
    assert second.durations.count == 40
    assert second.p99_seconds == pytest.approx(131e-6, rel=0.05)
    third = figures_after((1000.0, then), (1002.0, now), (1004.0, now))
    assert third.get_rate == 0.0
    # After a restart, the numbers before it are of another process.
    then, now = busy(1000, 0, seconds=100), busy(20, 0, seconds=2)
    assert figures_after((1000.0, then), (1002.0, now)).get_rate == 10.0


def test_misdirected_reads_lower_one_of_two_hit_ratios() -> None:
    """While their instance is down; so there are two hit ratios."""
    stats = busy(90, 10)
    stats["requests"]["misdirected"] = {"read": 100, "write": 7}
    figures = figures_after((1000.0, stats))
    assert (figures.hit_ratio, figures.own_hit_ratio) == (0.45, 0.9)
    assert figures.get_rate == pytest.approx(20)


def test_figures_include_commands_of_memcached_clients() -> None:
    """As reads and PUTs; also if the instance had none before."""
    stats = busy(10, 10)
    stats["memcache"] = memcache(hits=60, stored=30)
    figures = figures_after((1000.0, stats))
    assert (figures.get_rate, figures.put_rate) == pytest.approx((8, 3))
    assert (figures.hit_ratio, figures.durations.count) == (70 / 80, 80)
    assert figures.request_rate == pytest.approx(11)
    assert figures.received_rate == pytest.approx(3000)


@rows(
    {},
    {"requests": {"total": 3, "by": {"a": 1}}, "latency": None, "process": "x"},
    {"store": {"keys": "x", "free_bytes": {}, "mount_point": ["x"]}},
    {"store": {"keys": -5, "live_bytes": 1e308, "dead_bytes": 1e308}},
    {"requests": {"by": [1, None, {"method": [], "count": 1e300}], "total": 1e308}},
    {"latency": {"GET": {"counts": ["x"] * 64}}},
    {"latency": {"GET": {"counts": [1e308] * 64}}, "started": "soon", "now": {}},
    {"version": "\x1b[31m\n" * 999, "uptime_seconds": -1e308, "hot": 7},
)
def test_figures_of_wrong_numbers_are_zero_or_unknown(part: dict[str, Any]) -> None:
    """Whatever an instance answers, or an older version does not."""
    odd = {"store": {"keys": 1}, "requests": {"total": 2}} | part
    one = watched("a", busy(1, 0))
    for now in (1005.0, 1010.0):
        tell(one, odd, now)
    if one.figures:
        assert 0 <= one.figures.keys <= 1 << 63
        assert one.figures.hit_ratio is None
        json.dumps([*one.figures[:-1], one.figures.p99_seconds], allow_nan=False)
    else:
        assert (one.health.state, one.failure) == ("down", one.health.problem)
    assert one.about.version.isprintable()
    assert len(one.about.version) < 300


def test_instance_that_is_down_has_no_figures() -> None:
    """Those since its start when it is back."""
    one = watched("a", busy(1, 0))
    tell(one, "refused", 1015.0)
    assert (one.health.state, one.failure) == ("down", "refused")
    assert (one.figures, one.stats) == (None, None)
    tell(one, busy(5, 5, seconds=2), 1020.0)
    assert one.figures
    assert (one.health.state, one.failure) == ("ok", "")
    assert one.figures.get_rate == pytest.approx(5)


def test_poll_asks_all_instances_at_the_same_time() -> None:
    """So that a poll takes one time-out however many hang: half of 400."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as listener:

        def answer_when_all_are_there(_: object) -> None:
            held = [listener.accept()[0] for _ in range(200)]
            for connection in held:
                connection.close()

        asked = f"http://127.0.0.1:{listener.getsockname()[1]}"
        hosts = (f"http://{free_address()}", asked)
        urls = [f"{hosts[n % 2]}/{n}" for n in range(400)]
        collector = FleetCollector(urls, timeout=30.0)
        with in_background(answer_when_all_are_there):
            rows = collector.poll()
    assert [row.target.url for row in rows] == urls
    assert {row.health.state for row in rows} == {"down"}
    assert not [row for row in rows if "no answer" in row.failure]
