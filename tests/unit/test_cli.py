"""The command line: what it runs, prints and returns."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import volcache
from volcache import cli
from volcache.errors import ConfigError, ListenError, MountPointError
from volcache.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.config import Config

SOURCE = Path(cli.__file__).parents[1]


class Wiring(types.ModuleType):
    """Stands in for the wiring: keeps what it was given, raises what it is told."""

    def __init__(self) -> None:
        """Serve nothing."""
        super().__init__("volcache.wiring")
        self.configs: list[Config] = []
        self.error: BaseException | None = None

    def run(self, config: Config) -> None:
        """Take the place of `wiring.run`."""
        self.configs.append(config)
        if self.error:
            raise self.error


@pytest.fixture
def wiring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wiring]:
    """Put the stand-in where `serve` finds it; leave logging alone."""
    wiring = Wiring()
    monkeypatch.setitem(sys.modules, "volcache.wiring", wiring)
    monkeypatch.setattr(volcache, "wiring", wiring, raising=False)
    monkeypatch.setattr(cli, "setup_logging", lambda *_: None)
    return wiring


def test_serve_runs_with_the_settings_of_its_file(
    wiring: Wiring, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`volcache serve FILE` hands the file's settings on and prints nothing."""
    path = tmp_path / "conf.toml"
    path.write_text("port = 8000\n")
    assert cli.main(["serve", str(path)]) == 0
    assert [config.port for config in wiring.configs] == [8000]
    assert capsys.readouterr() == ("", "")


def test_serve_without_a_file_takes_the_environment(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No argument means defaults and environment."""
    monkeypatch.setenv("VOLCACHE_PORT", "9000")
    assert cli.main(["serve"]) == 0
    assert [config.port for config in wiring.configs] == [9000]


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


def test_wrong_setting_starts_nothing(
    wiring: Wiring,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong setting is exit code 2 before anything is opened."""
    monkeypatch.setenv("VOLCACHE_PORT", "x")
    assert cli.main(["serve"]) == 2
    assert wiring.configs == []
    assert capsys.readouterr().err.startswith("volcache: environment variable VOLC")


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


def test_help_of_serve_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, defaults and meanings, without opening a file."""
    assert cli.main(["serve", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {s.name} " in out and s.text in out for s in SETTINGS)


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


def test_unusable_log_file_ends_the_start(tmp_path: Path) -> None:
    """A log that cannot be written is said before anything is served."""
    log_file = tmp_path / "missing" / "log"
    done = subprocess.run(
        [sys.executable, str(SOURCE)],
        cwd=tmp_path,
        env={"VOLCACHE_LOG_FILE": str(log_file), "VOLCACHE_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f'volcache: log_file = "{log_file}" cannot be opened: '
        "No such file or directory; give a file that this user may write to,"
        " in a folder that is there\n"
    )
