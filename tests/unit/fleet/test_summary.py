"""Rows of instances, their totals, and the table that shows them."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from typing import Any

import pytest

from support.background import in_background
from support.fake_fleet import fake_fleet, free_address, targets_of
from support.stats_server import add_reads, empty_stats, memcache
from volcache.errors import InstanceError
from volcache.fleet.summary import Row, as_json, figures_of, poll, row_of, worst_first
from volcache.fleet.table import compact, table, totals
from volcache.fleet.targets import Target

URL = "http://h:1"


def row(name: str, stats: dict[str, Any] | str, **more: Any) -> Row:
    """Return a row of numbers, or of the reason why there are none."""
    found = InstanceError(URL, stats) if isinstance(stats, str) else stats
    return row_of(Target(name, URL, **more), found)


def busy(hits: int, misses: int, *, seconds: float = 10.0) -> dict[str, Any]:
    """Return the numbers of an instance that was started seconds ago."""
    stats = empty_stats()
    stats["uptime_seconds"] = seconds
    stats["started"] = stats["now"] - seconds
    add_reads(stats, hits, misses)
    return stats


def test_rates_are_those_since_the_start_or_the_poll_before() -> None:
    """Paths of the operator are in the answers by method, and are not counted."""
    then, now = busy(75, 25), busy(95, 45)
    now |= {"started": then["started"], "now": then["now"] + 2}
    now["requests"]["by"] += [
        {"method": "PUT", "status": 200, "count": 6},
        {"method": "GET", "status": 421, "count": 1000},
    ]
    first, second = figures_of(then), figures_of(now, then)
    assert (first.get_rate, first.put_rate, first.hit_ratio) == (10.0, 0.0, 0.75)
    assert (second.get_rate, second.put_rate, second.hit_ratio) == (20.0, 3.0, 0.5)
    assert second.durations.count == 40
    assert second.p99_seconds == pytest.approx(131e-6, rel=0.05)
    # After a restart, the numbers before it are of another process.
    then, now = busy(1000, 0, seconds=100), busy(20, 0, seconds=2)
    assert figures_of(now, then).get_rate == 10.0


def test_commands_of_memcached_clients_are_part_of_the_figures() -> None:
    """As GETs and PUTs; also if the instance had none before."""
    stats = busy(10, 10)
    stats["memcache"] = memcache(hits=60, stored=30)
    figures = figures_of(stats)
    assert (figures.get_rate, figures.put_rate) == pytest.approx((8, 3))
    assert (figures.hit_ratio, figures.durations.count) == (70 / 80, 80)


def test_numbers_that_are_missing_are_zero_or_unknown() -> None:
    """An older version is shown as far as it goes."""
    odd = {"store": 1, "requests": {"by": [1], "hits": []}, "latency": []}
    for older in ({}, odd):
        found = figures_of(older)
        assert (found.keys, found.capacity_bytes, found.get_rate) == (0, 0, 0.0)
        assert (found.hit_ratio, found.p99_seconds) == (None, None)


def test_the_worst_is_first_then_the_busiest() -> None:
    """An instance that the list excludes is none of the problems."""
    limited = empty_stats()
    limited["process"]["open_fds"] = 1000
    rows = [
        *(row("idle", empty_stats()), row("warned", limited), row("busy", busy(9, 0))),
        *(row("down", "refused"), row("out", "refused", is_down=True)),
    ]
    found = worst_first(rows)
    names = [r.target.name for r in found]
    assert names == ["down", "warned", "busy", "idle", "out"]
    assert [r.health.state for r in found] == ["down", "warning", "ok", "ok", "out"]


def test_the_report_for_programs_has_all_numbers() -> None:
    """Those of an instance that does not answer are null."""
    found = json.loads(json.dumps(as_json([row("a", busy(3, 1)), row("b", "refused")])))
    assert found["healthy"] is False
    assert found["states"] == {"down": 1, "ok": 1}
    assert found["total"] == {
        "instances": 2,
        "down": 1,
        "keys": 0,
        "live_bytes": 0,
        "capacity_bytes": 4 << 30,
        "get_rate": 0.4,
        "put_rate": 0.0,
        "hit_ratio": 0.75,
        "p99_seconds": pytest.approx(131e-6, rel=0.05),
    }
    up, down = found["instances"]
    assert (up["state"], up["version"], up["hit_ratio"]) == ("ok", "0.1.0", 0.75)
    target = {"name": "b", "url": URL, "machine": "", "weight": 1}
    health = {"severity": 3, "state": "down", "problem": "refused"}
    assert down == {**dict.fromkeys(up), **target, **health}


def test_all_instances_are_asked_at_the_same_time() -> None:
    """So that a poll takes one time-out however many hang: half of 400."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as listener:

        def answer_when_all_are_there(_: object) -> None:
            held = [listener.accept()[0] for _ in range(200)]
            for connection in held:
                connection.close()

        refused = f"http://{free_address()}"
        asked = f"http://127.0.0.1:{listener.getsockname()[1]}"
        urls = [f"{(refused, asked)[n % 2]}/{n}" for n in range(400)]
        targets = [Target(url, url) for url in urls]
        with in_background(answer_when_all_are_there):
            rows = poll(targets, timeout=30.0)
    assert [r.target for r in rows] == targets
    assert {r.health.problem for r in rows[::2]} == {"Connection refused"}
    assert "no answer within 30 s" not in {r.health.problem for r in rows[1::2]}


