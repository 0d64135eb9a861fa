"""Reading the settings: sources, what is refused, error texts, and the sample file."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from volcache.config import load_config, load_config_again, read_settings, sample
from volcache.errors import ConfigError
from volcache.kinds import AUTO, MIB
from volcache.settings import SETTINGS

SAMPLE = Path(__file__).parents[2] / "conf" / "volcache.toml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a settings file that does not exist yet."""
    return tmp_path / "volcache.toml"


def refused(path: Path | None, environ: dict[str, str] | None = None) -> str:
    """Return the one-line error of loading, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ or {})
    line = str(caught.value)
    assert line
    assert len(line.splitlines()) == 1
    return line.replace(f"{path.parent}/", "") if path else line


# --- Sources ---------------------------------------------------------------------


def test_options_override_the_environment_and_that_the_file(path: Path) -> None:
    """
    What the file leaves out keeps its default; of options, the last one counts.

    Variables without the prefix are ignored. An empty variable is a value where empty is
    allowed.
    """
    path.write_text('port = 8000\nlog_file = "log"\n')
    defaults = load_config(None, {})
    file = dataclasses.replace(defaults, port=8000, log_file="log")
    assert load_config(path, {}) == file
    environ = {"VOLCACHE_PORT": "9000", "VOLCACHE_LOG_FILE": ""}
    environ |= {"PORT": "1", "VOLCACHE": "x", "HOME": "/"}
    assert load_config(path, environ) == dataclasses.replace(defaults, port=9000)
    options = ["port=3", "port=4", "memc_servers=a:1, b:2", "log_file=a=b"]
    changes: dict[str, Any] = {
        "port": 4,
        "memc_servers": ("a:1", "b:2"),
        "log_file": "a=b",
    }
    found = load_config(path, environ, options=options)
    assert found == dataclasses.replace(defaults, **changes)


# --- Refusals --------------------------------------------------------------------


def test_unknown_setting_is_refused_with_the_remedy(path: Path) -> None:
    """With the closest known name, or all; tables, which other programs have, are named."""
    names = ", ".join(setting.name for setting in SETTINGS)
    for line, remedy in {
        **dict.fromkeys(("prot = 80", "PORT = 80"), "the closest known is port"),
        '"volume-size" = 80': "the closest known is volume_size",
        'sync_modus = "none"': "the closest known is sync_mode",
        "zzz = 1": f"known are {names}",
    }.items():
        path.write_text(line)
        assert refused(path) == f"volcache.toml: unknown setting {line}; {remedy}"
    path.write_text("[volcache]\nport = 1")
    assert refused(path) == (
        "volcache.toml: unknown setting volcache = {'port': 1}; settings are not in a"
        " [table]: write each on a line of its own"
    )
    for name, closest in {
        "PROT": "PORT",
        "port": "PORT",
        "LOGFILE": "LOG_FILE",
    }.items():
        assert refused(None, {f"VOLCACHE_{name}": "1"}) == (
            f'environment: unknown variable VOLCACHE_{name} = "1"; the closest known is'
            f" VOLCACHE_{closest}"
        )


def test_long_value_is_cut_off() -> None:
    """Also one with more digits than Python converts."""
    line = refused(None, {"VOLCACHE_PORT": "9" * 5000})
    assert line.startswith('environment variable VOLCACHE_PORT: port = "999')
    assert len(line) < 250


def test_volume_must_hold_the_largest_record(path: Path) -> None:
    """A smaller volume is refused, with all three numbers and their sources."""
    path.write_text(f"volume_size = {MIB}\n")
    variable = "VOLCACHE_MAX_KEY_SIZE"
    for key, environ, source in (
        (1024, {}, "default"),
        (2048, {variable: "2048"}, f"environment variable {variable}"),
    ):
        assert refused(path, environ) == (
            "volume_size = 1048576 (volcache.toml) is too small for the largest record;"
            f" allowed is at least {MIB + key + 4096}: max_value_size = 1048576 (default)"
            f" + max_key_size = {key} ({source}) + 4096"
        )
        least = {"VOLCACHE_VOLUME_SIZE": f"{MIB + key + 4096}"}
        assert load_config(path, environ | least).max_key_size == key


def test_volumes_that_are_too_large_for_their_number_are_refused(path: Path) -> None:
    """With the limit, from which number on; `auto` keeps to it."""
    for size, most in ((2**31, 65_535), (2**31 + 1, 32_767), (2**40, 127)):
        path.write_text(f"volume_size = {size}\nvolume_num = {most}\n")
        assert load_config(path, {}).volume_num == most
        path.write_text(f"volume_size = {size}\nvolume_num = 'auto'\n")
        assert load_config(path, {}).volume_num == 0
    assert refused(path, {"VOLCACHE_VOLUME_NUM": "128"}) == (
        "volume_num = 128 (environment variable VOLCACHE_VOLUME_NUM) is too high for"
        " volume_size = 1099511627776 (volcache.toml); allowed is at most 127"
    )


# --- Files that cannot be read ---------------------------------------------------


def test_file_that_cannot_be_read_is_one_line(path: Path) -> None:
    """A file given as an argument must exist."""
    error = "volcache.toml: cannot be read: "
    assert refused(path) == f"{error}No such file or directory"
    path.mkdir()
    assert refused(path) == f"{error}Is a directory"


def test_syntax_error_is_one_line(path: Path) -> None:
    """Every error of the TOML reader, also for extreme input, and other encodings."""
    for content in (
        *(b"port = = 1", b"port = 1\nport = 2", b"port = 99" + b"9" * 5000),
        *(b"port = " + b"[" * 100_000, b"\xef\xbb\xbfport = 1"),
    ):
        path.write_bytes(content)
        assert refused(path).startswith("volcache.toml: not valid TOML: ")
    path.write_bytes(b'mount_point = "\xe9"')
    assert refused(path).startswith("volcache.toml: not UTF-8 text: ")


# --- The sample file -------------------------------------------------------------


def test_sample_file_shows_every_setting_at_its_default() -> None:
    """`tools/sample_config.py` writes it again after a change of the table."""
    assert SAMPLE.read_text() == sample()
    assert list(tomllib.loads(sample())) == [setting.name for setting in SETTINGS]
    assert load_config(SAMPLE, {}) == load_config(None, {})


def test_sample_explains_every_setting() -> None:
    """What it does, what is allowed and what it costs, in lines that fit a terminal."""
    lines = sample().splitlines()
    assert max(map(len, lines)) <= 88
    for setting in SETTINGS:
        end = lines.index(f"{setting.name} = {setting.default_toml}")
        start = end
        while lines[start - 1].startswith("# "):
            start -= 1
        comment = " ".join(line.removeprefix("# ") for line in lines[start:end])
        mark = " (R)" if setting.reloads else ""
        assert comment == (
            f"{setting.text}{mark} Allowed: {setting.kind.allowed}. Cost: {setting.cost}"
        )


def test_body_memory_holds_the_largest_body(path: Path) -> None:
    """By default, too; the text says what is allowed."""
    path.write_text(f"max_value_size = {MIB}\nbody_memory = {MIB - 1}\n")
    with pytest.raises(
        ConfigError, match=r"allowed is at least max_value_size = 1048576"
    ):
        load_config(path, {})
    for text in (f"{MIB}", '"auto"'):
        path.write_text(f"body_memory = {text}\n")
        assert load_config(path, {}).body_memory in {MIB, AUTO}


def test_values_of_an_existing_store_replace_defaults_only(path: Path) -> None:
    """The file and the environment override them."""
    for name, value, other in (("volume_num", 3, 4), ("volume_size", 2 * MIB, 4 * MIB)):
        existing = {name: value}
        assert getattr(load_config(None, {}, existing), name) == value
        path.write_text(f"{name} = {other}\n")
        assert load_config(path, {}, existing) == load_config(path, {})


def test_error_names_values_of_an_existing_store() -> None:
    """They are in no file and in no variable."""
    with pytest.raises(ConfigError, match=r"= 4096 \(of the existing volumes\) is too"):
        load_config(None, {}, {"volume_size": 4096})


# --- Options and the name of the instance -------------------------------------------


def test_error_names_the_option_and_counts_the_others() -> None:
    """`config check` lists them."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, {}, options=["prot=1", "read_token= x", "ip"])
    assert str(caught.value) == (
        'option --set: unknown setting prot = "1"; the closest known is port (and 2 more:'
        " volcache config check lists them)"
    )


