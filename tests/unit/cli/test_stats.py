"""`volcache stats`: output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.process import SOURCE
from support.stats_server import StatsServer, add_reads, empty_stats
from volcache.cli import main as cli
from volcache.cli.stats import refresh
from volcache.monitoring.terminal import report

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[StatsServer]:
    """An instance that was just started."""
    with StatsServer(empty_stats()) as running:
        yield running


def test_one_report_is_written_to_a_pipe(
    server: StatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, or with --once; it has no escape sequences."""
    add_reads(server.stats, 75, 25)
    for argv in (["stats", server.url], ["stats", f"{server.url}/", "--once"]):
        assert cli.main(argv) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.startswith(
            "instance    volcache 0.1.0, mount point data, up 1 s, ready\n"
        )
        assert "\nreads       75.0% hits (MEMC 0.0%, DISK 75.0%), 25.0% misses\n" in out
        assert "\x1b" not in out


def test_json_has_every_number_and_percentiles(
    server: StatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the instance, but no buckets."""
    server.stats["latency"]["GET"] = {
        "counts": [0] * 10 + [90] + [0] * 9 + [10] + [0] * 43,
        "sum_seconds": 0.01,
    }
    assert cli.main(["stats", server.url, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
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
    assert "counts" not in json.dumps(printed)
    changing = ("now", "uptime_seconds", "latency")
    assert {k: v for k, v in printed.items() if k not in changing} == {
        k: v for k, v in server.stats.items() if k not in changing
    }


def test_several_instances_are_reported_together(
    server: StatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """By HOST:PORT or the URL of the page; one that is down does not hide the others."""
    address = server.url.removeprefix("http://")
    assert cli.main(["stats", address, f"{server.url}/-/", "127.0.0.1:1"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{server.url}\ninstance    volcache")
    assert out.endswith(
        "\n\nhttp://127.0.0.1:1\nhttp://127.0.0.1:1: Connection refused\n"
    )
    assert out.count("instance ") == 1  # The same one, named twice.
    assert err == "volcache: http://127.0.0.1:1: Connection refused\n"

    assert cli.main(["stats", address, "127.0.0.1:1", "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["target"], first["stats"]["ready"]) == (server.url, True)
    assert second == {"target": "http://127.0.0.1:1", "error": "Connection refused"}


def test_interval_repeats_without_a_terminal(
    server: StatsServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
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
    assert cli.main(["stats", server.url, "--interval", "2.5", "--json"]) == 130
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["version"] == second["version"]
    assert third == {"target": server.url, "error": "Connection refused"}
    assert cli.main(["stats", "--interval", "1", "--once"]) == 2


def test_report_fits_a_small_terminal(
    server: StatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 columns and 10 lines: longer lines are continued, and the last are left out."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    written: list[str] = []
    refresh([server.url], report, written.append, is_over=lambda: True)
    lines = written[0].removeprefix("\x1b[H").removesuffix("\x1b[J").splitlines()
    assert len(lines) == 9
    assert all(len(line.removesuffix("\x1b[K")) < 40 for line in lines)
    assert lines[-1].endswith(" more lines\x1b[K")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, b""), "/-/stats is answered with 404"),
        (
            (421, b"no name\x1b[2J\nof mine\n"),
            "/-/stats is answered with 421: no name [2J",
        ),
        ((200, b"<html>"), "the response is not from volcache"),
        ((200, b"[]"), "the response is not from volcache"),
        ((200, b'{"store": {"keys": 1}}'), "the response is not from volcache"),
    ],
)
def test_wrong_response_is_one_line(
    server: StatsServer,
    capsys: pytest.CaptureFixture[str],
    answer: tuple[int, bytes],
    reason: str,
) -> None:
    """With exit code 1, whatever the server is."""
    server.answer = answer
    assert cli.main(["stats", server.url]) == 1
    assert capsys.readouterr() == ("", f"volcache: {server.url}: {reason}\n")


@pytest.mark.parametrize("target", ["127.0.0.1", "ftp://127.0.0.1", "http://a:b"])
def test_wrong_address_is_a_usage_error(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2 and examples."""
    assert cli.main(["stats", target]) == 2
    assert capsys.readouterr() == (
        "",
        (
            f"volcache: {target}: not the address of an instance; allowed are HOST:PORT,"
            " such as 127.0.0.1:1234, and a URL, such as http://127.0.0.1:1234\n"
        ),
    )


def test_refused_connection_is_one_line(server: StatsServer) -> None:
    """With exit code 1, in a process as users start it."""
    server.stop()
    program = "import sys; from volcache.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "stats", server.url],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"volcache: {server.url}: Connection refused\n"


def test_report_is_written_over_until_it_is_over(server: StatsServer) -> None:
    """In place of the last one; an instance that is gone is reported and retried."""
    written: list[str] = []
    steps = iter(
        [
            lambda: add_reads(server.stats, 10, 0),
            server.stop,
            server.start,
        ]
    )

    def is_over() -> bool:
        step = next(steps, None)
        if step is not None:
            step()
        return step is None

    refresh([server.url], report, written.append, is_over=is_over)
    first, second, third, fourth = written
    assert all(w.startswith("\x1b[H") and w.endswith("\x1b[J") for w in written)
    assert "reads       none" in first
    assert "100.0% hits" in second
    assert f"{server.url}: Connection refused" in third
    assert "volcache 0.1.0" in fourth


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """It can be copied as it is."""
    assert cli.main(["stats", "--help"]) == 0
    assert "volcache stats http://10.0.0.7:1234 --json" in capsys.readouterr().out
