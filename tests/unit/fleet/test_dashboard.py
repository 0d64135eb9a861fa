"""The dashboard: what it keeps about instances, its paths, and slow or wrong clients."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from support.fake_fleet import free_address, served
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
from volcache.fleet.dashboard import CONNECTIONS_MAX, Dashboard, parse_listen
from volcache.fleet.poller import HISTORY_SECONDS, Poller, Watched
from volcache.fleet.targets import Target

HOST = "127.0.0.1:8090"
NAME = "127.0.0.1:1"
DOWN = InstanceError(f"http://{NAME}", "no answer within 3 s")


def a_watched(*, is_down: bool = False) -> Watched:
    """Return an instance that was not asked yet."""
    target = Target("one", f"http://{NAME}", is_down=is_down)
    return Watched("one", target, 0.0, 1000.0)


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
    """
    The hit ratio and p99 are those of the last minute, not since the start.

    Commands of memcached clients are part of them, as GETs and PUTs.
    """
    later = memcache(hits=30, misses=10, stored=20)
    polls: list[tuple[float, Any]] = [
        (1000.0, stats_with(1000, 1000, memcache=memcache())),
        (1010.0, stats_with(1030, 1010, memcache=later)),
    ]
    row = row_after(*polls)
    expected = {
        "requests_per_second": 10.0,
        "gets_per_second": 8.0,
        "puts_per_second": 2.0,
        "hit_ratio": 0.75,
        "sent_bytes_per_second": 30 * 65536 / 10 + 3000,
        "received_bytes_per_second": 2000,
    }
    assert row | expected == row
    assert 65e-6 < row["p99_seconds"] <= 132e-6
    last = (1010.0, 10.0, 0.75, row["p99_seconds"])
    assert row["points"] == [(1000.0, None, None, None), last]
    assert (row["state"], row["severity"], row["seen"]) == ("ok", 0, 1010.0)
    # After a restart the counters begin again: nothing is known until the next poll.
    polls.append((1020.0, stats_with(5, 5, started=1005.0)))
    assert row_after(*polls)["requests_per_second"] is None
    polls.append((1030.0, stats_with(15, 5, started=1005.0)))
    assert row_after(*polls)["requests_per_second"] == 1.0
    # An instance that is down keeps its last figures, but no rates.
    row = row_after(*polls, (1035.0, DOWN), (1040.0, DOWN))
    assert (row["state"], row["problem"]) == ("down", "no answer within 3 s")
    assert (row["since"], row["seen"]) == (1035.0, 1030.0)
    assert (row["mount_point"], row["requests_per_second"]) == ("data", None)
    assert row["points"][-1] == (1040.0, None, None, None)


def test_instance_that_the_list_excludes_is_no_problem_if_it_is_down() -> None:
    """It has no part in the totals if it does not answer, also if it did before."""
    watched = a_watched(is_down=True)
    watched.add(stats_with(1, 0), 1000.0)
    assert (watched.health.state, watched.is_up) == ("out", True)
    watched.add(DOWN, 1005.0)
    row = watched.row(0.0)
    assert (row["state"], row["severity"], row["answers"]) == ("out", 0, False)
    assert (watched.is_up, watched.failure) == (False, "no answer within 3 s")


def test_errors_since_an_earlier_poll_are_recent_ones() -> None:
    """For instances that do not tell the time of their last error."""
    before, after = stats_with(1, 0), stats_with(1, 0)
    for stats, errors in ((before, 5), (after, 7)):
        del stats["store"]["last_errors"]
        stats["store"]["read_errors"] = errors
    assert row_after((1000.0, before))["state"] == "warning"
    row = row_after((1000.0, before), (1010.0, after))
    assert (row["state"], row["problem"]) == ("degraded", "2 read errors just now")


def test_points_are_kept_for_a_limited_time() -> None:
    """And left out on demand."""
    watched = a_watched()
    for at in range(1000, 3000, 5):
        watched.add(stats_with(at, 0), float(at))
    assert len(watched.row(0.0)["points"]) == HISTORY_SECONDS / 5 + 1
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


def test_instance_without_any_answer_for_long_is_down() -> None:
    """Also if its thread hangs where there is no time-out, as in a name server."""
    poller = Poller([NAME], interval=1.0, timeout=1.0)
    watched = poller.find(NAME)
    assert watched is not None
    for seconds, state, problem in (
        (4, "unknown", "not asked yet"),
        (6, "down", "no answer for 6 s"),
    ):
        watched.asked = poller.now() - seconds
        (row,) = poller.overview()["instances"]
        assert (row["state"], row["problem"]) == (state, problem)


def test_worst_instances_are_first_and_totals_are_those_of_the_others() -> None:
    """An instance that is down has no part in the sums."""
    with StatsServer(empty_stats()) as good, StatsServer(empty_stats()) as ill:
        for server, keys in ((good, 5), (ill, 7)):
            server.stats["store"] |= {"keys": keys, "live_bytes": 100 * keys}
        add_errors(ill.stats, "write", 1)
        down = f"http://{free_address()}"
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
    file.write_text("rubbish\n")
    with pytest.raises(ConfigError, match="rubbish"):  # At the start.
        Poller([str(file)])
    with StatsServer(empty_stats()) as server:
        file.write_text(f"{server.name}\n")
        with polling(str(file)) as poller:
            before = poller.find(server.name)
            seen: list[str | None] = []

            def has_another_problem() -> bool:
                return poller.overview()["list_problem"] not in seen

            for text in ("rubbish\n", "# nothing\n", None):
                seen.append(poller.overview()["list_problem"])
                if text is None:
                    file.unlink()
                else:
                    file.write_text(text)
                wait_until(has_another_problem, "the problem")
                assert str(file) in poller.overview()["list_problem"]
                assert len(poller.overview()["instances"]) == 1
            file.write_text(f"{free_address()}\n{server.name}\n")
            wait_until(lambda: len(poller.overview()["instances"]) == 2, "the new list")
            assert poller.overview()["list_problem"] is None
            assert poller.find(server.name) is before


@pytest.fixture
def dashboard() -> Dashboard:
    """Return a dashboard of one instance that was not asked yet."""
    return Dashboard(Poller([NAME]), hosts=["Ops.example"])


def test_names_of_other_sites_are_refused(dashboard: Dashboard) -> None:
    """A site could let its name point here; only /healthy says nothing."""
    instance = f"/instances/{NAME}/"
    for host, status in (
        *(("127.0.0.1:8090", 200), ("[::1]:8090", 200), ("localhost", 200)),
        *(("ops.example:8090", 200), ("", 200), ("evil.example", 421)),
        *(("127.0.0.1.evil.example", 421), ("ops.example:8090:1", 421)),
    ):
        for path in ("/", "/api/cluster", instance, f"{instance}stats"):
            found = dashboard.respond("GET", path, host).status
            assert found == status or (status == 200 and found == 502)
        healthy = dashboard.respond("GET", "/healthy", host)
        assert (healthy.status, healthy.body) == (200, b"ok\n")


def test_page_allows_its_own_script_only(dashboard: Dashboard) -> None:
    """By its digest; data is not a page at all."""
    page = dict(dashboard.respond("GET", "/", HOST).headers)
    policy = page["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "'sha256-" in policy
    assert "unsafe" not in policy
    for path in ("/api/cluster", "/nothing"):
        headers = dict(dashboard.respond("GET", path, HOST).headers)
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert headers["Cache-Control"] == "no-store"
    # The overview is JSON also before the first poll.
    found = json.loads(dashboard.respond("GET", "/api/cluster", HOST).body)
    assert found["totals"]["unknown"] == 1
    assert found["instances"][0]["points"] == []


def test_wrong_requests_are_one_line(dashboard: Dashboard) -> None:
    """Which says what is allowed."""
    for line, answer in {
        "POST /": "405 method POST is not allowed; allowed are GET, HEAD",
        "GET /nothing": "404 no such path; the paths are /, /api/cluster, ",
        "GET /api/cluster?since=x": '400 since="x" is not a time; allowed are ',
        "GET /api/cluster?since=nan": '400 since="nan" is not a time; ',
        "GET /instances/": '404 no instance is called "";',
        "GET /instances/a%0d%0ab/": '404 no instance is called "a\\x0D\\x0Ab";',
        "GET /instances/127.0.0.1:1/x": "404 no such path; those of an instance ",
        "GET /instances/127.0.0.1:1": "301 127.0.0.1%3A1/",
        "GET /instances/127.0.0.1%3A1/": "200 <!doctype html>",
    }.items():
        method, path = line.split()
        reply = dashboard.respond(method, path, HOST)
        assert f"{reply.status} {reply.body.decode()}".startswith(answer), line


def is_healthy(url: str) -> bool:
    """Whether the dashboard serves."""
    return requests.get(f"{url}healthy", timeout=30).text == "ok\n"


@pytest.mark.slow
def test_figures_of_an_instance_are_asked_for_once_for_all() -> None:
    """With or without its volumes; an error is a 502 with the reason."""
    down = free_address()
    with StatsServer(empty_stats()) as one, served(one.url, down) as (url, _):

        def ask(what: str, name: str = one.name) -> requests.Response:
            return requests.get(f"{url}instances/{name}/{what}", timeout=5)

        before = one.asked.count("/-/stats")
        for _ in range(21):
            found = ask("stats").json()
            assert found["store"]["mount_point"] == "data"
            assert found["store"]["volumes"]
        assert 1 <= one.asked.count("/-/stats") - before < 20
        short = ask("stats?volumes=0")
        assert short.json()["store"]["volumes"] == []
        assert short.headers["Content-Type"] == "application/json; charset=utf-8"
        for what in ("stats", "metrics"):
            answer = ask(what, down)
            assert (answer.status_code, answer.text) == (502, "Connection refused\n")
        assert ask("metrics").text == "/-/metrics is answered with 404\n"
        one.answer = (200, b"<script>")
        wait_until(lambda: ask("stats").status_code == 502, "the wrong answer")
        assert ask("stats").text == "the response is not from volcache\n"


@pytest.mark.slow
def test_clients_that_do_nothing_do_not_keep_others_out() -> None:
    """More idle connections than are served at a time; the number of threads is limited."""
    with ExitStack() as stack:
        url, address = stack.enter_context(served(NAME))
        threads = threading.active_count()
        for number in range(2 * CONNECTIONS_MAX):
            client = stack.enter_context(closing(socket.create_connection(address)))
            if number % 2:
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert is_healthy(url)
        assert "serve" in {one.name for one in threading.enumerate()}
        assert threading.active_count() <= threads + CONNECTIONS_MAX + 1


@pytest.mark.slow
def test_client_that_sends_bytes_slowly_is_closed() -> None:
    """Its time-out does not begin again with each byte."""
    with (
        served(NAME, request_seconds=0.5) as (_, address),
        closing(socket.create_connection(address, timeout=0.05)) as client,
    ):

        def is_closed() -> bool:
            try:
                client.sendall(b"G")
                return client.recv(100) == b""
            except OSError as error:
                return not isinstance(error, TimeoutError)

        wait_until(is_closed, "the end of the connection")


@pytest.mark.slow
def test_what_is_no_request_is_answered_with_text() -> None:
    """Not with a page that repeats it."""
    with served(NAME) as (url, address):
        for request in (
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET\r\n\r\n",
            b"\0\xff\r\n\r\n",
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
            b"BREW / HTTP/1.1\r\n\r\n",
        ):
            with closing(socket.create_connection(address, timeout=20)) as client:
                client.sendall(request)
                assert b"<html" not in client.recv(1 << 16).lower()
            assert is_healthy(url)


def test_address_to_listen_on_is_parsed() -> None:
    """An IPv6 address is in brackets; what is wrong is refused with what is allowed."""
    assert parse_listen("127.0.0.1:8090") == ("127.0.0.1", 8090)
    assert parse_listen("[::1]:0") == ("::1", 0)
    assert parse_listen("cache-1:80") == ("cache-1", 80)
    digit = "\N{SUPERSCRIPT TWO}"
    for text in ("8090", ":8090", "::1:80", "h:65536", "h:-1", f"h:{digit}", "[h]:1"):
        with pytest.raises(ConfigError, match="allowed"):
            parse_listen(text)
