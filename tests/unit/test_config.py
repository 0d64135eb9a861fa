"""Reading the settings: sources, what is refused, error texts, and the sample file."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import sample_config
from volcache.config import Sources
from volcache.errors import ConfigError
from volcache.kinds import AUTO, MIB
from volcache.settings import DEFAULTS, SETTINGS

CASES: Final = Path(__file__).with_name("refused_settings.toml")
# Contents of a file that are refused whatever the settings are.
UNREADABLE: Final = {
    **dict.fromkeys(
        (
            *(b"port = = 1", b"port = 1\nport = 2", b"port = 99" + b"9" * 5000),
            *(b"port = " + b"[" * 100_000, b"\xef\xbb\xbfport = 1"),
        ),
        "volcache.toml: not valid TOML: ",
    ),
    b'mount_point = "\xe9"': "volcache.toml: not UTF-8 text: ",
    b"#"
    * (MIB + 1): "volcache.toml: larger than 1048576 bytes, the most that is allowed",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a settings file that does not exist yet."""
    return tmp_path / "volcache.toml"


def refused(path: Path, *given: Any, existing: Any = None, **more: Any) -> str:
    """Return the one-line error of loading, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        Sources(path, *given, **more).load(existing)
    (line,) = str(caught.value).splitlines()
    return line.replace(f"{path.parent}/", "")


def test_options_override_the_environment_and_that_the_file(path: Path) -> None:
    """
    What the file leaves out keeps its default; of options, the last one counts.

    Variables without the prefix are ignored. An empty variable is a value where empty is
    allowed. Values of existing volumes replace defaults only.
    """
    path.write_text('port = 8000\nlog_file = "log"\n')
    file = dataclasses.replace(DEFAULTS, port=8000, log_file="log")
    assert (
        Sources(None, {}).load() == Sources(sample_config.FILE, {}).load() == DEFAULTS
    )
    assert Sources(path, {}).load() == file
    environ = {"VOLCACHE_PORT": "9000", "VOLCACHE_LOG_FILE": ""}
    environ |= {"PORT": "1", "VOLCACHE": "x", "HOME": "/"}
    expected = dataclasses.replace(DEFAULTS, port=9000)
    assert Sources(path, environ).load({"port": 7, "max_ttl": 0}) == expected
    assert Sources(None, {}).load({"volume_num": 3}).volume_num == 3
    options = ["port=3", "port=4", "memc_servers=a:1, b:2", "log_file=a=b"]
    found = Sources(path, environ, options).load()
    assert found == dataclasses.replace(
        DEFAULTS, port=4, memc_servers=("a:1", "b:2"), log_file="a=b"
    )


def test_error_names_what_is_wrong_and_the_remedy(path: Path) -> None:
    """In one line, with the source."""
    for case in tomllib.loads(CASES.read_text())["case"]:
        path.write_text(case.pop("file", ""))
        error = case.pop("error")
        assert error in refused(path, case.pop("environ", {}), **case)
    path.write_text("")
    # A value with more digits than Python converts, which is cut off.
    error = refused(path, {"VOLCACHE_PORT": "9" * 5000})
    assert f'PORT: port = "{"9" * 79}... is not allowed;' in error
    # The name of the instance becomes part of paths.
    for name in ("../a", ".", "-a", "a/b", "a b", "a" * 65, "\udcff"):
        for environ, instance in (({}, name), ({"VOLCACHE_INSTANCE": name}, "")):
            error = refused(path, environ, instance=instance)
            assert "allowed are 1 to 64 letters" in error


def test_limits_of_what_is_allowed_together(path: Path) -> None:
    """The largest number of volumes of a size; the smallest volume and memory."""
    for size, most in ((2**31, 65_535), (2**31 + 1, 32_767), (2**40, 127)):
        for number, expected in ((most, most), ("'auto'", AUTO)):
            path.write_text(f"volume_size = {size}\nvolume_num = {number}\n")
            assert Sources(path, {}).load().volume_num == expected
    least = MIB + 2048 + 4096
    path.write_text(f"volume_size = {least}\nmax_key_size = 2048\nbody_memory = {MIB}")
    assert Sources(path, {}).load().body_memory == MIB


def test_file_that_cannot_be_read_is_one_line(path: Path) -> None:
    """One that does not exist, extreme input, and very many wrong settings."""
    assert (
        refused(path, {}) == "volcache.toml: cannot be read: No such file or directory"
    )
    for content, error in UNREADABLE.items():
        path.write_bytes(content)
        assert refused(path, {}).startswith(error)
    path.write_text("".join(f"unknown{number} = 1\n" for number in range(10_000)))
    assert len(Sources(path, {}).read().problems) == 100
    path.unlink()
    path.mkdir()
    assert refused(path, {}) == "volcache.toml: cannot be read: Is a directory"


def test_sample_file_explains_every_setting() -> None:
    """`make reference` writes it again after a change of the table."""
    text = sample_config.FILE.read_text()
    assert text == sample_config.render()
    assert list(tomllib.loads(text)) == [setting.name for setting in SETTINGS]
    assert max(map(len, text.splitlines())) <= 88
    words = text.replace("\n# ", " ")
    for setting in SETTINGS:
        assert (
            f"{setting.text}{' (R)' if setting.reloads else ''} Allowed:"
            f" {setting.kind.allowed}. Cost: {setting.cost}\n"
            f"{setting.name} = {setting.default_toml}\n"
        ) in words


def test_name_of_the_instance_is_put_in(path: Path) -> None:
    """Into text, lists, and numbers that are written as text; not into tokens."""
    path.write_text(
        'mount_point = "/srv/%i/100%%"\nport = "1%i"\nwrite_token = "a%i%%"\n'
        'memc_servers = ["/run/m-%i", "h:1"]\nvolume_size = "%iMiB"\n'
        'ring = ["a", "b"]\nring_self = "10.0.0.5:%i"\n'
    )
    environ = {"VOLCACHE_INSTANCE": "9", "VOLCACHE_LOG_FILE": "/var/log/%i.log"}
    config = Sources(path, environ, ["log_access=%i"]).load()
    assert (config.mount_point, config.port) == ("/srv/9/100%", 19)
    assert (config.write_token, config.volume_size) == ("a%i%%", 9 * MIB)
    assert (config.memc_servers, config.ring) == (("/run/m-9", "h:1"), ("a", "b"))
    assert (config.log_file, config.log_access) == ("/var/log/9.log", "9")
    assert Sources(path, environ, instance="42").load().ring_self == "10.0.0.5:42"


def test_file_is_read_again_unless_it_may_not_be_complete(path: Path) -> None:
    """With options and the name. Of a file that is empty, the tokens would be gone."""
    path.write_text('port = "%i"\nip = "127.0.0.2"')
    found = Sources(path, {}, ["ip=127.0.0.3"], "7").load_again()
    assert (found.port, found.ip) == (7, "127.0.0.3")
    assert Sources(None, {}).load_again() == DEFAULTS
    path.unlink()
    for text in ("cannot be read", "empty; write at least a comment"):
        with pytest.raises(ConfigError, match=text):
            Sources(path, {}).load_again()
        path.touch()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file; it can be read only"):
        Sources(path, {}).load_again()
