"""The command line: errors, exit codes and help of all commands."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.full_output import run_with_full_output
from support.unheard import run_unheard

import volcache
from support.process import SOURCE
from support.tables import each_row
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
    """An error of the package has no traceback."""
    wiring.error = error
    assert cli.main(["serve"]) == code
    assert capsys.readouterr() == ("", f"volcache: {error}\n")


def test_interrupt_during_the_start_prints_nothing(
    wiring: Wiring, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C before the server has installed its handler: exit code 130."""
    wiring.error = KeyboardInterrupt()
    assert cli.main(["serve"]) == 130
    assert capsys.readouterr() == ("", "")


def test_unexpected_error_keeps_its_traceback(wiring: Wiring) -> None:
    """It is a defect, and must be visible."""
    wiring.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError):
        cli.main(["serve"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "a", "b"], 'unexpected argument: b; see "volcache serve --help"'),
        (["sevre"], "unknown command 'sevre'; the closest known is 'serve'; see "),
        (["x"], "unknown command 'x'; see \"volcache --help\""),
        (["--jsn", "check"], "unknown option '--jsn'; see "),
        (["check", "--jsn"], "unknown option '--jsn'; the closest known is '--json'; "),
        (["check", "a", "--jso"], "unknown option '--jso'; the closest known is "),
        (
            ["get", "k", "--time"],
            "unknown option '--time'; the closest known is '--timeo",
        ),
        (["tail", "-x5", "f"], "unknown option '-x5'; "),
        (["get", "k", "-o"], "argument -o/--output: expected one argument; "),
    ],
)
def test_wrong_usage_is_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments: exit code 2 and where to find help."""
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"volcache: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["--version"], ["-V"], ["serve", "--version"], ["check", "-V"]]
)
def test_version_is_printed(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Name and version."""
    assert cli.main(argv) == 0
    assert capsys.readouterr() == (f"volcache {volcache.__version__}\n", "")


@pytest.mark.parametrize("argv", [[], ["--help"], ["help"]])
def test_help_shows_commands_and_an_example(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """All commands, in one list; also without arguments."""
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "example: volcache serve conf/volcache.toml" in out
    for module in cli.MODULES:
        assert re.search(rf"^    {module.removesuffix('_')}\s", out, re.MULTILINE)


def test_help_of_a_command_is_asked_for_in_any_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command of commands shows it if none is given."""
    for words in (["get"], ["cluster"], ["config"], ["cluster", "purge"]):
        outputs = set()
        asked = [["help", *words], [*words, "--help"]]
        asked += [words] if words in (["cluster"], ["config"]) else []
        for argv in asked:
            assert cli.main(argv) == 0
            outputs.add(capsys.readouterr())
        ((out, err),) = outputs
        assert out.startswith(f"usage: volcache {' '.join(words)} ")
        assert err == ""


def test_source_directory_runs_without_installation(tmp_path: Path) -> None:
    """`python src/` is `volcache serve`, in any directory and without packages."""
    command = [sys.executable, "-S", str(SOURCE), "missing.toml"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "volcache: missing.toml: cannot be read: No such file or directory\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "err"),
    [
        ("return 1", 1, ""),
        ("raise errors.StoreError('bad')", 1, "volcache: bad\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_closed_output_does_not_change_the_exit_code(
    tmp_path: Path, end: str, code: int, err: str
) -> None:
    """The pipe is closed when the output is written at the end."""
    program = f"""
import sys
import types
from volcache.cli import main as cli
from volcache.cli import command
from volcache import errors

def run(_):
    print("line")
    {end}

sys.modules["volcache.cli.say"] = types.SimpleNamespace(COMMAND=command.Command(
    name="say", text="", epilog="", add_arguments=lambda _: None, run=run
))
cli.MODULES = ("say",)
sys.exit(cli.main(["say"]))
"""
    assert run_unheard(tmp_path, program=program) == (code, err)


@pytest.mark.parametrize("module", cli.MODULES)
def test_help_of_each_command_has_an_example(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines fit a terminal."""
    name = module.removesuffix("_")
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "example" in out
    assert f"  volcache {name} " in out or f": volcache {name} " in out
    if name != "serve":  # Its table of settings is wider.
        assert max(map(len, out.splitlines())) <= 92


@each_row(
    ("argv", "names"),
    [
        (["get", "k", "-o", "f", "h:1"], {"key": "k", "output": "f", "target": "h:1"}),
        (["get", "-of", "k", "-th:1"], {"output": "f", "target_option": "h:1"}),
        (["get", "k", "-o", ""], {"key": "k", "output": ""}),
        (["get", "--", "-k", "h:1"], {"key": "-k", "target": "h:1"}),
        (["put", "k", "--max-age=7", "-", "h:1"], {"file": "-", "target": "h:1"}),
        (["rm", "a", "-f", "b"], {"keys": ["a", "b"], "force": True}),
        (["get", "k", "-5"], {"target": "-5"}),
        (["stats", "--json"], {"targets": ["127.0.0.1:1234"]}),
    ],
)
def test_options_are_accepted_at_any_place(
    argv: list[str], names: dict[str, object]
) -> None:
    """Also between arguments of which the last is optional."""
    found = vars(cli.build_parser(argv).parse_args(argv))
    assert {name: found[name] for name in names} == names


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["check", "--help"]])
def test_full_disk_under_the_output_is_one_line(
    tmp_path: Path, argv: list[str], *, unbuffered: bool
) -> None:
    """Exit code 1."""
    assert run_with_full_output(tmp_path, *argv, unbuffered=unbuffered) == (
        1,
        "volcache: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["serve", "--help"], ["--version"]])
def test_server_does_not_load_the_tools(tmp_path: Path, argv: list[str]) -> None:
    """`serve` loads neither a tool nor the store before it has its settings."""
    program = f"""
import sys
from volcache.cli.main import main
main({argv!r})
loaded = [name for name in sys.modules if name.startswith("volcache.")]
print(sorted(loaded), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    is_tool_loaded = "volcache.cli.check" in done.stderr
    assert is_tool_loaded == (argv[0] != "serve")
    assert ("volcache.store" in done.stderr) == is_tool_loaded
    assert "volcache.wiring" not in done.stderr
