"""`volcache config check`: everything that is wrong, warnings, and what is in effect."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from support.command_line import Run
from volcache.settings import SETTINGS


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


def test_right_settings_are_ok(path: Path, check: Run) -> None:
    """Also without a file."""
    path.write_text("port = 8000\n")
    assert check(path.name) == check() == (0, "ok\n", "")


def test_all_wrong_settings_are_listed_with_their_lines(
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


def test_syntax_error_has_its_line(path: Path, check: Run) -> None:
    """The rest of the file cannot be checked; the environment is."""
    path.write_text("port = 1\nip = = 1\n")
    code, _, errors = check(path.name, "--set", "port=x")
    assert code == 2
    first, second = errors.splitlines()
    assert first.startswith("volcache: volcache.toml:2: not valid TOML: ")
    assert second.startswith('volcache: option --set: port = "x" is not allowed')


def test_show_lists_all_settings_with_their_sources(
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


def test_warnings_do_not_change_the_exit_code(path: Path, check: Run) -> None:
    """They are about settings that are allowed."""
    for text, warning in {
        'ip = "0.0.0.0"': "without tokens: everyone who can reach the port can read and",
        'ip = "::"\nread_token = "x"': "without write_token: everyone who can reach",
        'read_token = "x"': "read_token without write_token: everyone who can reach",
        "volume_num = 8": "volume_num = 8 is low: ",
        "default_ttl = 9\nmax_ttl = 8": "default_ttl = 9 has no effect: max_ttl = 8",
        'memc_servers = ["m:1"]': "memc_servers has no effect: memc_on is false",
        'memc_on = true\nmemc_max_value_size = "2MiB"': (
            "memc_max_value_size = 2.0 MiB needs a memcached whose option -I"
        ),
        'mount_point = "no"': '"no" does not exist; the start creates it: is the',
        'mount_point = "volcache.toml"': '"volcache.toml" is not a directory',
    }.items():
        path.write_text(text)
        code, out, errors = check(path.name)
        assert (code, out, errors.count("\n")) == (0, "ok\n", 1)
        assert errors.startswith("volcache: warning: ")
        assert warning in errors


def test_few_volumes_are_advised_to_be_smaller_as_far_as_files_fit(
    path: Path, check: Run
) -> None:
    """The size that is advised is one that the settings allow."""
    for volumes, size, more, number, better in (
        (64, "160MiB", "", 0, ""),
        (32, "160MiB", "", 0, ""),
        (4, "160MiB", 'eviction = "fifo"', 0, ""),
        (10, "1GiB", "", 64, "160MiB"),
        # A volume of 640 KiB would not hold a file of 1 MiB.
        (10, "4MiB", "", 20, "2MiB"),
        (10, "4MiB", "max_value_size = 4000", 40, "1MiB"),
        # No other division of the capacity is better: it takes more of it.
        (10, "2MiB", "", 32, "2MiB"),
    ):
        path.write_text(f'volume_num = {volumes}\nvolume_size = "{size}"\n{more}\n')
        expected = f"better is volume_num = {number} with volume_size = {better}\n"
        errors = check(path.name).err
        assert errors.endswith(expected if number else "")
        assert bool(errors) == bool(number)
        if number:
            text = f'volume_num = {number}\nvolume_size = "{better}"\n{more}\n'
            path.write_text(text)
            assert check(path.name).code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_mount_point_that_cannot_be_written_is_a_warning(
    path: Path, check: Run
) -> None:
    """It names the user of the check, who may be another than the server's."""
    (path.parent / "data").chmod(0o500)
    path.write_text("")
    code, _, errors = check(path.name)
    assert code == 0
    assert 'mount_point = "data" is not writable by the user ' in errors


def test_list_of_the_ring_is_read(path: Path, check: Run, tmp_path: Path) -> None:
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
