"""The table of settings: kinds of values, defaults, and reading from TOML and text."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

import pytest

from support.tables import each_row
from volcache.config import load_config
from volcache.errors import ConfigError
from volcache.settings import (
    AUTO,
    GIB,
    MIB,
    SETTINGS,
    UNITS,
    Choice,
    Config,
    Integer,
    Number,
    Size,
    format_size,
)

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.settings import Setting


def test_table_and_config_have_the_same_names_and_types() -> None:
    """The annotation of each field is the type that its kind returns."""
    fields = {field.name: field.type for field in dataclasses.fields(Config)}
    assert fields == {
        s.name: type(s.default).__name__.replace("tuple", "tuple[str, ...]")
        for s in SETTINGS
    }


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_is_allowed(setting: Setting) -> None:
    """A default passes its own check, from TOML and from text."""
    default = setting.default
    as_toml = list(default) if isinstance(default, tuple) else default
    as_text = ",".join(default) if isinstance(default, tuple) else str(default)
    as_text = as_text.lower() if isinstance(default, bool) else as_text
    assert setting.kind.from_toml(as_toml) == default
    assert setting.kind.from_text(as_text) == default


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_text_cost_and_section(setting: Setting) -> None:
    """The text is one sentence on one line."""
    assert setting.text.endswith(".")
    assert "\n" not in setting.text
    assert setting.cost.endswith(".")
    assert setting.section


def test_unit_is_that_of_the_kind() -> None:
    """Bytes, seconds, or none."""
    units = {setting.name: setting.unit for setting in SETTINGS}
    names = ("volume_size", "memc_timeout", "max_ttl", "port", "memc_on")
    assert [units[name] for name in names] == ["bytes", "seconds", "seconds", "", ""]


def test_integer_is_accepted_where_a_fraction_is_allowed(tmp_path: Path) -> None:
    """`sync_interval = 2` means 2.0."""
    path = tmp_path / "volcache.toml"
    path.write_text("sync_interval = 2\n")
    value = load_config(path, {}).sync_interval
    assert (value, type(value)) == (2.0, float)


@each_row(
    ("text", "size"),
    [
        ("160MiB", 160 * MIB),
        ("160 MiB", 160 * MIB),
        ("1GB", 10**9),
        ("1GiB", GIB),
        ("2TB", 2 * 10**12),
        ("1TiB", 1024 * GIB),
        ("1500kB", 1_500_000),
        ("5000KiB", 5000 * 1024),
        ("30MB", 30_000_000),
    ],
)
def test_size_may_have_a_unit(text: str, size: int) -> None:
    """kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024."""
    kind = Size(0, 1 << 41)
    assert kind.from_toml(text) == kind.from_text(text) == size


def test_size_with_a_unit_is_read_from_both_sources(tmp_path: Path) -> None:
    """From a TOML file and from the environment."""
    path = tmp_path / "volcache.toml"
    path.write_text('volume_size = "160MiB"\n')
    config = load_config(path, {"VOLCACHE_MAX_VALUE_SIZE": "1MB"})
    assert (config.volume_size, config.max_value_size) == (160 * MIB, 1_000_000)


def test_size_is_a_number_of_bytes_without_a_unit() -> None:
    """An integer in TOML, decimal digits in the environment."""
    assert Size(0, MIB).from_toml(1000) == Size(0, MIB).from_text("1000") == 1000


@pytest.mark.parametrize(
    "text",
    ["", "1048576", "1.5GiB", "-1MiB", "1mib", "1KB", "1M", "MiB", "1  MiB", "1MiB "],
)
def test_other_text_is_no_size(tmp_path: Path, text: str) -> None:
    """Unknown units, fractions and, in TOML, numbers in quotes are refused."""
    path = tmp_path / "volcache.toml"
    path.write_text(f'max_value_size = "{text}"\n')
    message = (
        f'max_value_size = "{text}" is not allowed; allowed is a size from 0 to 1GiB'
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path, {})


@each_row("text", ["", "x", "1.5GiB", "-1MiB", "1KB", "1M", "1B"])
def test_other_text_in_the_environment_is_no_size(text: str) -> None:
    """The same units as in TOML."""
    message = (
        f'max_value_size = "{text}" is not allowed; allowed is a size from 0 to 1GiB'
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, {"VOLCACHE_MAX_VALUE_SIZE": text})


def test_size_with_a_unit_is_checked_against_the_range() -> None:
    """Both ends are included."""
    kind = Size(1024, 2048)
    assert [kind.from_toml("1KiB"), kind.from_toml("2KiB")] == [1024, 2048]
    for text in ("1kB", "3KiB"):
        with pytest.raises(ValueError, match=text[0]):
            kind.from_toml(text)


@each_row(
    ("size", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1024, "1KiB"),
        (1500, "1500"),
        (1_000_000, "1MB"),
        (GIB, "1GiB"),
        (10 * GIB, "10GiB"),
    ],
)
def test_size_is_written_in_the_largest_unit_without_a_fraction(
    size: int, text: str
) -> None:
    """What is written can be read."""
    assert format_size(size) == text
    assert Size(0, 1 << 40).from_text(text) == size


def test_units_are_the_decimal_and_the_binary_ones() -> None:
    """Four each."""
    assert UNITS == {
        "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
        "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    }  # fmt: skip


@each_row("ip", ["0.0.0.0", "::1", "::", "192.0.2.7"])  # noqa: S104
def test_addresses_of_both_families_are_accepted(ip: str) -> None:
    """IPv4 and IPv6, as written."""
    assert load_config(None, {"VOLCACHE_IP": ip}).ip == ip


@each_row(
    ("name", "value"),
    [
        (setting.name, value)
        for setting in SETTINGS
        if isinstance(setting.kind, Integer | Number)
        for value in (setting.kind.low, setting.kind.high)
        # Allowed only together with another volume_size or max_value_size.
        if (setting.name, value) not in {("volume_size", MIB), ("max_value_size", GIB)}
    ],
)
def test_both_ends_of_a_range_are_allowed(name: str, value: float) -> None:
    """A limit is inclusive."""
    environ = {f"VOLCACHE_{name.upper()}": str(value)}
    assert getattr(load_config(None, environ), name) == value


@each_row(
    ("name", "choice"),
    [
        (setting.name, choice)
        for setting in SETTINGS
        if isinstance(setting.kind, Choice)
        for choice in setting.kind.choices
    ],
)
def test_every_choice_is_allowed(name: str, choice: str) -> None:
    """Exactly as it is listed."""
    environ = {f"VOLCACHE_{name.upper()}": choice}
    assert getattr(load_config(None, environ), name) == choice


@each_row(
    ("text", "servers"),
    [
        ("", ()),
        ("cache-1:11211", ("cache-1:11211",)),
        (
            "10.0.0.1:1, [::1]:65535 ,/run/m.sock",
            ("10.0.0.1:1", "[::1]:65535", "/run/m.sock"),
        ),
    ],
)
def test_servers_are_separated_by_commas_in_the_environment(
    text: str, servers: tuple[str, ...]
) -> None:
    """Names, addresses and paths, with or without blanks."""
    assert load_config(None, {"VOLCACHE_MEMC_SERVERS": text}).memc_servers == servers


@each_row("text", ["host", "host:", "host:0x1", "::1:11211", "a:1,a:1", "a b:1"])
def test_wrong_server_address_is_refused(text: str) -> None:
    """A missing port, an address without brackets, the same server twice."""
    with pytest.raises(ConfigError, match=r"memc_servers .* allowed is a list"):
        load_config(None, {"VOLCACHE_MEMC_SERVERS": text})


TOKENS = [setting.name for setting in SETTINGS if setting.is_secret]


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize(
    "text", ["", "x", "a:b,c;\"'%\\=", "\xe9\u20ac\U0001f511", "x" * 1024]
)
def test_token_may_have_any_visible_characters(name: str, text: str) -> None:
    """As bytes of UTF-8 in a header."""
    config = load_config(None, {f"VOLCACHE_{name.upper()}": text})
    assert getattr(config, name) == text


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize(
    "text",
    [
        *("pass ", " pass", "pass\t", "pass\n", "pass\x7f", "pass\x85", "pass\xa0"),
        *("pass\u2028", "pass\udcff", "pass" * 257),
    ],
)
def test_wrong_token_is_refused_without_being_shown(name: str, text: str) -> None:
    """What a header cannot carry; the error has the name, not the value."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, {f"VOLCACHE_{name.upper()}": text})
    variable = f"environment variable VOLCACHE_{name.upper()}"
    assert str(caught.value) == (
        f"{variable}: {name} = (not shown) is not allowed; allowed is text of up to 1024"
        " characters without control characters and without spaces around it"
    )
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "line",
    [
        *('write_tokn = "pass"', "admin_token = 1234567", 'tokn = "pass"'),
        *('[access]\nread_token = "pass"', 'cors_token = ["pass"]'),
    ],
)
def test_token_under_a_wrong_name_is_not_shown(tmp_path: Path, line: str) -> None:
    """Or of a wrong type."""
    path = tmp_path / "volcache.toml"
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert "(not shown)" in str(caught.value)
    assert "pass" not in str(caught.value)
    assert "1234567" not in str(caught.value)


