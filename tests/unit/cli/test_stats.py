"""`volcache stats`: output and exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from support.command_line import Run, Screens
from support.stats_server import StatsServer, add_reads, empty_stats


@pytest.fixture
def server() -> Iterator[StatsServer]:
    """An instance that was just started."""
    with StatsServer(empty_stats()) as running:
        yield running


def test_stats_to_a_pipe_prints_one_report(server: StatsServer, run: Run) -> None:
    """Without a terminal, or with --once; it has no escape sequences."""
    add_reads(server.stats, 75, 25)
    for words in ([server.url], [f"{server.url}/", "--once"]):
        code, out, err = run("stats", *words)
        assert (code, "\x1b" in out, err) == (0, False, "")
        begin = r"instance    volcache 0.1.0, mount point data, up \d+ s, ready\n"
        assert re.match(begin, out)
        assert "\nreads       75.0% hits (MEMC 0.0%, DISK 75.0%), 25.0% misses\n" in out


def test_stats_json_has_every_number_and_percentiles(
    server: StatsServer, run: Run
) -> None:
    """Those of the instance, but no buckets and no volumes."""
    server.stats["latency"]["GET"] = {
        "counts": [0] * 10 + [90] + [0] * 9 + [10] + [0] * 43,
        "sum_seconds": 0.01,
    }
    code, out, _ = run("stats", server.url, "--json")
    printed = json.loads(out)
    latency = printed.pop("latency")
    assert latency["GET"] == {
        "count": 100,
        "mean": 1e-4,
        "p50": 7.53e-7,
        "p90": 1.024e-6,
        "p99": 9.78356e-4,
        "p999": 0.001041333,
        "max": 0.001048576,
    }
    quantiles = dict.fromkeys(["mean", "p50", "p90", "p99", "p999", "max"])
    assert latency["PUT"] == {"count": 0, **quantiles}
    assert (code, "counts" in json.dumps(printed)) == (0, False)
    changing = dict.fromkeys(("now", "uptime_seconds", "latency"))
    server.stats["store"]["volumes"] = []
    assert printed | changing == server.stats | changing


def test_stats_of_several_instances_reports_each(server: StatsServer, run: Run) -> None:
    """By HOST:PORT or the URL of the page; one that is down does not hide the others."""
    down = "http://127.0.0.1:1"
    code, out, err = run("stats", f"{server.url}/-/", down)
    assert out.startswith(f"{server.url}\ninstance    volcache")
    assert out.endswith(f"\n\n{down}\n{down}: Connection refused\n")
    assert run("stats", server.name, server.url).err.endswith(
        "name each instance once\n"
    )
    assert (code, err) == (1, f"volcache: {down}: Connection refused\n")
    code, out, _ = run("stats", server.name, "127.0.0.1:1", "--json")
    first, second = json.loads(out)
    assert (first["target"], first["stats"]["ready"]) == (server.url, True)
    assert (code, second) == (1, {"target": down, "error": "Connection refused"})


def test_stats_with_an_interval_repeats_to_a_pipe(
    server: StatsServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports, or one line of JSON each; an instance that is gone later is reported."""
    steps = iter([lambda: None, server.stop])

    def sleep(seconds: float) -> None:
        assert seconds == 2.5
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("volcache.cli.stats.time.sleep", sleep)
    code, out, _ = run("stats", server.url, "--interval", "2.5", "--json")
    first, second, third = map(json.loads, out.splitlines())
    assert (code, first["version"]) == (130, second["version"])
    assert third == {"target": server.url, "error": "Connection refused"}


def test_stats_of_a_wrong_answer_prints_one_line(server: StatsServer, run: Run) -> None:
    """With exit code 1, whatever the server is."""
    no_name = b"no name\x1b[2J\nof mine\n"
    for answer, reason in (
        ((404, b""), "/-/stats is answered with 404"),
        ((421, no_name), "/-/stats is answered with 421: no name [2J"),
        ((200, b"<html>"), "the response is not from volcache"),
        ((200, b"[]"), "the response is not from volcache"),
        ((200, b'{"store": {"keys": 1}}'), "the response is not from volcache"),
    ):
        server.answer = answer
        error = f"volcache: {server.url}: {reason}\n"
        assert run("stats", server.url) == (1, "", error)


def test_stats_on_a_terminal_writes_over_the_last_report(
    server: StatsServer, screens: Screens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the last one; an instance that is gone is reported and retried."""
    steps = [lambda: add_reads(server.stats, 10, 0), server.stop, server.start]
    for shown, text in zip(
        screens("stats", server.url, steps=steps),
        ("reads       none", "100.0% hits", ": Connection refused", "volcache 0.1.0"),
        strict=True,
    ):
        assert text in shown
        assert ("trying again every 1 s" in shown) == ("refused" in text)
    # In a small terminal, longer lines are continued, and the last are left out.
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    (shown,) = screens("stats", server.url)
    lines = shown.split("\x1b[K\n")
    assert len(lines) == 9
    assert all(len(line) < 40 for line in lines)
    assert lines[-1].endswith(" more lines")
