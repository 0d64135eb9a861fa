"""Settings: what is taken, what is refused, and with which words."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from volcache.config import Config, load_config
from volcache.errors import ConfigError
from volcache.settings import GIB, MIB, SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a settings file that is not there yet."""
    return tmp_path / "volcache.toml"


def refused(path: Path | None, environ: dict[str, str] | None = None) -> str:
    """Give the one line with which loading fails, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ or {})
    line = str(caught.value)
    assert line
    assert len(line.splitlines()) == 1
    return line.replace(f"{path.parent}/", "") if path else line


# --- The table -------------------------------------------------------------------


def test_table_and_config_have_the_same_names_and_types() -> None:
    """A setting is added to both or to none."""
    fields = {field.name: field.type for field in dataclasses.fields(Config)}
    assert fields == {
        s.name: type(s.default).__name__.replace("tuple", "tuple[str, ...]")
        for s in SETTINGS
    }


def test_defaults_are_the_promised_ones() -> None:
    """Without a file and without variables every setting has its default."""
    assert load_config(None, {}) == Config(
        mount_point="data",
        volume_size=GIB,
        volume_num=10,
        ip="127.0.0.1",
        port=1234,
        idle_timeout=0.0,
        log_level="info",
        log_file="",
        log_format="text",
        log_access="",
        log_slow=0.1,
        sync_mode="periodic",
        sync_interval=1.0,
        max_value_size=MIB,
        max_key_size=1024,
        memc_on=False,
        memc_ip="127.0.0.1",
        memc_port=11211,
        memc_servers=(),
        memc_timeout=0.05,
        memc_max_value_size=1_000_000,
        cache_after_miss_count=3,
        cache_after_miss_count_duration=60.0,
        admin_token="",
        default_ttl=0,
        max_ttl=0,
    )


# --- Sources ---------------------------------------------------------------------


def test_file_overrides_default(path: Path) -> None:
    """A line of the file counts; what it leaves out stays at its default."""
    path.write_text("port = 8000\n")
    config = load_config(path, {})
    assert config == dataclasses.replace(load_config(None, {}), port=8000)


def test_environment_overrides_file(path: Path) -> None:
    """A variable counts more than the file; other variables are not looked at."""
    path.write_text("port = 8000\nvolume_num = 3\n")
    environ = {"VOLCACHE_PORT": "9000", "PORT": "1", "VOLCACHE": "x", "HOME": "/"}
    config = load_config(path, environ)
    assert (config.port, config.volume_num) == (9000, 3)


def test_empty_file_is_all_defaults(path: Path) -> None:
    """A file may leave out everything."""
    path.write_text("")
    assert load_config(path, {}) == load_config(None, {})


def test_log_file_can_be_set_back_to_empty(path: Path) -> None:
    """An empty variable is a value where empty is allowed."""
    path.write_text('log_file = "log"\n')
    assert load_config(path, {"VOLCACHE_LOG_FILE": ""}).log_file == ""


# --- Refusals --------------------------------------------------------------------

PORTS = "an integer from 0 to 65535"
INTERVALS = "a number from 0.01 to 3600 (seconds)"
KEY_SIZES = "an integer from 1 to 4096 = 4 KiB (bytes)"
MODES = 'one of "none", "periodic", "always"'
LEVELS = 'one of "debug", "info", "warning", "error"'
ADDRESSES = 'an IPv4 or IPv6 address such as "127.0.0.1", "0.0.0.0" or "::1"'
TEXT = "text without control characters"
FULL_TEXT = "text that is not empty and without control characters"


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("port = 70000", PORTS),
        ("port = -1", PORTS),
        ("port = true", PORTS),
        ("port = 80.0", PORTS),
        ('port = "80"', PORTS),
        ("port = [80]", PORTS),
        ("port = 1979-05-27", PORTS),
        ("sync_interval = 0.0", INTERVALS),
        ("sync_interval = inf", INTERVALS),
        ("sync_interval = nan", INTERVALS),
        ("sync_interval = false", INTERVALS),
        ('sync_interval = "1"', INTERVALS),
        ("max_key_size = 0", KEY_SIZES),
        ('sync_mode = "Always"', MODES),
        ("log_level = 10", LEVELS),
        ('ip = "localhost"', ADDRESSES),
        ('ip = ""', ADDRESSES),
        ("ip = 2130706433", ADDRESSES),
        ("log_file = 1", TEXT),
        ('mount_point = ""', FULL_TEXT),
        ('mount_point = "a\\u0000b\\nc"', FULL_TEXT),
    ],
)
def test_wrong_line_is_refused_by_name_value_and_what_is_allowed(
    path: Path, line: str, allowed: str
) -> None:
    """The line says file, setting, value and what is allowed."""
    path.write_text(line)
    assert (
        refused(path) == f"volcache.toml: {line} is not allowed; allowed is {allowed}"
    )


@pytest.mark.parametrize(
    ("line", "closest"),
    [
        ("prot = 80", "port"),
        ("PORT = 80", "port"),
        ('"volume-size" = 80', "volume_size"),
        ('sync_modus = "none"', "sync_mode"),
    ],
)
def test_unknown_setting_is_refused_with_the_closest(
    path: Path, line: str, closest: str
) -> None:
    """A slip in a name is not taken for a default."""
    path.write_text(line)
    assert refused(path) == (
        f"volcache.toml: unknown setting {line}; the closest known is {closest}"
    )


def test_setting_like_none_is_refused_with_all(path: Path) -> None:
    """Where nothing is close, everything known is listed."""
    path.write_text("zzz = 1")
    assert refused(path) == (
        "volcache.toml: unknown setting zzz = 1; known are "
        + ", ".join(setting.name for setting in SETTINGS)
    )


def test_settings_in_a_table_are_refused_with_where_they_belong(path: Path) -> None:
    """Other programs have tables in their files; whoever writes one here is told."""
    path.write_text("[volcache]\nport = 1")
    assert refused(path) == (
        "volcache.toml: unknown setting volcache = {'port': 1}; a setting is a line of"
        " its own, in no [table]"
    )


@pytest.mark.parametrize("text", ["", "x", "1.5", "True", "0x10", "9" * 5000])
def test_wrong_variable_is_refused_by_name(text: str) -> None:
    """The line says variable, setting, value and what is allowed, and is not long."""
    line = refused(None, {"VOLCACHE_PORT": text})
    assert line.startswith(f'environment variable VOLCACHE_PORT: port = "{text[:70]}')
    assert line.endswith(f"is not allowed; allowed is {PORTS}")
    assert len(line) < 250


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("VOLCACHE_PROT", "the closest known is VOLCACHE_PORT"),
        ("VOLCACHE_port", "the closest known is VOLCACHE_PORT"),
        ("VOLCACHE_VOLUMESIZE", "the closest known is VOLCACHE_VOLUME_SIZE"),
    ],
)
def test_unknown_variable_is_refused_with_the_closest(variable: str, hint: str) -> None:
    """A slip in a variable's name is not taken for a default."""
    line = refused(None, {variable: "1"})
    assert line == f'environment: unknown variable {variable} = "1"; {hint}'