def test_a_poll_compares_with_the_one_before() -> None:
    """An instance that was down before has the rates since its start."""
    with fake_fleet(1) as fleet:
        targets = [*targets_of(fleet), Target("gone", f"http://{free_address()}")]
        before = poll(targets)
        add_reads(fleet[0].stats, 10, 0)
        (first, second) = poll(targets, before)
    assert first.figures
    assert first.figures.hits == 10
    assert second.health.problem == "Connection refused"


def test_columns_align_and_lines_fit() -> None:
    """Only the last column is cut off."""
    many = busy(900_000, 100_000)
    many["store"] |= {"keys": 123_456_789, "live_bytes": 1023 << 40}
    rows = worst_first(
        [
            row("255.255.255.255:65535", many),
            row("a:1", "the response is not from volcache, but of a web server"),
            row("cache-1.example.org:1", empty_stats()),
        ]
    )
    lines = table(rows, columns=100)
    assert max(map(len, lines)) <= 100
    assert len({line.rindex("  ") for line in lines[2:]}) == 1
    assert lines[1].endswith("down: the response is not...")
    assert table(rows)[1].endswith("of a web server")
    coloured = table(rows, is_coloured=True)
    assert "\x1b[1;31mdown: the" in coloured[1]
    assert "\x1b" not in coloured[0] + coloured[2]
    assert lines[2].split() == [
        *("255.255.255.255:65535", "123.5", "M", "1023.0", "TiB", "100.0", "k", "0"),
        *("90.0%", "130", "µs", "ok"),
    ]


def test_a_narrow_terminal_has_fewer_columns() -> None:
    """So that lines do not wrap, down to the name and the state."""
    for columns, heads in (
        (100, "INSTANCE KEYS LIVE GET/s PUT/s HITS P99 STATE"),
        (80, "INSTANCE KEYS GET/s PUT/s HITS P99 STATE"),
        (60, "INSTANCE GET/s HITS STATE"),
        (20, "INSTANCE STATE"),
    ):
        rows = [row("255.255.255.255:65535", "refused by it")]
        lines = table(rows, columns=columns)
        assert lines[0].split() == heads.split()
        assert max(map(len, lines)) <= max(columns, 21 + 2 + 16)
    # A long name has a third of the line.
    lines = table([row("cache-with-a-very-long-name.example.org:1234", "x")])
    assert lines[1].split()[0] == "cache-with-a-very-long-name.exa..."


def test_totals_are_those_of_the_instances_that_answer() -> None:
    """Two lines: the states, the worst first; then the sums, with a ratio of all reads."""
    rows = [row("a", busy(9000, 0)), row("b", "x"), row("c", busy(0, 1000))]
    assert totals(rows) == [
        "3 instances: 1 down, 2 ok",
        "0 keys, 0 B live of 8.0 GiB, 1,000 GET/s, 0 PUT/s, 90.0% hits, p99 130 µs",
    ]
    assert totals(rows[1:2])[1] == "0 keys, 0 B live of 0 B, 0 GET/s, 0 PUT/s, no reads"


def test_large_numbers_are_short() -> None:
    """At most seven characters."""
    numbers = (0, 0.26, 3.0, 9.96, 9999, 9999.7, 999_949, 999_951, 4e13)
    texts = "0", "0.3", "3", "10", "9,999", "10.0 k", "999.9 k", "1.0 M", "40.0 T"
    assert tuple(map(compact, numbers)) == texts
