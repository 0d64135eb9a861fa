"""`volcache dashboard` as users run it."""

from __future__ import annotations

import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest
import requests

from support.ports import pick_port
from support.process import SOURCE
from support.program import Program
from support.tables import each_row
from volcache.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAIN = "import sys; from volcache.cli.main import main; sys.exit(main())"


class _DashboardProcess(Program):
    """A dashboard of one instance that hangs nowhere and is down."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{pick_port()}/"

    def command(self) -> Sequence[str | Path]:
        """Return the command that a user types."""
        address = self.url.removeprefix("http://").strip("/")
        where = ("--listen", address)
        return [
            sys.executable,
            "-c",
            MAIN,
            "dashboard",
            "--instances",
            "[::1]:1",
            *where,
        ]

    def environment(self) -> dict[str, str]:
        """Return our environment, with the package."""
        return {**super().environment(), "PYTHONPATH": str(SOURCE)}

    def answers(self) -> bool:
        """Whether it serves."""
        try:
            return requests.get(f"{self.url}healthy", timeout=1).text == "ok\n"
        except requests.RequestException:
            return False


@pytest.mark.slow
@each_row("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_exit_code_0(number: signal.Signals) -> None:
    """Without a traceback; it has printed where the page is, and nothing else."""
    with _DashboardProcess() as dashboard:
        dashboard.send_signal(number)
        assert dashboard.wait() == 0
        assert dashboard.stdout == f"dashboard of 1 instance at {dashboard.url}\n"
        assert dashboard.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-i"], 2, "argument -i/--instances: expected at least one argument"),
        (["--instances", "rubbish"], 2, "rubbish: not the address of an instance"),
        (["--instances", "h:1", "--listen", "8090"], 2, "--listen 8090: allowed is"),
        (
            ["--instances", "h:1", "--interval", "0"],
            2,
            "'0' is not allowed; allowed is a number of seconds from 1 to 3600",
        ),
        (["--instances", "h:1", "--listen", "192.0.2.1:80"], 1, "cannot listen on 192"),
    ],
)
def test_wrong_argument_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And an exit code."""
    assert cli.main(["dashboard", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(re.escape(message), err)
    assert err.count("\n") == 1
