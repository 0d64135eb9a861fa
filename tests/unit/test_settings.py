"""The settings: what each may be, where they are read, what is refused, and the sample."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import sample_config
from volcache.config import Sources, value_size_max
from volcache.errors import ConfigError
from volcache.kinds import AUTO, GIB, MIB, TIB, format_size, size
from volcache.settings import DEFAULTS, SETTINGS, Config

TOKENS: Final = ("read_token", "write_token", "admin_token")
CASES: Final = tomllib.loads(
    Path(__file__).with_name("settings_cases.toml").read_text()
)
# Texts of a variable, refused as well.
LONG: Final = {
    "memcache_listen": ["/" + "a" * 107],
    "cors_origins": [f"https://{'a' * 250}"],
    "read_token": ["x" * 1025, "pass\udcff"],
}
# These ends of ranges are allowed only together with another of the two.
LIMITED: Final = {("volume_size", "1MiB"), ("max_value_size", "1GiB")}
# Files that are not TOML.
INVALID: Final = (
    *(b"port = = 1", b"port = 1\nport = 2", b"port = 99" + b"9" * 5000),
    b"port = " + b"[" * 100_000,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a settings file that does not exist yet."""
    return tmp_path / "volcache.toml"


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return f"VOLCACHE_{name.upper()}"


def from_variable(name: str, text: str) -> Any:
    """Return the value that a variable gives to a setting."""
    return getattr(Sources(None, {variable(name): text}).load(), name)


def from_toml(path: Path, line: str) -> Config:
    """Return what a file with one line gives."""
    path.write_text(line)
    return Sources(path, {}).load()


def refused(path: Path, *given: Any) -> str:
    """Return the one-line error of loading, without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        Sources(path, *(given or ({},))).load()
    assert caught.value.__cause__ is None
    (line,) = str(caught.value).splitlines()
    return line.replace(f"{path.parent}/", "")


def test_every_setting_is_complete() -> None:
    """`Config` has its type; the text is one sentence on one line."""
    fields = {field.name: field.type for field in dataclasses.fields(Config)}
    for setting in SETTINGS:
        kind = type(setting.default).__name__.replace("tuple", "tuple[str, ...]")
        assert fields.pop(setting.name) in {kind, "Eviction", "Query", "SyncMode"}
        assert setting.text.endswith(".")
        assert "\n" not in setting.text
        assert setting.cost.endswith(".")
    assert not fields
    assert tuple(s.name for s in SETTINGS if s.is_secret) == TOKENS


def test_ends_of_ranges_and_all_choices_are_accepted() -> None:
    """As the words of what is allowed name them."""
    for setting in SETTINGS:
        name, words = setting.name, setting.kind.allowed
        for ends in re.findall(r"from (\S+) to ([0-9A-Za-z.]+)", words):
            for end in {(name, end) for end in ends} - LIMITED:
                assert isinstance(from_variable(*end), int | float)
        for choice in re.findall('"(.*?)"', words.partition("one of")[2]):
            if setting.kind.unit != "bytes":
                assert from_variable(name, choice) == choice


def test_setting_from_a_file_is_read_as_from_a_variable(path: Path) -> None:
    """Text, lists, and numbers with a unit."""
    for name, texts in CASES["accepted"].items():
        for text, value in texts:
            expected = tuple(value) if isinstance(value, list) else value
            assert from_variable(name, text) == expected
            raw = text if isinstance(value, int) else value
            if not text.isdigit():
                line = f"{name} = {json.dumps(raw, ensure_ascii=False)}"
                assert getattr(from_toml(path, line), name) == expected
    assert from_variable("read_token", "x" * 1024) == "x" * 1024
    assert from_toml(path, 'cors_origins = "*"').cors_origins == ("*",)
    # An integer is accepted where a fraction is allowed.
    value = from_toml(path, "sync_interval = 2").sync_interval
    assert (value, type(value)) == (2.0, float)


def test_error_names_source_setting_value_and_what_is_allowed(path: Path) -> None:
    """For a wrong type and for a value out of range; tokens are not shown."""
    assert CASES["refused"].keys() <= {setting.name for setting in SETTINGS}
    for setting in SETTINGS:
        name = setting.name
        raws, texts = CASES["refused"].get(name, ([], []))
        errors = {}
        for raw in raws:
            path.write_text(f"{name} = {raw}")
            errors[path.name, raw] = refused(path)
        path.write_text("")
        for text in texts + LONG.get(name, []):
            source = f"environment variable {variable(name)}"
            error = refused(path, {variable(name): text})
            errors[source, json.dumps(text)] = error
        for (source, raw), error in errors.items():
            shown = raw if len(raw) <= 80 else f"{raw[:80]}..."
            assert error == (
                f"{source}: {name} = {'(not shown)' if setting.is_secret else shown} is not"
                f" allowed; allowed is {setting.kind.allowed}"
            )


def test_error_about_a_token_does_not_show_it(path: Path) -> None:
    """Not under a wrong name or of a wrong type; a log line may have the settings."""
    for line in (
        *('write_tokn = "pass"', "admin_token = 1234567", 'tokn = "pass"'),
        *('[access]\nread_token = "pass"', 'cors_token = ["pass"]'),
    ):
        path.write_text(line)
        error = refused(path)
        assert "(not shown)" in error
        assert not re.search("pass|1234567", error)
    config = Sources(None, dict.fromkeys(map(variable, TOKENS), "pass")).load()
    assert "pass" not in f"{config!r}{config}"


def test_sizes_are_written_in_the_largest_unit_without_a_fraction() -> None:
    """What is written can be read."""
    sizes = {0: "0", 1: "1", 1024: "1KiB", 1500: "1500", 1_000_000: "1MB", GIB: "1GiB"}
    for number, text in (sizes | {10 * GIB: "10GiB"}).items():
        assert format_size(number) == text
        assert (kind := size(0, TIB)).from_toml(kind.read(text)) == number


def test_options_override_the_environment_and_that_the_file(path: Path) -> None:
    """
    What the file leaves out keeps its default; of options, the last one counts.

    Variables without the prefix are ignored. An empty variable is a value where empty is
    allowed.
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
    assert Sources(path, environ).load() == expected
    options = ["port=3", "port=4", "memc_servers=a:1, b:2", "log_file=a=b"]
    found = Sources(path, environ, options).load()
    assert found == dataclasses.replace(
        DEFAULTS, port=4, memc_servers=("a:1", "b:2"), log_file="a=b"
    )