def test_name_of_the_instance_is_put_in(path: Path) -> None:
    """Into text, lists, and numbers that are written as text; not into tokens."""
    path.write_text(
        'mount_point = "/srv/%i/100%%"\nport = "1%i"\nwrite_token = "a%i%%"\n'
        'memc_servers = ["/run/m-%i", "h:1"]\nvolume_size = "%iMiB"\n'
    )
    environ = {"VOLCACHE_INSTANCE": "9", "VOLCACHE_LOG_FILE": "/var/log/%i.log"}
    config = load_config(path, environ, options=["log_access=%i"])
    assert (config.mount_point, config.port) == ("/srv/9/100%", 19)
    assert (config.write_token, config.volume_size) == ("a%i%%", 9 * MIB)
    assert config.memc_servers == ("/run/m-9", "h:1")
    assert (config.log_file, config.log_access) == ("/var/log/9.log", "9")
    assert load_config(path, environ, instance="42").port == 142


def test_percent_sign_that_cannot_be_replaced_is_refused(path: Path) -> None:
    """Without a name, with one that is no number, and before other characters."""
    for line, instance, text in (
        ('port = "%i"', "", "contains %i, but the instance has no name;"),
        ('port = "%i"', "a", "is not allowed; allowed is an integer from"),
        ('ip = "%h"', "a", 'is not allowed; allowed after "%" are "i", the'),
        ('log_file = "100%"', "a", "is not allowed; allowed after"),
    ):
        path.write_text(line)
        with pytest.raises(ConfigError) as caught:
            load_config(path, {}, instance=instance)
        assert str(caught.value).startswith(f"{path}: {line} {text}")


