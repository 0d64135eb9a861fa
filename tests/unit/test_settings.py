"""The table of settings: kinds of values, defaults, and reading from TOML and text."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from volcache.config import load_config
from volcache.errors import ConfigError
from volcache.settings import (
    AUTO,
    GIB,
    MIB,
    SETTINGS,
    Choice,
    Config,
    Integer,
    Number,
    Size,
    format_size,
)

FromToml = Callable[[str], Config]


def test_table_and_config_have_the_same_names_and_types() -> None:
    """The annotation of each field is the type that its kind returns."""
    fields = {field.name: field.type for field in dataclasses.fields(Config)}
    assert fields == {
        s.name: type(s.default).__name__.replace("tuple", "tuple[str, ...]")
        for s in SETTINGS
    }


def test_every_default_is_allowed() -> None:
    """A default passes its own check, from TOML and from text."""
    for setting in SETTINGS:
        default = setting.default
        as_toml = list(default) if isinstance(default, tuple) else default
        as_text = ",".join(default) if isinstance(default, tuple) else str(default)
        as_text = as_text.lower() if isinstance(default, bool) else as_text
        assert setting.kind.from_toml(as_toml) == default
        assert setting.kind.from_text(as_text) == default


def test_every_setting_has_text_cost_and_section() -> None:
    """The text is one sentence on one line."""
    for setting in SETTINGS:
        assert setting.text.endswith(".")
        assert "\n" not in setting.text
        assert setting.cost.endswith(".")
        assert setting.section


def test_unit_is_that_of_the_kind() -> None:
    """Bytes, seconds, or none."""
    units = {setting.name: setting.unit for setting in SETTINGS}
    names = ("volume_size", "memc_timeout", "max_ttl", "port", "memc_on")
    assert [units[name] for name in names] == ["bytes", "seconds", "seconds", "", ""]


def refused(name: str, text: str) -> str:
    """Return the error of a variable."""
    with pytest.raises(ConfigError) as caught:
        from_variable(name, text)
    assert caught.value.__cause__ is None
    return str(caught.value)


def from_variable(name: str, text: str) -> Any:
    """Return the value that a variable gives to a setting."""
    return getattr(load_config(None, {f"VOLCACHE_{name.upper()}": text}), name)


@pytest.fixture
def from_toml(tmp_path: Path) -> Callable[[str], Config]:
    """Return a function that loads a file."""

    def load(text: str) -> Config:
        path = tmp_path / "volcache.toml"
        path.write_text(f"{text}\n")
        return load_config(path, {})

    return load


BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB")


def test_integer_is_accepted_where_a_fraction_is_allowed(from_toml: FromToml) -> None:
    """`sync_interval = 2` means 2.0."""
    value = from_toml("sync_interval = 2").sync_interval
    assert (value, type(value)) == (2.0, float)


def test_size_may_have_a_unit(from_toml: FromToml) -> None:
    """kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024."""
    kind = Size(0, 1 << 41)
    for base, units in ((1000, ("kB", "MB", "GB", "TB")), (1024, BINARY_UNITS)):
        for power, unit in enumerate(units, 1):
            for text in (f"2{unit}", f"2 {unit}"):
                assert kind.from_toml(text) == kind.from_text(text) == 2 * base**power
    assert kind.from_toml(1000) == kind.from_text("1000") == 1000
    assert from_toml('volume_size = "160MiB"').volume_size == 160 * MIB
    assert from_variable("max_value_size", "1MB") == 1_000_000
    # Both ends of the range are included.
    kind = Size(1024, 2048)
    assert [kind.from_toml("1KiB"), kind.from_toml("2KiB")] == [1024, 2048]
    for text in ("1kB", "3KiB"):
        with pytest.raises(ValueError, match=text[0]):
            kind.from_toml(text)


def test_other_text_is_no_size(from_toml: FromToml) -> None:
    """Unknown units, fractions and, in TOML, numbers in quotes are refused."""
    both = ("", "1.5GiB", "-1MiB", "1mib", "1KB", "1M", "MiB", "1  MiB", "1B", "x")
    for text in (*both, "1048576", "1MiB "):
        message = (
            f'max_value_size = "{text}" is not allowed; allowed is a size from 0 to'
        )
        with pytest.raises(ConfigError, match=re.escape(message)):
            from_toml(f'max_value_size = "{text}"')
        assert text not in both or message in refused("max_value_size", text)


def test_size_is_written_in_the_largest_unit_without_a_fraction() -> None:
    """What is written can be read."""
    sizes = {0: "0", 1: "1", 1024: "1KiB", 1500: "1500", 1_000_000: "1MB", GIB: "1GiB"}
    for size, text in (sizes | {10 * GIB: "10GiB"}).items():
        assert format_size(size) == text
        assert Size(0, 1 << 40).from_text(text) == size


def test_all_that_is_allowed_is_accepted() -> None:
    """Addresses, both ends of each range, each choice as it is listed."""
    for ip in ("0.0.0.0", "::1", "::", "192.0.2.7"):  # noqa: S104
        assert from_variable("ip", ip) == ip
    for setting in SETTINGS:
        name, kind = setting.name, setting.kind
        if isinstance(kind, Integer | Number):
            for value in (kind.low, kind.high):
                # These are allowed only together with another of the two.
                if (name, value) not in {("volume_size", MIB), ("max_value_size", GIB)}:
                    assert from_variable(name, str(value)) == value
        if isinstance(kind, Choice):
            for choice in kind.choices:
                assert from_variable(name, choice) == choice


def test_servers_are_separated_by_commas_in_the_environment() -> None:
    """Names, addresses and paths, with or without blanks."""
    servers = ("10.0.0.1:1", "[::1]:65535", "/run/m.sock")
    assert (
        from_variable("memc_servers", "10.0.0.1:1, [::1]:65535 ,/run/m.sock") == servers
    )
    for text in ("", "cache-1:11211"):
        assert from_variable("memc_servers", text) == ((text,) if text else ())
    for text in ("host", "host:", "host:0x1", "::1:11211", "a:1,a:1", "a b:1"):
        assert "allowed is a list" in refused("memc_servers", text)


TOKENS = [setting.name for setting in SETTINGS if setting.is_secret]


def test_token_may_have_any_visible_characters() -> None:
    """As bytes of UTF-8 in a header; one that a header cannot carry is not shown."""
    assert TOKENS == ["read_token", "write_token", "admin_token"]
    texts = ("", "x", "a:b,c;\"'%\\=", "\xe9\u20ac\U0001f511", "x" * 1024)
    wrong = (
        *("pass ", " pass", "pass\t", "pass\n", "pass\x7f", "pass\x85", "pass\xa0"),
        *("pass\u2028", "pass\udcff", "pass" * 257),
    )
    for name in TOKENS:
        assert [from_variable(name, text) for text in texts] == [*texts]
        for text in wrong:
            assert refused(name, text) == (
                f"environment variable VOLCACHE_{name.upper()}: {name} = (not shown) is"
                " not allowed; allowed is text of up to 1024 characters without control"
                " characters and without spaces around it"
            )


def test_tokens_are_not_shown(from_toml: FromToml) -> None:
    """Not under a wrong name or of a wrong type; a log line may have the settings."""
    for line in (
        *('write_tokn = "pass"', "admin_token = 1234567", 'tokn = "pass"'),
        *('[access]\nread_token = "pass"', 'cors_token = ["pass"]'),
    ):
        with pytest.raises(ConfigError, match=r"\(not shown\)") as caught:
            from_toml(line)
        assert not re.search("pass|1234567", str(caught.value))
    config = load_config(None, {f"VOLCACHE_{name.upper()}": "pass" for name in TOKENS})
    assert "pass" not in repr(config)
    assert "pass" not in str(config)


def test_origins_are_those_that_browsers_send(from_toml: FromToml) -> None:
    """Separated by commas in the environment, a list in TOML, or the star."""
    for origins in (
        *((), ("*",), ("https://xn--bcher-kva.example",)),
        ("https://a.example.org", "http://[::1]:8000", "http://localhost:3000"),
        ("chrome-extension://abc", "capacitor://localhost"),
        ("http://a:443", "https://a:80"),
    ):
        assert from_variable("cors_origins", " , ".join(origins)) == origins
        assert (
            from_toml(f"cors_origins = {json.dumps(origins)}").cors_origins == origins
        )
    assert from_toml('cors_origins = "*"').cors_origins == ("*",)
    with pytest.raises(ConfigError, match=r'cors_origins = "https://a" is not allowed'):
        from_toml('cors_origins = "https://a"')


def test_wrong_origin_or_host_is_refused() -> None:
    """What no browser sends, and `null`, which pages of any site can send."""
    for text in (
        *("a.example", "https://a/", "https://a/x", "https://a:443", "http://a:80"),
        *("https://A", "HTTPS://a", "https://a:0", "https://a:", "https://*.a", "null"),
        *("*,https://a", "https://user@a", "https://b\xfccher", "https://", "://a"),
        *("https://a,https://a", "file://", "https://a?x", "https://a#x", "http://::1"),
        *("https://a b", "https://a\nb", f"https://{'a' * 250}"),
    ):
        assert 'allowed is "*" for all' in refused("cors_origins", text)
    # A port, a scheme, a pattern; addresses are always allowed.
    for text in ("a:80", "http://a", "a/b", "*", "[::1]", "a,a", ".a"):
        assert "allowed is a list" in refused("admin_hosts", text)
    for text in ("yes", "1", "True", ""):
        assert "allowed is true or false" in refused("memc_on", text)


def test_the_number_of_volumes_may_be_determined_at_the_start() -> None:
    """By the word "auto", in a file and in the environment."""
    kind = next(s.kind for s in SETTINGS if s.name == "volume_num")

    assert kind.from_toml("auto") == kind.from_text("auto") == AUTO
    assert kind.from_toml(2) == kind.from_text("2") == 2
    assert kind.allowed == 'an integer from 2 to 65535, or "auto"'
    for wrong in (0, 1, "Auto", "", True):
        with pytest.raises((TypeError, ValueError)):
            kind.from_toml(wrong)