def test_error_names_what_is_wrong_and_the_remedy(path: Path) -> None:
    """In one line, with the source."""
    for case in CASES["case"]:
        path.write_text(case.get("file", ""))
        given = (case.get(name, "") for name in ("options", "instance"))
        assert case["error"] in refused(path, case.get("environ", {}), *given)
    path.write_text("")
    # A value with more digits than Python converts, which is cut off.
    error = refused(path, {"VOLCACHE_PORT": "9" * 5000})
    assert f'PORT: port = "{"9" * 79}... is not allowed;' in error
    # The name of the instance becomes part of paths.
    for name in ("../a", ".", "-a", "a/b", "a b", "a" * 65, "\udcff"):
        for environ, instance in (({}, name), ({"VOLCACHE_INSTANCE": name}, "")):
            error = refused(path, environ, "", instance)
            assert "allowed are 1 to 64 letters" in error


def test_settings_at_their_common_limits_are_accepted(path: Path) -> None:
    """The largest number of volumes of a size; the smallest volume and memory."""
    for volume, most in ((2**31, 65_535), (2**31 + 1, 32_767), (2**40, 127)):
        for number, expected in ((most, most), ("'auto'", AUTO)):
            path.write_text(f"volume_size = {volume}\nvolume_num = {number}\n")
            assert Sources(path, {}).load().volume_num == expected
    least = MIB + 2048 + 4096
    text = f"volume_size = {least}\nmax_key_size = 2048\nbody_memory = {MIB}"
    path.write_text(f"{text}\nmax_value_size = {MIB}")
    assert Sources(path, {}).load().body_memory == MIB


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("body_memory = '1GiB'", 64 * MIB),
        ("body_memory = '64MiB'", 16 * MIB),
        ("volume_size = '2MiB'", 2 * MIB - 1024 - 4096),
        ("volume_size = '2MiB'\nmax_key_size = 2048", 2 * MIB - 2048 - 4096),
        ("max_value_size = '100MiB'\nbody_memory = '100MiB'", 100 * MIB),
    ],
)
def test_largest_value_is_what_memory_and_volumes_allow(
    path: Path, line: str, most: int
) -> None:
    """Unless it is set: 64 MiB, and less on a small machine or disk."""
    path.write_text(line)
    assert value_size_max(Sources(path, {}).load()) == most


def test_file_that_cannot_be_read_is_one_line(path: Path) -> None:
    """One that does not exist, extreme input, and very many wrong settings."""
    assert refused(path) == "volcache.toml: cannot be read: No such file or directory"
    for content in INVALID:
        path.write_bytes(content)
        assert refused(path).startswith("volcache.toml: not valid TOML: ")
    path.write_bytes(b"\xef\xbb\xbfport = 1")  # A byte order mark is left out.
    assert Sources(path, {}).load().port == 1
    path.write_bytes(b'mount_point = "\xe9"')
    assert refused(path).startswith("volcache.toml: not UTF-8 text: ")
    path.write_bytes(b"#" * (MIB + 1))
    assert refused(path).endswith(": larger than the 1 MiB allowed")
    path.write_text("".join(f"unknown{number} = 1\n" for number in range(10_000)))
    assert len(Sources(path, {}).read().problems) == 100
    path.unlink()
    path.mkdir()
    assert refused(path) == "volcache.toml: cannot be read: Is a directory"


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


def test_variable_of_the_commands_is_no_setting(path: Path) -> None:
    """A server starts in a shell that names the targets of commands."""
    path.write_text("port = 1\n")
    assert Sources(path, {"VOLCACHE_TARGET": "10.0.0.5:1234"}).load().port == 1


def test_percent_i_in_a_setting_is_the_name_of_the_instance(path: Path) -> None:
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
