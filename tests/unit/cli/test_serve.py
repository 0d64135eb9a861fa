"""`volcache serve`: its settings, its help and a start that fails."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from support.process import run_to_its_end
from volcache.cli import main as cli
from volcache.settings import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.wiring import Wiring


def test_serve_runs_with_the_settings_of_its_file(
    wiring: Wiring, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`volcache serve FILE` prints nothing."""
    path = tmp_path / "conf.toml"
    path.write_text("port = 8000\n")
    assert cli.main(["serve", str(path)]) == 0
    assert [config.port for config in wiring.configs] == [8000]
    assert capsys.readouterr() == ("", "")


def test_serve_without_a_file_uses_the_environment(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an argument: defaults and environment."""
    monkeypatch.setenv("VOLCACHE_PORT", "9000")
    assert cli.main(["serve"]) == 0
    assert [config.port for config in wiring.configs] == [9000]


def test_serve_takes_options_and_the_name_of_the_instance(
    wiring: Wiring, tmp_path: Path
) -> None:
    """They override the file."""
    path = tmp_path / "conf.toml"
    path.write_text('port = 1\nmount_point = "/srv/%i"\n')
    arguments = ["serve", "--instance", "a", str(path), "--set", "port=2"]
    assert cli.main(arguments) == 0
    [config] = wiring.configs
    assert (config.port, config.mount_point) == (2, "/srv/a")


def test_wrong_setting_stops_the_start(
    wiring: Wiring,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 before anything is opened."""
    monkeypatch.setenv("VOLCACHE_PORT", "x")
    assert cli.main(["serve"]) == 2
    assert wiring.configs == []
    assert capsys.readouterr().err.startswith("volcache: environment variable VOLC")


def test_defaults_in_the_help_can_be_copied_into_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each is written as TOML and is the default."""
    assert cli.main(["serve", "--help"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {line[0]: line[1] for line in words if len(line) > 2}
    for setting in SETTINGS:
        value = tomllib.loads(f"value = {shown[setting.name]}")["value"]
        assert setting.kind.from_toml(value) == setting.default


def test_help_of_serve_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Name, default and text."""
    assert cli.main(["serve", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {s.name} " in out and s.text in out for s in SETTINGS)


def test_unusable_log_file_ends_the_start(tmp_path: Path) -> None:
    """A log file that cannot be opened is reported before anything is served."""
    log_file = tmp_path / "missing" / "log"
    done = run_to_its_end(tmp_path, {"log_file": log_file, "port": 0})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f'volcache: log_file = "{log_file}" cannot be opened: '
        "No such file or directory; use a file that this user may write to,"
        " in an existing directory\n"
    )
