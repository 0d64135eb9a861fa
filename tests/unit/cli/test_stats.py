"""`volcache stats`: what it prints, and the exit code it ends with."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.process import SOURCE
from support.stats_server import StatsServer, add_reads, empty_stats
from volcache.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[StatsServer]:
    """An instance that was started a moment ago."""
    with StatsServer(empty_stats()) as running:
        yield running


def test_one_report_goes_to_a_pipe(
    server: StatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, or when asked for one; no escape sequences."""
    add_reads(server.stats, 75, 25)
    for argv in (["stats", server.url], ["stats", f"{server.url}/", "--once"]):
        assert cli.main(argv) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.startswith("volcache 0.1.0 at data, up 1 s, ready\n")
        assert "75.0% hits: 0.0% MEMC, 75.0% DISK; 25.0% misses\n" in out
        assert "\x1b" not in out


def test_json_is_what_the_instance_said(
    server: StatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number, for another program."""
    assert cli.main(["stats", server.url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    changing = ("now", "uptime_seconds")
    assert {k: v for k, v in told.items() if k not in changing} == {
        k: v for k, v in server.stats.items() if k not in changing
    }


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, b""), "/-/stats is answered with 404"),
        ((200, b"<html>"), "the answer is not one of volcache's"),
        ((200, b"[]"), "the answer is not one of volcache's"),
        ((200, b'{"store": {"keys": 1}}'), "the answer is not one of volcache's"),
    ],
)
def test_wrong_answer_is_one_line(
    server: StatsServer,
    capsys: pytest.CaptureFixture[str],
    answer: tuple[int, bytes],
    reason: str,
) -> None:
    """Exit code 1, whatever listens there."""
    server.answer = answer
    assert cli.main(["stats", server.url]) == 1
    assert capsys.readouterr() == ("", f"volcache: {server.url}: {reason}\n")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:1234", "ftp://127.0.0.1", "http://", "http://a:b"]
)
def test_wrong_url_is_wrong_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and an example."""
    assert cli.main(["stats", url]) == 2
    assert capsys.readouterr() == (
        "",
        f"volcache: {url}: not a URL such as http://127.0.0.1:1234\n",
    )


def test_nobody_there_is_one_line(server: StatsServer) -> None:
    """Exit code 1, of the program as users start it."""
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


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Ready to be pasted."""
    assert cli.main(["stats", "--help"]) == 0
    assert "volcache stats http://10.0.0.7:1234 --json" in capsys.readouterr().out