def test_tokens_are_not_in_the_representation_of_the_settings() -> None:
    """Which a traceback or a log line may have."""
    config = load_config(None, {f"VOLCACHE_{name.upper()}": "pass" for name in TOKENS})
    assert TOKENS == ["read_token", "write_token", "admin_token"]
    assert "pass" not in repr(config)
    assert "pass" not in str(config)


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        (
            "https://a.example.org, http://[::1]:8000 ,http://localhost:3000",
            ("https://a.example.org", "http://[::1]:8000", "http://localhost:3000"),
        ),
        (
            "chrome-extension://abc,capacitor://localhost",
            ("chrome-extension://abc", "capacitor://localhost"),
        ),
        ("https://xn--bcher-kva.example", ("https://xn--bcher-kva.example",)),
        ("http://a:443,https://a:80", ("http://a:443", "https://a:80")),
    ],
)
def test_origins_are_those_that_browsers_send(
    tmp_path: Path, text: str, origins: tuple[str, ...]
) -> None:
    """Separated by commas in the environment, a list in TOML, or the star."""
    assert load_config(None, {"VOLCACHE_CORS_ORIGINS": text}).cors_origins == origins
    path = tmp_path / "volcache.toml"
    path.write_text(f"cors_origins = {json.dumps(origins)}\n")
    assert load_config(path, {}).cors_origins == origins


