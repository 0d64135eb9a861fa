"""What is compared between instances."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_fleet import fake_fleet, free_address, targets_of
from support.stats_server import empty_stats
from volcache.fleet.checks import Finding, Seen, check, see
from volcache.fleet.targets import Target


def seen(count: int, *, weight: int = 1) -> list[Seen]:
    """Return instances without findings."""
    found = []
    for number in range(count):
        stats = empty_stats()
        stats["process"]["pid"] = number + 1
        stats["settings"] = {"port": number + 1, "eviction": "fifo", "memc_on": False}
        target = Target(f"i{number}", f"http://i{number}", weight)
        found.append(Seen(target, stats, "", 0.0, 0.1))
    return found


def stats_of(one: Seen) -> dict[str, Any]:
    """Return the numbers of an instance, to be changed."""
    assert one.stats
    return one.stats


def texts(found: list[Finding]) -> list[str]:
    """Return what was found."""
    return [finding.text for finding in found]


def test_instances_that_are_alike_have_no_findings() -> None:
    """Ports and mount points are their own."""
    assert [check(seen(count)) for count in (5, 1, 0)] == [[], [], []]


def test_settings_that_differ_are_named_with_the_instances() -> None:
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


def test_versions_that_do_not_tell_their_settings_are_compared_as_well() -> None:
    """By what the store tells."""
    two = seen(2)
    for one in two:
        del stats_of(one)["settings"]
    stats_of(two[1])["version"] = "0.0.9"
    stats_of(two[1])["store"]["sync_mode"] = "none"
    assert texts(check(two)) == [
        'version differs: "0.1.0" on 1 of 2, but "0.0.9" on i1',
        'sync_mode differs: "periodic" on 1 of 2, but "none" on i1',
    ]


def test_capacity_is_compared_with_the_weight() -> None:
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


def test_an_instance_that_is_in_the_list_twice_is_named() -> None:
    """Under both names: it is the same process with the same mount point."""
    three = seen(3)
    three[2] = three[2]._replace(stats=three[0].stats)
    (found,) = check(three)
    assert (found.check, found.instances) == ("twice", ["i0", "i2"])


def test_instances_that_do_not_answer_are_named() -> None:
    """And those that answer although the list excludes them."""
    one, two, three = seen(3)
    two = two._replace(stats=None, problem="no\x1b answer")
    three = three._replace(target=three.target._replace(is_down=True))
    assert texts(check([one, two, three])) == [
        "i1 does not answer: no? answer",
        "i2 answers, but the list excludes it (down)",
    ]
    assert check([one, two._replace(target=three.target)]) == []


def test_clocks_are_compared_with_most_others() -> None:
    """With ours if there are only two; not closer than the answer took."""
    for clocks, names in (
        *(((0, 0, 0, 2.9), []), ((0, 0, 0, 3.2), ["i3"]), ((60, 60, 60, 0), ["i3"])),
        *(((0.5,), []), ((-4.0, 0), ["i0"])),
    ):
        pairs = zip(seen(len(clocks)), clocks, strict=True)
        found = check([one._replace(clock_ahead=ahead) for one, ahead in pairs])
        assert [finding.instances[0] for finding in found] == names
        assert {finding.check for finding in found} <= {"clock"}


def test_a_server_without_the_gate_is_named() -> None:
    """Malformed requests could end it. Numbers of nonsense are no findings."""
    two = seen(2)
    stats_of(two[1])["server"]["gate"] = False
    assert texts(check(two)) == ["bjoern has no gate on i1"]
    one = Seen(Target("a", "http://a"), {"settings": [], "store": 3}, "", 0.0, 0.0)
    assert check([one, one]) == []


def test_running_instances_are_asked_for_their_clock() -> None:
    """Against ours; one of them is an hour ahead."""
    with fake_fleet(3) as fleet:
        fleet[1].clock_ahead = 3600.0
        down = Target("down", f"http://{free_address()}")
        found = see([*targets_of(fleet), down], timeout=30)
    ahead = [one.clock_ahead for one in found]
    assert ahead[1] == pytest.approx(3600, abs=20)
    assert abs(ahead[0]) < 20
    assert found[3].problem == "Connection refused"