def test_name_that_could_lead_elsewhere_is_refused() -> None:
    """It becomes part of paths."""
    for name in ("../a", ".", "-a", "a/b", "a b", "a" * 65, "\udcff"):
        with pytest.raises(ConfigError, match="allowed are 1 to 64 letters"):
            load_config(None, {}, instance=name)
        with pytest.raises(ConfigError, match="allowed are 1 to 64 letters"):
            load_config(None, {"VOLCACHE_INSTANCE": name})


# --- Reading again -------------------------------------------------------------------


def test_file_is_read_again(path: Path) -> None:
    """As at the start, with options and the name."""
    path.write_text('port = "%i"\nip = "127.0.0.2"')
    options = ["ip=127.0.0.3"]
    found = load_config_again(path, {}, options=options, instance="7")
    assert (found.port, found.ip) == (7, "127.0.0.3")
    assert load_config_again(None, {}) == load_config(None, {})


def test_file_that_may_not_be_complete_is_not_read_again(path: Path) -> None:
    """Every setting would have its default: the tokens would be gone."""
    for text in ("cannot be read", "empty; write at least a comment"):
        with pytest.raises(ConfigError, match=text):
            load_config_again(path, {})
        path.touch()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file; it can be read only"):
        load_config_again(path, {})


def test_huge_file_is_refused_soon(path: Path) -> None:
    """Whatever it contains; so are very many wrong settings."""
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert refused(path) == (
        "volcache.toml: larger than 1048576 bytes, the most that is allowed"
    )
    path.write_text("".join(f"unknown{number} = 1\n" for number in range(10_000)))
    assert len(read_settings(path, {}).problems) == 100


def test_ring_needs_a_name_in_its_list() -> None:
    """And has two lists at most; `%i` is the port of an instance of systemd."""
    environ = {"VOLCACHE_RING": "a, b", "VOLCACHE_RING_SELF": "10.0.0.5:%i"}
    config = load_config(None, environ, instance="1234")
    assert (config.ring, config.ring_self) == (("a", "b"), "10.0.0.5:1234")
    with pytest.raises(ConfigError, match="ring needs ring_self"):
        load_config(None, {"VOLCACHE_RING": "a"})
    with pytest.raises(ConfigError, match="ring has 3 lists; allowed are at most 2"):
        load_config(None, {**environ, "VOLCACHE_RING": "a,b,c"}, instance="1")
