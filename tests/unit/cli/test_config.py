"""`volcache config check`: everything that is wrong, warnings, and what is in effect."""

from __future__ import annotations

import os
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from support.command_line import Run
from volcache.settings import SETTINGS

CASES: Final = Path(__file__).parents[1] / "settings_cases.toml"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a settings file whose mount point exists, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path / "volcache.toml"


@pytest.fixture
def check(run: Run) -> Run:
    """Return a function that checks settings."""
    return partial(run, "config", "check")


def test_config_check_of_wrong_settings_lists_all_with_lines(
    path: Path, check: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the file, the environment and the options; tokens are not shown."""
    path.write_text(
        'port = 70000\n# port = 1\nlog_file = """\nprot = 1\n"""\nprot = 2\n'
        'read_tokn = "geheim"\n[table]\nx = 1\n'
    )
    monkeypatch.setenv("VOLCACHE_VOLUME_NUM", "1")
    code, out, errors = check(
        path.name, "--set", "sync_mode=some", "--set", "geheim", "--set", "port"
    )
    assert (code, out) == (2, "")
    beginnings = [
        "volcache.toml:1: port = 70000 is not allowed; allowed is an integer from 0 to",
        "volcache.toml:3: log_file = ",
        "volcache.toml:6: unknown setting prot = 2; the closest known is port",
        "volcache.toml:7: unknown setting read_tokn = (not shown); the closest known is",
        "volcache.toml:8: unknown setting table = {'x': 1}; settings are not in a",
        'environment variable VOLCACHE_VOLUME_NUM: volume_num = "1" is not allowed',
        'option --set: sync_mode = "some" is not allowed; allowed is one of "none"',
        "option --set: not of the form NAME=VALUE",
        "option --set: port has no value; write port=VALUE",
    ]
    lines = errors.splitlines()
    assert len(lines) == len(beginnings)
    for line, beginning in zip(lines, beginnings, strict=True):
        assert line.startswith(f"volcache: {beginning}")
    assert "geheim" not in errors
    # After a syntax error the rest of the file is not checked; the environment is.
    path.write_text("port = 1\nip = = 1\n")
    first, second = check(path.name).err.splitlines()
    assert first.startswith("volcache: volcache.toml:2: not valid TOML: ")
    assert second.startswith("volcache: environment variable VOLCACHE_VOLUME_NUM: ")


def test_config_check_show_lists_settings_with_sources(
    path: Path, check: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As TOML, but tokens."""
    path.write_text('port = "%i"\nmount_point = "data"\nwrite_token = "geheim"\n')
    monkeypatch.setenv("VOLCACHE_LOG_LEVEL", "debug")
    arguments = ("--show", "--instance", "8001", "--set", "idle_timeout=5")
    code, out, errors = check(path.name, *arguments)
    assert (code, errors) == (0, "")
    lines = [line.split("  # ") for line in out.splitlines()]
    shown = {left.strip(): right for left, right in lines}
    assert len(shown) == len(SETTINGS)
    assert shown["port = 8001"] == "volcache.toml"
    assert shown['log_level = "debug"'] == "environment variable VOLCACHE_LOG_LEVEL"
    assert shown["idle_timeout = 5.0"] == "option --set"
    assert shown["volume_num = 64"] == "default"
    assert shown['write_token = "(set, not shown)"'] == "volcache.toml"
    assert "geheim" not in out


def test_config_check_with_warnings_exits_0(path: Path, check: Run) -> None:
    """They are about settings that are allowed; without a file, there is none."""
    assert check() == (0, "ok\n", "")
    for text, warning in tomllib.loads(CASES.read_text())["warnings"].items():
        path.write_text(text)
        code, out, errors = check(path.name)
        assert (code, out, errors.count("\n")) == (0, "ok\n", bool(warning))
        assert errors.startswith("volcache: warning: " if warning else "")
        assert warning in errors
        better = re.search("better is (.*) with (.*) = (.*)", errors)
        if better:  # It is allowed, too.
            options = ("--set", better[1].replace(" ", ""), "--set")
            assert check(path.name, *options, f"{better[2]}={better[3]}").code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_config_check_of_a_read_only_mount_point_warns(path: Path, check: Run) -> None:
    """It names the user of the check, who may be another than the server's."""
    (path.parent / "data").chmod(0o500)
    path.write_text("")
    code, _, errors = check(path.name)
    assert code == 0
    assert 'mount_point = "data" is not writable by the user ' in errors


def test_config_check_of_a_ring_reads_its_list(
    path: Path, check: Run, tmp_path: Path
) -> None:
    """It must have the instance; with failover.conf, there should be none."""
    nginx = tmp_path / "nginx"
    (nginx / "volcache").mkdir(parents=True)
    list_ = nginx / "volcache" / "instances.conf"
    path.write_text(f'ring = ["{list_}"]\nring_self = "a:1"\n')
    code, out, errors = check(path.name)
    assert (code, out) == (2, "")
    assert "No such file" in errors
    list_.write_text("server b:1;")
    assert "does not have this instance, ring_self = 'a:1'" in check(path.name).err
    list_.write_text("server a:1;")
    main = nginx / "volcache.conf"
    main.write_text(
        "    # include volcache/failover.conf\n include volcache/pinned.conf;"
    )
    assert check(path.name) == (0, "ok\n", "")
    main.write_text("    include volcache/failover.conf;\n")
    code, out, errors = check(path.name)
    assert (code, out) == (0, "ok\n")
    assert "ring must be empty with failover.conf" in errors
