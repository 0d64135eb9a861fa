"""The command line: what every command has in common."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import volcache
from support.process import SOURCE
from support.unheard import run_unheard
from volcache.cli import main as cli
from volcache.errors import ConfigError, ListenError, MountPointError

if TYPE_CHECKING:
    from pathlib import Path

    from support.wiring import Wiring


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a setting"), 2),
        (MountPointError("the disk"), 1),
        (ListenError("the address"), 1),
    ],
)
def test_error_is_one_line_and_an_exit_code(
    wiring: Wiring,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    """What the package raises on purpose ends without a traceback."""
    wiring.error = error
    assert cli.main(["serve"]) == code
    assert capsys.readouterr() == ("", f"volcache: {error}\n")


def test_interrupt_during_the_start_is_quiet(
    wiring: Wiring, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C before the server handles it itself ends like any program."""
    wiring.error = KeyboardInterrupt()
    assert cli.main(["serve"]) == 130
    assert capsys.readouterr() == ("", "")


def test_bug_is_not_hidden(wiring: Wiring) -> None:
    """What nobody raised on purpose keeps its traceback."""
    wiring.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError):
        cli.main(["serve"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], 'the following arguments are required: COMMAND; see "volcache --help"'),
        (["serve", "a", "b"], 'unrecognized arguments: b; see "volcache --help"'),
        (["sevre"], "argument COMMAND: invalid choice: 'sevre' (choose from "),
    ],
)
def test_wrong_usage_is_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments are exit code 2 and say where help is."""
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"volcache: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [["--version"], ["serve", "--version"]])
def test_version_is_printed(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Name and version, as other programs do."""
    assert cli.main(argv) == 0
    assert capsys.readouterr() == (f"volcache {volcache.__version__}\n", "")


def test_help_shows_commands_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who knows nothing can go on from here."""
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "example: volcache serve conf/volcache.toml" in out
    assert all(f"    {command.name} " in out for command in cli.COMMANDS)


def test_directory_runs_without_installation(tmp_path: Path) -> None:
    """`python src/` is `volcache serve`, from any directory and without packages."""
    command = [sys.executable, "-S", str(SOURCE), "missing.toml"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "volcache: missing.toml: cannot be read: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("end", "code", "err"),
    [
        ("return 1", 1, ""),
        ("raise errors.StoreError('bad')", 1, "volcache: bad\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_lines_that_nobody_reads_change_no_exit_code(
    tmp_path: Path, end: str, code: int, err: str
) -> None:
    """They meet the pipe when the command is over."""
    program = f"""
import sys
from volcache.cli import main as cli
from volcache.cli import command
from volcache import errors

def run(_):
    print("line")
    {end}

cli.COMMANDS = [command.Command(
    name="say", text="", epilog="", add_arguments=lambda _: None, run=run
)]
sys.exit(cli.main(["say"]))
"""
    assert run_unheard(tmp_path, program=program) == (code, err)