@pytest.mark.parametrize("environ", [{}, {"VOLCACHE_MAX_KEY_SIZE": "2048"}])
def test_volume_must_hold_the_largest_record(
    path: Path, environ: dict[str, str]
) -> None:
    """A volume that no largest file fits is refused, with all three numbers."""
    path.write_text(f"volume_size = {MIB}\n")
    key = 2048 if environ else 1024
    source = "environment variable VOLCACHE_MAX_KEY_SIZE" if environ else "default"
    assert refused(path, environ) == (
        "volume_size = 1048576 (volcache.toml) is too small for the largest record; "
        f"allowed is at least {MIB + key + 4096}: max_value_size = 1048576 (default) "
        f"+ max_key_size = {key} ({source}) + 4096"
    )


def test_volume_that_just_holds_the_largest_record_is_allowed() -> None:
    """The bound is inclusive, and one byte less is not enough."""
    needed = MIB + 1024 + 4096
    assert load_config(None, {"VOLCACHE_VOLUME_SIZE": str(needed)}).volume_num
    refused(None, {"VOLCACHE_VOLUME_SIZE": str(needed - 1)})


# --- Files that cannot be read ---------------------------------------------------


def test_missing_file_is_one_line(path: Path) -> None:
    """A file that was named must be there."""
    assert refused(path) == "volcache.toml: cannot be read: No such file or directory"


def test_directory_is_one_line(path: Path) -> None:
    """A directory is no settings file."""
    path.mkdir()
    assert refused(path) == "volcache.toml: cannot be read: Is a directory"


@pytest.mark.parametrize(
    "content",
    [
        b"port = = 1",
        b"port = 1\nport = 2",
        b"port = 99" + b"9" * 5000,
        b"port = " + b"[" * 100_000,
        b"\xef\xbb\xbfport = 1",
    ],
)
def test_syntax_error_is_one_line(path: Path, content: bytes) -> None:
    """Whatever the TOML reader stumbles over ends as one line."""
    path.write_bytes(content)
    assert refused(path).startswith("volcache.toml: not valid TOML: ")


def test_other_encoding_is_one_line(path: Path) -> None:
    """TOML is UTF-8."""
    path.write_bytes(b'mount_point = "\xe9"')
    assert refused(path).startswith("volcache.toml: not UTF-8 text: ")
