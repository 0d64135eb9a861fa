"""The report of `volcache stats`."""

from __future__ import annotations

import copy

import pytest

from support.stats_server import (
    add_reads,
    empty_stats,
    hot_tier,
    memcache,
    two_rings,
    volume,
)
from support.tables import each_row
from volcache.errors import InstanceError
from volcache.monitoring.terminal import report


def line_of(lines: list[str], name: str) -> str:
    """Return what a line shows."""
    (found,) = [line for line in lines if line.startswith(f"{name} ")]
    return found.removeprefix(name).strip()


def test_empty_instance_has_a_report() -> None:
    """There is no division by zero, and no line of durations."""
    lines = report(empty_stats())
    assert line_of(lines, "instance") == (
        "volcache 0.1.0, mount point data, up 1 s, ready"
    )
    assert line_of(lines, "reads") == "none"
    assert line_of(lines, "requests") == (
        "0.0/s, 0 since start, sent 0 B/s, received 0 B/s"
    )
    assert line_of(lines, "volumes") == (
        "4, 1.0 GiB each, active 0, sequence number 1, written 0 B"
    )
    assert line_of(lines, "eviction") == "fifo"
    assert not any(line.startswith(("main", "probation")) for line in lines)
    assert line_of(lines, "space") == "live 0 B, dead 0 B, free 4.0 GiB, keys 0"
    assert line_of(lines, "hot tier") == "off"
    assert line_of(lines, "errors") == "none"
    assert line_of(lines, "hot keys") == "not enough reads yet"
    assert not any(line.startswith(("GET", "disk")) for line in lines)


def test_rates_and_times_are_those_since_the_previous_report() -> None:
    """After a restart, when counters are smaller, they are those since the start."""
    before = empty_stats()
    add_reads(before, 1000, 1000, bucket=30)
    now = copy.deepcopy(before)
    now["now"] += 2
    # A line that was shown before stays.
    idle = report(now, before)
    assert line_of(idle, "GET") == line_of(idle, "disk read") == "none"
    add_reads(now, 90, 10, bucket=17)
    lines = report(now, before)
    assert line_of(lines, "reads") == (
        "90.0% hits (MEMC 0.0%, DISK 90.0%), 10.0% misses"
    )
    assert line_of(lines, "requests").startswith("50.0/s, 2,100 since start, sent 2.8")
    assert line_of(lines, "GET") == "p50 93 µs, p99 130 µs"
    again = empty_stats()
    again["started"] = before["started"] + 1
    add_reads(again, 5, 5)
    assert line_of(report(again, now), "reads").startswith("50.0% hits")


def test_problems_are_shown() -> None:
    """A disk that cannot be read, errors by kind, a memcached that is down."""
    stats = empty_stats()
    stats["ready"] = False
    stats["store"]["damaged_records"] = 3
    stats["store"]["read_errors"] = 4
    stats["store"]["sync_errors"] = 1
    stats["hot"] = hot_tier(is_up=False)
    lines = report(stats)
    assert line_of(lines, "instance").endswith(", NOT READY")
    assert line_of(lines, "errors") == (
        "damaged records 3, disk errors 5 (read 4, sync 1)"
    )
    assert line_of(lines, "hot tier") == (
        "127.0.0.1:11211 DOWN, promoted keys 0, failures 3 (refused 3)"
    )
    stats["hot"] = hot_tier(is_up=True) | {"promoted_keys": 5678}
    assert line_of(report(stats), "hot tier") == (
        "127.0.0.1:11211 up, promoted keys 5,678"
    )


def test_rings_and_eviction_are_shown() -> None:
    """One line for each ring; what is not known is left out."""
    stats = empty_stats(volumes=16)
    store = stats["store"]
    store["eviction"] = "frequency"
    store["volumes"] = [
        volume(0, used=1 << 29, state="sealed"),
        volume(1, used=1 << 29, state="sealed"),
        volume(2, used=1 << 29, state="sealed", ring="probation"),
    ]
    stats["rings"] = two_rings(store["volumes"])
    lines = report(stats)
    assert line_of(lines, "eviction") == "frequency, write amplification 1.00"
    assert line_of(lines, "main") == (
        "volumes 2, written 1.0 GiB, live 1.0 GiB, records 16,384"
    )
    assert line_of(lines, "probation") == (
        "volumes 1, written 512.0 MiB, live 512.0 MiB, records 8,192"
    )
    stats["rings"] |= {
        "gained_hits_ratio": -0.0312,
        "write_amplification": 1.2345,
        "reclaim": {"volume": 2, "done_ratio": 0.25},
    }
    assert line_of(report(stats, stats), "eviction") == (
        "frequency, write amplification 1.23, estimated gain over fifo -3.1% of GETs,"
        " volume 2 is being reclaimed, 25.0% of it done"
    )


def test_five_of_the_hottest_keys_are_shown() -> None:
    """The JSON has more, and may come from anywhere: no control character is shown."""
    stats = empty_stats()
    names = ["a\x1b[2J\x9b\u202eb", *(f"k{number}" for number in range(1, 10))]
    stats["hottest"] = [{"key": name, "reads": 6400} for name in names]
    shown = ("a?[2J??b", "k1", "k2", "k3", "k4")
    expected = ", ".join(f"{name} (about 6,400)" for name in shown)
    assert line_of(report(stats), "hot keys") == expected


@each_row("missing", ["latency", "store", "started", "hot", "rings"])
def test_missing_numbers_are_an_error(missing: str) -> None:
    """As of an instance of another version."""
    stats = empty_stats()
    del stats[missing]
    with pytest.raises(InstanceError, match="numbers are missing"):
        report(stats, empty_stats())


def test_memcached_protocol_has_lines_if_it_is_on() -> None:
    """Commands and hits, and a line of durations for each kind that was used."""
    before = empty_stats()
    assert not any(line.startswith(("memcache", "cmd")) for line in report(before))
    before["memcache"] = memcache(hits=10)
    now = copy.deepcopy(before)
    now["now"] += 2
    now["memcache"] = memcache(hits=40, misses=10, stored=20)
    now["memcache"]["connections"]["refused"] = 4
    lines = report(now, before)
    assert line_of(lines, "memcache") == (
        "30.0/s, 70 since start, 75.0% hits, 25.0% misses, sent 14.6 KiB/s,"
        " received 9.8 KiB/s, connections 3, refused 4"
    )
    assert line_of(lines, "cmd get") == "p50 93 µs, p99 130 µs"
    assert line_of(lines, "cmd set") == "p50 93 µs, p99 130 µs"
    assert not any(line.startswith("cmd delete") for line in lines)
