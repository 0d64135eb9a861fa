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


def test_json_is_that_of_the_instance(
    server: StatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number, for other programs."""
    assert cli.main(["stats", server.url, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    changing = ("now", "uptime_seconds")
    assert {k: v for k, v in printed.items() if k not in changing} == {
        k: v for k, v in server.stats.items() if k not in changing
    }


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, b""), "/-/stats is answered with 404"),
        (
            (421, b"no name\x1b[2J\nof mine\n"),
            "/-/stats is answered with 421: no name[2Jof mine",
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


@pytest.mark.parametrize(
    "url", ["127.0.0.1:1234", "ftp://127.0.0.1", "http://", "http://a:b"]
)
def test_wrong_url_is_a_usage_error(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2 and an example."""
    assert cli.main(["stats", url]) == 2
    assert capsys.readouterr() == (
        "",
        f"volcache: {url}: not a URL such as http://127.0.0.1:1234\n",
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


def test_report_is_written_over_until_interrupted(server: StatsServer) -> None:
    """In place of the last one; an instance that is gone is reported and retried."""
    written: list[str] = []
    steps = iter(
        [
            lambda: add_reads(server.stats, 10, 0),
            server.stop,
            server.start,
        ]
    )

    def pause(_seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    with pytest.raises(KeyboardInterrupt):
        refresh(server.url, report, written.append, pause=pause)
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
