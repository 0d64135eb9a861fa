"""The report of `volcache stats`."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from support.stats_server import (
    add_reads,
    empty_stats,
    hot_tier,
    memcache,
    two_rings,
    volume,
)
from support.tables import rows
from volcache.errors import InstanceError
from volcache.monitoring.terminal import report


def shown(stats: Any, before: Any = None) -> dict[str, str]:
    """Return the lines of a report by their names."""
    return {line[:12].strip(): line[12:] for line in report(stats, before)}


def test_empty_instance_has_a_report() -> None:
    """There is no division by zero, and no line of durations or rings."""
    assert shown(empty_stats()) == {
        "instance": "volcache 0.1.0, mount point data, up 1 s, ready",
        "reads": "none",
        "requests": "0.0/s, 0 since start, sent 0 B/s, received 0 B/s",
        "volumes": "4, 1.0 GiB each, active 0, sequence number 1, written 0 B",
        "eviction": "fifo",
        "space": "live 0 B, dead 0 B, free 4.0 GiB, keys 0",
        "hot tier": "off",
        "errors": "none",
        "hot keys": "not enough reads yet",
    }


def test_rates_and_times_are_those_since_the_previous_report() -> None:
    """After a restart, when counters are smaller, they are those since the start."""
    before = empty_stats()
    add_reads(before, 1000, 1000, bucket=30)
    now = copy.deepcopy(before)
    now["now"] += 2
    # A line that was shown before stays.
    none = {"GET": "none", "disk read": "none"}
    assert none.items() <= shown(now, before).items()
    add_reads(now, 90, 10, bucket=17)
    lines = shown(now, before)
    assert lines["reads"] == "90.0% hits (MEMC 0.0%, DISK 90.0%), 10.0% misses"
    assert lines["requests"].startswith("50.0/s, 2,100 since start, sent 2.8")
    assert lines["GET"] == "p50 93 µs, p99 130 µs"
    again = empty_stats()
    again["started"] = before["started"] + 1
    add_reads(again, 5, 5)
    assert shown(again, now)["reads"].startswith("50.0% hits")


def test_report_of_an_instance_with_problems_shows_them() -> None:
    """A disk that cannot be read, errors by kind, a memcached that is down."""
    stats = empty_stats()
    stats["ready"] = False
    stats["store"] |= {"damaged_records": 3, "read_errors": 4, "sync_errors": 1}
    stats["hot"] = hot_tier(is_up=False)
    lines = shown(stats)
    assert lines["instance"].endswith(", NOT READY")
    assert lines["errors"] == "damaged records 3, disk errors 5 (read 4, sync 1)"
    down = "127.0.0.1:11211 DOWN, promoted keys 0, failures 3 (refused 3)"
    assert lines["hot tier"] == down
    stats["hot"] = hot_tier(is_up=True) | {"promoted_keys": 5678}
    assert shown(stats)["hot tier"] == "127.0.0.1:11211 up, promoted keys 5,678"


def test_report_of_two_rings_has_a_line_for_each() -> None:
    """One line for each ring; what is not known is left out."""
    stats = empty_stats(volumes=16)
    rings = ("main", "main", "probation")
    volumes = [
        volume(number, used=1 << 29, state="sealed", ring=ring)
        for number, ring in enumerate(rings)
    ]
    stats["store"] |= {"eviction": "frequency", "volumes": volumes}
    stats["rings"] = two_rings(volumes)
    assert (
        shown(stats).items()
        >= {
            "eviction": "frequency, write amplification 1.00",
            "main": "volumes 2, written 1.0 GiB, live 1.0 GiB, records 16,384",
            "probation": "volumes 1, written 512.0 MiB, live 512.0 MiB, records 8,192",
        }.items()
    )
    stats["rings"] |= {"gained_hits_ratio": -0.0312, "write_amplification": 1.2345}
    stats["rings"]["reclaim"] = {"volume": 2, "done_ratio": 0.25}
    assert shown(stats, stats)["eviction"] == (
        "frequency, write amplification 1.23, estimated gain over fifo -3.1% of GETs,"
        " volume 2 is being reclaimed, 25.0% of it done"
    )


def test_five_of_the_hottest_keys_are_shown() -> None:
    """The JSON has more, and may come from anywhere: no control character is shown."""
    stats = empty_stats()
    names = ["a\x1b[2J\x9b\u202eb", *(f"k{number}" for number in range(1, 10))]
    stats["hottest"] = [{"key": name, "reads": 6400} for name in names]
    expected = [f"{name} (about 6,400)" for name in ("a?[2J??b", *names[1:5])]
    assert shown(stats)["hot keys"] == ", ".join(expected)


@rows("latency", "store", "started", "hot", "rings")
def test_report_without_some_numbers_is_an_error(missing: str) -> None:
    """As of an instance of another version."""
    stats = empty_stats()
    del stats[missing]
    with pytest.raises(InstanceError, match="numbers are missing"):
        report(stats, empty_stats())


def test_memcached_protocol_has_lines_if_it_is_on() -> None:
    """Commands and hits, and a line of durations for each kind that was used."""
    before = empty_stats()
    before["memcache"] = memcache(hits=10)
    now = copy.deepcopy(before)
    now["now"] += 2
    now["memcache"] = memcache(hits=40, misses=10, stored=20)
    now["memcache"]["connections"]["refused"] = 4
    lines = shown(now, before)
    assert lines["memcache"] == (
        "30.0/s, 70 since start, 75.0% hits, 25.0% misses, sent 14.6 KiB/s,"
        " received 9.8 KiB/s, connections 3, refused 4"
    )
    assert lines["cmd get"] == lines["cmd set"] == "p50 93 µs, p99 130 µs"
    assert "cmd delete" not in lines
