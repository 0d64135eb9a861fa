"""The table of instances, their totals, and the report for programs."""

from __future__ import annotations

import json

import pytest

from support.fake_fleet import URL, busy, watched
from support.stats_server import empty_stats
from volcache.fleet.checks import check
from volcache.fleet.collector import Watched
from volcache.fleet.report import as_json, compact, table, totals, worst_first
from volcache.fleet.targets import Target


def test_report_has_the_worst_first_then_the_busiest() -> None:
    """An instance that the list excludes is none of the problems."""
    limited = empty_stats()
    limited["process"]["open_fds"] = 1000
    rows = [
        watched("idle", empty_stats()),
        watched("warned", limited),
        watched("busy", busy(9, 0)),
        watched("down", "refused"),
        watched("out", "refused", is_down=True),
    ]
    found = worst_first(rows)
    names = [one.target.name for one in found]
    assert names == ["down", "warned", "busy", "idle", "out"]
    assert [one.health.state for one in found] == ["down", "warning", "ok", "ok", "out"]


def test_json_report_has_all_numbers() -> None:
    """Those of an instance that does not answer are null."""
    found = json.loads(
        json.dumps(as_json([watched("a", busy(3, 1)), watched("b", "refused")]))
    )
    assert found["healthy"] is False
    assert found["states"] == {"down": 1, "ok": 1}
    assert found["notes"] == []
    assert found["total"] == {
        "instances": 2,
        "down": 1,
        "keys": 0,
        "live_bytes": 0,
        "capacity_bytes": 4 << 30,
        "request_rate": 0.4,
        "hit_rate": pytest.approx(0.3),
        "miss_rate": 0.1,
        "misdirected_rate": 0.0,
        "get_rate": 0.4,
        "put_rate": 0.0,
        "sent_rate": pytest.approx(3 * 65536 / 10),
        "received_rate": 0.0,
        "hit_ratio": pytest.approx(0.75),
        "own_hit_ratio": pytest.approx(0.75),
        "p99_seconds": pytest.approx(131e-6, rel=0.05),
    }
    up, down = found["instances"]
    assert (up["state"], up["version"], up["hit_ratio"]) == (
        "ok",
        "0.1.0",
        pytest.approx(0.75),
    )
    target = {"name": "b", "url": URL, "machine": "h", "weight": 1}
    health = {"severity": 3, "state": "down", "problem": "refused"}
    assert down == {**dict.fromkeys(up), **target, **health}


def test_table_on_a_terminal_aligns_and_fits() -> None:
    """A reason that does not fit is below; none is cut off."""
    many = busy(900_000, 100_000)
    many["store"] |= {"keys": 123_456_789, "live_bytes": 1023 << 40}
    rows = worst_first(
        [
            watched("255.255.255.255:65535", many),
            watched("a:1", "the response is not from volcache, but of a web server"),
            watched("cache-1.example.org:1", empty_stats()),
        ]
    )
    lines = table(rows, columns=100)
    assert max(len(line) for text in lines for line in text.split("\n")) <= 100
    assert len({line.rindex("  ") for line in lines[2:]}) == 1
    reason = "  the response is not from volcache, but of a web server"
    assert lines[1].split("\n")[1:] == [reason]
    assert lines[1].split("\n")[0].endswith(" down")
    assert table(rows)[1].endswith("of a web server")
    coloured = table(rows, is_coloured=True)
    assert "\x1b[1;31mdown: the" in coloured[1]
    assert "\x1b" not in coloured[0] + coloured[2]
    assert lines[2].split() == [
        *("255.255.255.255:65535", "123.5", "M", "1023.0", "TiB", "100.0", "k", "0"),
        *("90.0%", "130", "µs", "ok"),
    ]


def test_table_on_a_narrow_terminal_has_fewer_columns() -> None:
    """So that lines do not wrap, down to the name and the state."""
    for columns, heads in (
        (100, "INSTANCE KEYS LIVE GET/s PUT/s HITS P99 STATE"),
        (80, "INSTANCE KEYS GET/s PUT/s HITS P99 STATE"),
        (60, "INSTANCE GET/s HITS P99 STATE"),
        (20, "INSTANCE STATE"),
    ):
        rows = [watched("255.255.255.255:65535", "refused by it")]
        lines = table(rows, columns=columns)
        assert lines[0].split() == heads.split()
        whole = [line for text in lines for line in text.split("\n")]
        assert max(map(len, whole)) <= max(columns, 21 + 2 + 9)
    # A long name has a third of the line.
    lines = table([watched("cache-with-a-very-long-name.example.org:1234", "x")])
    assert lines[1].split()[0] == "cache-with-a-very-long-name.exa..."


def test_totals_sum_the_instances_that_answer() -> None:
    """Two lines: the states, the worst first; then the sums, with a ratio of all reads."""
    rows = [watched("a", busy(9000, 0)), watched("b", "x"), watched("c", busy(0, 1000))]
    assert totals(rows) == [
        "3 instances: 1 down, 2 ok",
        "0 keys, 0 B live of 8.0 GiB, 1,000 GET/s, 0 PUT/s, 90.0% hits, p99 130 µs",
    ]
    assert totals(rows[1:2])[1] == "0 keys, 0 B live of 0 B, 0 GET/s, 0 PUT/s, no reads"


def test_totals_with_refused_keys_have_notes() -> None:
    """One line, whoever refuses them; another if their instances answer."""

    def refusing(name: str, *others: tuple[str, float]) -> Watched:
        stats = busy(9, 0, seconds=1000.0)
        rows = [{"owner": o, "last": stats["now"] - age} for o, age in others]
        stats["requests"]["others"] = rows
        one = watched(name, stats)
        one.target = Target(name, f"http://{name}")
        return one

    down = watched("c:1", "refused")
    down.target = Target("c:1", "http://c:1")
    rows = [refusing("a:1", ("c:1", 2.0)), refusing("b:1", ("c:1", 9.0)), down]
    line = "keys of c:1 are refused by others (expected while it is down)"
    assert [row.health.severity for row in rows] == [0, 0, 3]
    assert totals(rows)[2:] == as_json(rows)["notes"] == [line]
    assert not [one for one in check(rows) if one.check == "ring"]
    # It answers, and has done so before keys of it were refused.
    rows = [refusing("a:1", ("c:1", 2.0)), refusing("c:1", ("x:1", 1.0))]
    assert totals(rows)[2:] == [
        "keys of x:1 are refused by others (expected while it is down)",
        "keys of c:1 are refused by others although it answers: see cluster check-config",
    ]
    (found,) = (one for one in check(rows) if one.check == "ring")
    assert found.text.startswith("keys of c:1 are refused by a:1, although it answers")
    # It has just returned.
    rows = [refusing("a:1", ("c:1", 2000.0)), refusing("c:1")]
    assert totals(rows)[2:] == []


def test_compact_number_has_at_most_7_characters() -> None:
    """At most seven characters."""
    numbers = (0, 0.26, 3.0, 9.96, 9999, 9999.7, 999_949, 999_951, 4e13)
    texts = "0", "0.3", "3", "10", "9,999", "10.0 k", "999.9 k", "1.0 M", "40.0 T"
    assert tuple(map(compact, numbers)) == texts
