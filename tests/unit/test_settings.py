"""The settings, each for itself: what it takes, read from text and from TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from volcache.config import load_config
from volcache.errors import ConfigError
from volcache.setting import ChoiceSetting, IntegerSetting, NumberSetting
from volcache.settings import GIB, MIB, SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.setting import Setting


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_is_allowed(setting: Setting) -> None:
    """A default passes its own check, from TOML and from text."""
    default = setting.default
    as_toml = list(default) if isinstance(default, tuple) else default
    as_text = ",".join(default) if isinstance(default, tuple) else str(default)
    as_text = as_text.lower() if isinstance(default, bool) else as_text
    assert setting.from_toml(as_toml) == default
    assert setting.from_text(as_text) == default


def test_whole_number_is_taken_where_a_fraction_may_be(tmp_path: Path) -> None:
    """`sync_interval = 2` means 2.0."""
    path = tmp_path / "volcache.toml"
    path.write_text("sync_interval = 2\n")
    value = load_config(path, {}).sync_interval
    assert (value, type(value)) == (2.0, float)


@pytest.mark.parametrize("ip", ["0.0.0.0", "::1", "::", "192.0.2.7"])  # noqa: S104
def test_addresses_of_both_families_are_taken(ip: str) -> None:
    """IPv4 and IPv6, as written."""
    assert load_config(None, {"VOLCACHE_IP": ip}).ip == ip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (setting.name, value)
        for setting in SETTINGS
        if isinstance(setting, IntegerSetting | NumberSetting)
        for value in (setting.low, setting.high)
        # Only possible together with another volume_size or max_value_size.
        if (setting.name, value) not in {("volume_size", MIB), ("max_value_size", GIB)}
    ],
)
def test_both_ends_of_a_range_are_allowed(name: str, value: float) -> None:
    """A limit is inclusive."""
    environ = {f"VOLCACHE_{name.upper()}": str(value)}
    assert getattr(load_config(None, environ), name) == value


@pytest.mark.parametrize(
    ("name", "choice"),
    [(s.name, c) for s in SETTINGS if isinstance(s, ChoiceSetting) for c in s.choices],
)
def test_every_choice_is_allowed(name: str, choice: str) -> None:
    """A word of the list is taken as it is."""
    environ = {f"VOLCACHE_{name.upper()}": choice}
    assert getattr(load_config(None, environ), name) == choice


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    "text", ["host", "host:", "host:0x1", "::1:11211", "a:1,a:1", "a b:1"]
)
def test_a_server_that_is_none_is_refused(text: str) -> None:
    """A missing port, an address without brackets, the same server twice."""
    with pytest.raises(ConfigError, match=r"memc_servers .* allowed is a list"):
        load_config(None, {"VOLCACHE_MEMC_SERVERS": text})


@pytest.mark.parametrize("text", ["yes", "1", "True", ""])
def test_a_flag_is_true_or_false(text: str) -> None:
    """Nothing else is taken for one of them."""
    with pytest.raises(ConfigError, match=r"memc_on .* allowed is true or false"):
        load_config(None, {"VOLCACHE_MEMC_ON": text})
