"""What the dashboard keeps about instances, and that none delays another."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support.ports import pick_port
from support.stats_server import (
    StatsServer,
    add_errors,
    add_reads,
    empty_stats,
    memcache,
)
from support.tables import each_row
from support.waiting import wait_until
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.poller import HISTORY_SECONDS, Poller, Watched
from volcache.fleet.targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "http://127.0.0.1:1"
DOWN = InstanceError(URL, "no answer within 3 s")


def a_watched() -> Watched:
    """Return an instance that was not asked yet."""
    return Watched("one", Target("one", URL), 0.0, 1000.0)


def row_after(*polls: tuple[float, Any]) -> dict[str, Any]:
    """Return what is known after polls at these times."""
    watched = a_watched()
    for at, found in polls:
        watched.add(json.loads(json.dumps(found)) if type(found) is dict else found, at)
    return watched.row(0.0)


def stats_with(hits: int, misses: int, **numbers: object) -> dict[str, Any]:
    """Return the numbers of an instance that has answered some reads."""
    stats = empty_stats()
    stats["started"] = 500.0
    add_reads(stats, hits, misses)
    return stats | numbers


def test_rates_are_those_between_polls() -> None:
    """The hit ratio and p99 are those of the last minute, not since the start."""
    stats = stats_with(1000, 1000)
    later = stats_with(1030, 1010)
    row = row_after((1000.0, stats), (1010.0, later))
    assert row["requests_per_second"] == row["gets_per_second"] == 4.0
    assert row["hit_ratio"] == 0.75
    assert 65e-6 < row["p99_seconds"] <= 132e-6
    assert row["sent_bytes_per_second"] == 30 * 65536 / 10
    assert row["points"] == [
        (1000.0, None, None, None),
        (1010.0, 4.0, 0.75, row["p99_seconds"]),
    ]
    assert (row["state"], row["severity"], row["seen"]) == ("ok", 0, 1010.0)


def test_commands_of_memcached_clients_are_part_of_the_rates() -> None:
    """As requests, GETs and PUTs; an instance without them has none."""
    stats = stats_with(1000, 0, memcache=memcache())
    later = stats_with(1000, 0, memcache=memcache(hits=30, misses=10, stored=20))
    row = row_after((1000.0, stats), (1010.0, later))
    assert row["requests_per_second"] == 6.0
    assert (row["gets_per_second"], row["puts_per_second"]) == (4.0, 2.0)
    assert row["hit_ratio"] == 0.75
    assert 65e-6 < row["p99_seconds"] <= 132e-6
    assert row["sent_bytes_per_second"] == 3000
    assert row["received_bytes_per_second"] == 2000


def test_restart_makes_no_negative_rates() -> None:
    """The counters begin again, so nothing is known until the next poll."""
    before, after = stats_with(1000, 0), stats_with(5, 5, started=1005.0)
    row = row_after((1000.0, before), (1010.0, after))
    assert row["requests_per_second"] is None
    last = stats_with(15, 5, started=1005.0)
    row = row_after((1000.0, before), (1010.0, after), (1020.0, last))
    assert row["requests_per_second"] == 1.0


def test_instance_that_is_down_keeps_its_last_figures_but_no_rates() -> None:
    """With the time since when, which further failures do not change."""
    row = row_after((1000.0, stats_with(9, 0)), (1005.0, DOWN), (1010.0, DOWN))
    assert (row["state"], row["problem"]) == ("down", "no answer within 3 s")
    assert (row["since"], row["seen"]) == (1005.0, 1000.0)
    assert row["mount_point"] == "data"
    assert row["requests_per_second"] is None
    assert row["points"][-1] == (1010.0, None, None, None)


def test_instance_that_the_list_excludes_is_no_problem_if_it_is_down() -> None:
    """It has no part in the totals if it does not answer, also if it did before."""
    watched = Watched("one", Target("one", URL, is_down=True), 0.0, 1000.0)
    watched.add(stats_with(1, 0), 1000.0)
    assert (watched.health.state, watched.is_up) == ("out", True)
    watched.add(DOWN, 1005.0)
    row = watched.row(0.0)
    assert (row["state"], row["severity"], row["answers"]) == ("out", 0, False)
    assert (watched.is_up, watched.failure) == (False, "no answer within 3 s")


def test_errors_since_an_earlier_poll_are_recent_ones() -> None:
    """For instances that do not tell the time of their last error."""
    before, after = stats_with(1, 0), stats_with(1, 0)
    for stats in (before, after):
        del stats["store"]["last_errors"]
    before["store"]["read_errors"] = 5
    after["store"]["read_errors"] = 7
    assert row_after((1000.0, before))["state"] == "warning"
    row = row_after((1000.0, before), (1010.0, after))
    assert (row["state"], row["problem"]) == ("degraded", "2 read errors just now")


def test_points_are_kept_for_a_limited_time() -> None:
    """And left out on demand."""
    watched = a_watched()
    for at in range(1000, 3000, 5):
        watched.add(stats_with(at, 0), float(at))
    points = watched.row(0.0)["points"]
    assert len(points) == HISTORY_SECONDS / 5 + 1
    assert len(watched.row(2980.0)["points"]) == 3


@each_row(
    "found",
    [
        {},
        {"store": [], "requests": 3, "latency": None, "process": "x"},
        {"store": {"keys": "x", "volume_num": {}}, "requests": {"by": {"a": 1}}},
        {"store": {"keys": -5, "volume_size": 1e308, "volume_num": 1e308}},
        {"requests": {"by": [1, None, {"method": [], "count": 1e300}], "total": 1e308}},
        {"latency": {"GET": {"counts": ["x"] * 64}}},
        {"latency": {"GET": {"counts": [1e308] * 64}}, "started": "soon", "now": {}},
        {"version": "\x1b[31m\n" * 999, "store": {"mount_point": ["x"]}},
    ],
)
def test_wrong_numbers_are_zero_or_unknown(found: dict[str, Any]) -> None:
    """Whatever an instance answers, the row is JSON that a browser can read."""
    row = row_after((1000.0, stats_with(1, 0)), (1005.0, found), (1010.0, found))
    text = json.dumps(row, allow_nan=False)
    assert "\\u001b" not in text
    assert row["keys"] >= 0
    assert len(text) < 3000


@contextmanager
def polling(*sources: str) -> Iterator[Poller]:
    """Poll in the background."""
    poller = Poller(sources, interval=0.1, timeout=20.0)
    poller.start()
    yield poller
    poller.stop()


def row_of(poller: Poller, place: int) -> dict[str, Any]:
    """Return what is known about an instance, by its place in the list."""
    rows = {row["url"]: row for row in poller.overview()["instances"]}
    urls = sorted(rows)
    return dict(rows[urls[place]])


@pytest.mark.slow
def test_hung_instances_do_not_delay_the_others() -> None:
    """Thirty hang for much longer than this test; one answers again and again."""
    with ExitStack() as stack:
        hung = [
            stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            for _ in range(30)
        ]
        server = stack.enter_context(StatsServer(empty_stats()))
        names = [f"127.0.0.1:{one.getsockname()[1]}" for one in hung]
        good = server.url.removeprefix("http://")
        poller = stack.enter_context(polling(*names, good))

        def polls() -> int:
            watched = poller.find(good)
            return len(watched.points) if watched else 0

        wait_until(lambda: polls() >= 3, "three polls")
        totals = poller.overview()["totals"]
        assert (totals["instances"], totals["up"]) == (31, 1)
        assert (totals["unknown"], totals["healthy"]) == (30, 1)


def test_instance_without_any_answer_for_long_is_down() -> None:
    """Also if its thread hangs where there is no time-out, as in a name server."""
    poller = Poller(["127.0.0.1:1"], interval=1.0, timeout=1.0)
    watched = poller.find("127.0.0.1:1")
    assert watched is not None
    watched.asked = poller.now() - 4
    assert poller.overview()["instances"][0]["state"] == "unknown"
    watched.asked = poller.now() - 6
    row = poller.overview()["instances"][0]
    assert (row["state"], row["problem"]) == ("down", "no answer for 6 s")


def test_worst_instances_are_first_and_totals_are_those_of_the_others() -> None:
    """An instance that is down has no part in the sums."""
    with StatsServer(empty_stats()) as good, StatsServer(empty_stats()) as ill:
        for server, keys in ((good, 5), (ill, 7)):
            server.stats["store"] |= {"keys": keys, "live_bytes": 100 * keys}
        add_errors(ill.stats, "write", 1)
        down = f"http://127.0.0.1:{pick_port()}"
        with polling(good.url, down, ill.url) as poller:
            wait_until(lambda: not poller.overview()["totals"]["unknown"], "all")
            found = poller.overview()
            wait_until(lambda: poller.overview()["totals"]["points"], "a total")
    assert [row["url"] for row in found["instances"]] == [down, ill.url, good.url]
    totals = found["totals"]
    assert (totals["up"], totals["down"], totals["degraded"]) == (2, 1, 1)
    assert (totals["keys"], totals["live_bytes"]) == (12, 1200)
    assert totals["capacity_bytes"] == 8 << 30


@pytest.mark.slow
def test_instances_that_stay_in_the_list_keep_what_is_known(tmp_path: Path) -> None:
    """A list that is wrong, empty or gone is a problem, and changes nothing."""
    file = tmp_path / "list"
    with StatsServer(empty_stats()) as server:
        address = server.url.removeprefix("http://")
        file.write_text(f"{address}\n")
        with polling(str(file)) as poller:
            wait_until(lambda: row_of(poller, 0)["state"] == "ok", "an answer")
            before = poller.find(address)
            seen: list[str | None] = []
            for text in ("rubbish\n", "# nothing\n", None):
                if text is None:
                    file.unlink()
                else:
                    file.write_text(text)
                seen.append(poller.overview()["list_problem"])
                wait_until(
                    lambda: poller.overview()["list_problem"] not in seen, "the problem"
                )
                assert str(file) in poller.overview()["list_problem"]
                assert len(poller.overview()["instances"]) == 1
            file.write_text(f"127.0.0.1:{pick_port()}\n{address}\n")
            wait_until(lambda: len(poller.overview()["instances"]) == 2, "the new list")
            assert poller.overview()["list_problem"] is None
            assert poller.find(address) is before


def test_wrong_list_is_refused_at_the_start(tmp_path: Path) -> None:
    """As by the other tools."""
    file = tmp_path / "list"
    file.write_text("rubbish\n")
    with pytest.raises(ConfigError, match="rubbish"):
        Poller([str(file)])