def test_star_needs_no_list(tmp_path: Path) -> None:
    """Other origins do."""
    path = tmp_path / "volcache.toml"
    path.write_text('cors_origins = "*"\n')
    assert load_config(path, {}).cors_origins == ("*",)
    path.write_text('cors_origins = "https://a"\n')
    with pytest.raises(ConfigError, match=r'cors_origins = "https://a" is not allowed'):
        load_config(path, {})


@each_row(
    "text",
    [
        *("a.example", "https://a/", "https://a/x", "https://a:443", "http://a:80"),
        *("https://A", "HTTPS://a", "https://a:0", "https://a:", "https://*.a", "null"),
        *("*,https://a", "https://user@a", "https://b\xfccher", "https://", "://a"),
        *("https://a,https://a", "file://", "https://a?x", "https://a#x", "http://::1"),
        *("https://a b", "https://a\nb", f"https://{'a' * 250}"),
    ],
)
def test_wrong_origin_is_refused(text: str) -> None:
    """What no browser sends, and `null`, which pages of any site can send."""
    with pytest.raises(ConfigError, match=r'cors_origins = .* allowed is "\*" for all'):
        load_config(None, {"VOLCACHE_CORS_ORIGINS": text})


@each_row("text", ["a:80", "http://a", "a/b", "*", "[::1]", "a,a", ".a"])
def test_wrong_host_name_is_refused(text: str) -> None:
    """A port, a scheme, a pattern; addresses are always allowed."""
    with pytest.raises(ConfigError, match=r"admin_hosts = .* allowed is a list"):
        load_config(None, {"VOLCACHE_ADMIN_HOSTS": text})


@each_row("text", ["yes", "1", "True", ""])
def test_flag_is_true_or_false(text: str) -> None:
    """No other word and no number."""
    with pytest.raises(ConfigError, match=r"memc_on .* allowed is true or false"):
        load_config(None, {"VOLCACHE_MEMC_ON": text})


def test_the_number_of_volumes_may_be_determined_at_the_start() -> None:
    """By the word "auto", in a file and in the environment."""
    kind = next(s.kind for s in SETTINGS if s.name == "volume_num")

    assert kind.from_toml("auto") == kind.from_text("auto") == AUTO
    assert kind.from_toml(2) == kind.from_text("2") == 2
    assert kind.allowed == 'an integer from 2 to 65535, or "auto"'
    for wrong in (0, 1, "Auto", "", True):
        with pytest.raises((TypeError, ValueError)):
            kind.from_toml(wrong)
