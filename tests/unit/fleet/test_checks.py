"""What is compared between instances."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_fleet import fake_fleet, free_address, watched
from support.stats_server import empty_stats
from volcache.fleet import checks
from volcache.fleet.checks import Finding
from volcache.fleet.collector import FleetCollector

# Names of instances, their numbers or why there are none, and their targets.
Seen = list[tuple[str, dict[str, Any] | str, dict[str, Any]]]


def seen(count: int, *, weight: int = 1) -> Seen:
    """Return instances without findings."""
    found: Seen = []
    for number in range(count):
        stats = empty_stats()
        stats["now"] = 1000.0  # As `watched` has it.
        stats["process"]["pid"] = number + 1
        stats["settings"] = {"port": number + 1, "eviction": "fifo", "memc_on": False}
        found.append((f"i{number}", stats, {"weight": weight}))
    return found


def check(found: Seen) -> list[Finding]:
    """Compare instances."""
    return checks.check([watched(name, stats, **more) for name, stats, more in found])


def stats_of(one: tuple[str, dict[str, Any] | str, dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of an instance, to be changed."""
    assert isinstance(one[1], dict)
    return one[1]


def texts(found: list[Finding]) -> list[str]:
    """Return what was found."""
    return [finding.text for finding in found]


def test_check_of_equal_instances_finds_nothing() -> None:
    """Ports and mount points are their own."""
    assert [check(seen(count)) for count in (5, 1, 0)] == [[], [], []]


def test_check_of_different_settings_names_the_instances() -> None:
    """The value that most have is the usual one; five names are enough."""
    many = seen(20)
    stats_of(many[3])["settings"]["eviction"] = "frequency"
    for one in many[10:17]:
        stats_of(one)["settings"]["memc_on"] = True
    (first, second) = check(many)
    assert first == (
        "settings",
        'eviction differs: "fifo" on 19 of 20, but "frequency" on i3',
        ["i3"],
    )
    assert second.text == (
        "memc_on differs: false on 13 of 20, but true on i10, i11, i12, i13, i14 and"
        " 2 more"
    )
    assert len(second.instances) == 7


def test_check_of_different_versions_names_each() -> None:
    """Each is named."""
    two = seen(2)
    stats_of(two[1])["version"] = "0.0.9"
    assert texts(check(two)) == [
        'version differs: "0.1.0" on 1 of 2, but "0.0.9" on i1'
    ]


def test_check_of_a_wrong_weight_names_the_right_one() -> None:
    """A disk of twice the size has twice the weight; another is named with the weight."""
    two = [*seen(1, weight=10), *seen(1, weight=20)]
    stats_of(two[1])["process"]["pid"] = 9
    store = stats_of(two[1])["store"]
    store |= {"volume_num": 8, "free_bytes": 2 * store["free_bytes"]}
    assert check(two) == []
    three = seen(3, weight=10)
    stats_of(three[2])["store"]["free_bytes"] *= 3
    (text,) = texts(check(three))
    assert text == (
        "i2 has weight 10 and holds 12.0 GiB; in proportion to the others its weight would"
        " be 30"
    )


def test_check_of_an_instance_listed_twice_names_both() -> None:
    """Under both names: it is the same process with the same mount point."""
    three = seen(3)
    three[2] = ("i2", three[0][1], {})
    (found,) = check(three)
    assert (found.check, found.instances) == ("twice", ["i0", "i2"])


def test_check_of_an_instance_that_does_not_answer_names_it() -> None:
    """And those that answer although the list excludes them."""
    one, _, three = seen(3)
    two: Any = ("i1", "no\x1b answer", {})
    down = ("i2", three[1], {"is_down": True})
    assert texts(check([one, two, down])) == [
        "i1 does not answer: no? answer",
        "i2 answers, but the list excludes it (down)",
    ]
    assert check([one, ("i1", "refused", {"is_down": True})]) == []


def test_check_of_a_different_clock_names_the_instance() -> None:
    """With ours if there are only two; not closer than the answer took."""
    for clocks, names in (
        *(((0, 0, 0, 2.9), []), ((0, 0, 0, 3.2), ["i3"]), ((60, 60, 60, 0), ["i3"])),
        *(((0.5,), []), ((-4.0, 0), ["i0"])),
    ):
        instances = seen(len(clocks))
        for one, ahead in zip(instances, clocks, strict=True):
            stats_of(one)["now"] += ahead
        found = check(instances)
        assert [finding.instances[0] for finding in found] == names
        assert {finding.check for finding in found} <= {"clock"}


def test_check_of_nonsense_finds_nothing() -> None:
    """As of another program."""
    odd = {"settings": [], "store": {"keys": 3}, "requests": {"total": 0}}
    assert check([("a", odd, {}), ("b", odd, {})]) == []


def test_poll_of_running_instances_reads_their_clocks() -> None:
    """Against ours; one of them is an hour ahead."""
    with fake_fleet(3) as fleet:
        fleet[1].clock_ahead = 3600.0
        names = [*(one.name for one in fleet), free_address()]
        found = FleetCollector(names, timeout=30).poll()
    ahead = [one.about.clock_ahead or 0.0 for one in found]
    assert ahead[1] == pytest.approx(3600, abs=20)
    assert abs(ahead[0]) < 20
    assert found[3].failure == "Connection refused"
