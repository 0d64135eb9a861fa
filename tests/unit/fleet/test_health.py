"""What matters most about an instance."""

from __future__ import annotations

from typing import Any

from support.stats_server import empty_stats, hot_tier, memcache
from volcache.errors import InstanceError
from volcache.fleet.health import (
    DEGRADED,
    DOWN,
    HEALTHY,
    WARNING,
    health_of,
    refused,
)

NOW = 1_800_000_000.0


def stats_of(**store: Any) -> dict[str, Any]:
    """Return the numbers of an instance, an hour after its start."""
    stats = empty_stats()
    stats |= {"now": NOW, "started": NOW - 3600, "uptime_seconds": 3600.0}
    stats["store"] |= store
    return stats


def answered(**statuses: int) -> dict[str, Any]:
    """Return the numbers of an instance that has answered lately, by status."""
    stats = stats_of()
    stats["requests"]["recent"] = [
        {"status": int(status[1:]), "count": count}
        for status, count in statuses.items()
    ]
    return stats


def test_health_without_problems_is_ok() -> None:
    """What an older version does not tell is not judged, nor is nonsense."""
    big = 10**400
    odd = stats_of(read_errors=float("inf"), write_errors=big, sync_errors=True)
    older: list[dict[str, Any]] = [{}, {"store": None, "requests": []}, {"store": []}]
    for stats in (stats_of(), odd, *older):
        assert health_of(stats) == (HEALTHY, "ok", "")


def test_health_without_an_answer_is_down() -> None:
    """The reason is the problem."""
    found = health_of(InstanceError("http://h:1", "no\x1b answer"))
    assert found == (DOWN, "down", "no? answer")


def test_health_of_not_ready_is_worse_than_errors() -> None:
    """It is said first."""
    stats = stats_of(read_errors=3, last_errors={"read": NOW})
    stats["ready"] = False
    found = health_of(stats)
    assert found[:2] == (DEGRADED, "not ready")
    assert found.problem == "it is stopping, or its disk cannot be read"


def test_health_after_an_error_improves_with_time() -> None:
    """As on the page of an instance; its text is shown if the instance tells it."""
    ages = {5: DEGRADED, 299: DEGRADED, 301: WARNING, 86_000: WARNING, 90_000: 0}
    for age, severity in ages.items():
        found = health_of(stats_of(write_errors=2, last_errors={"write": NOW - age}))
        assert found.severity == severity
        assert not severity or found.problem.startswith("2 write errors, the last ")
    texts = {"write": "no\tspace\x1b"}
    last = {"last_errors": {"write": NOW - 4}, "last_error_texts": texts}
    found = health_of(stats_of(write_errors=1, **last))
    assert found.problem == "1 write error, the last 4 s ago: no space?"


def test_health_after_damage_is_a_warning() -> None:
    """Values were lost, and others are served."""
    for store, problem in (
        (
            {"damaged_records": 1, "last_errors": {"damaged": NOW}},
            "1 damaged record, the last",
        ),
        ({"recovery": {"meta_lost": True}}, "META.txt was lost"),
        ({"recovery": {"damaged": 2}}, "2 damaged places at its start"),
    ):
        found = health_of(stats_of(**store))
        assert found[:2] == (WARNING, "warning")
        assert found.problem.startswith(problem)


def test_health_of_a_disk_that_refuses_to_write_is_degraded() -> None:
    """Before the errors that are the consequence; one that is too small is a warning."""
    for state in ("full", "read-only"):
        stats = stats_of(write_errors=1, last_errors={"write": NOW})
        stats["store"]["disk"] = {"state": state, "limited": True, "volumes": 0}
        problem = f"the disk refuses to write: it is {state}"
        assert health_of(stats) == (DEGRADED, "degraded", problem)
    disk = {"state": None, "limited": True, "volumes": 3}
    found = health_of(stats_of(volume_num=64, disk=disk))
    assert found == (WARNING, "warning", "the disk has space for 3 of 64 volumes")
    assert health_of(stats_of(disk={**disk, "limited": False})).severity == HEALTHY


def test_health_with_memcached_down_is_a_warning() -> None:
    """It is named."""
    stats = stats_of()
    stats["hot"] = hot_tier(is_up=False)
    assert health_of(stats).problem == "memcached is down: 127.0.0.1:11211"
    stats["hot"]["servers"].append({"address": "b:1", "up": True})
    assert (
        health_of(stats).problem == "1 of 2 memcached servers is down: 127.0.0.1:11211"
    )
    stats["hot"] = hot_tier(is_up=True)
    assert health_of(stats).severity == HEALTHY


def test_health_with_many_answers_5xx_is_a_warning() -> None:
    """More than one in a hundred of those of the last minutes."""
    assert health_of(answered(s200=990, s503=10)).severity == HEALTHY
    found = health_of(answered(s200=900, s404=50, s503=40, s507=10))
    assert found[:2] == (WARNING, "warning")
    assert found.problem == "5.0% of the last requests are answered 503, 507"
    stats = answered(s200=1000)
    stats["requests"]["by"] = [{"method": "GET", "status": 503, "count": 10**6}]
    assert health_of(stats).severity == HEALTHY


def test_health_with_many_failed_commands_is_a_warning() -> None:
    """More than one in a hundred of those of the last minutes."""
    stats = stats_of()
    stats["memcache"] = memcache()
    for failed, severity in ((9, HEALTHY), (100, WARNING)):
        rows = [{"result": "hit", "count": 900}, {"result": "failed", "count": failed}]
        stats["memcache"]["recent"] = rows
        assert health_of(stats).severity == severity
    assert health_of(stats).problem == "10.0% of the last memcached commands failed"


def test_health_with_few_descriptors_left_is_a_warning() -> None:
    """More than 80 % of the limit are in use."""
    stats = stats_of()
    stats["process"] |= {"open_fds": 900, "max_fds": 1024}
    assert health_of(stats).problem == "900 of 1,024 file descriptors are in use"


def test_health_with_refused_keys_of_others_is_ok() -> None:
    """They are expected while their instance is down; whatever is odd in the numbers."""
    stats = stats_of()
    rows = [{"owner": "h:1\x1b", "last": NOW - 5}, {"owner": "i", "last": NOW + 5}, 7]
    stats["requests"] |= {"misdirected": {"read": 1200, "write": 3}, "others": rows}
    assert health_of(stats) == (HEALTHY, "ok", "")
    assert refused(stats) == {"h:1?": 5.0, "i": 0.0}
    stats["requests"]["others"] = 5
    assert refused(stats) == {}
    assert refused({}) == {}
