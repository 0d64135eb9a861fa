"""The table of settings: what each may be, in a file and in a variable."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from volcache.config import Sources
from volcache.errors import ConfigError
from volcache.kinds import AUTO, GIB, MIB, format_size, size
from volcache.settings import SETTINGS, Config

TOKENS: Final = ("read_token", "write_token", "admin_token")
# Of a setting: the text of a variable, and what is read.
ACCEPTED: Final[dict[str, dict[str, object]]] = {
    "volume_size": {"160MiB": 160 * MIB, "2 MiB": 2 * MIB, "3000000": 3_000_000},
    "max_value_size": {"1MB": 1_000_000},
    "volume_num": {"auto": AUTO},
    "ip": {ip: ip for ip in ("0.0.0.0", "::1", "::", "192.0.2.7")},  # noqa: S104
    "memc_servers": {
        "10.0.0.1:1, [::1]:65535 ,/run/m.sock": (
            *("10.0.0.1:1", "[::1]:65535", "/run/m.sock"),
        ),
        "": (),
        "cache-1:11211": ("cache-1:11211",),
    },
    "cors_origins": {
        " , ".join(origins): origins
        for origins in (
            *((), ("*",), ("https://xn--bcher-kva.example",)),
            ("https://a.example.org", "http://[::1]:8000", "http://localhost:3000"),
            ("chrome-extension://abc", "capacitor://localhost"),
            ("http://a:443", "https://a:80"),
        )
    },
    # As bytes of UTF-8 in a header.
    "read_token": {
        token: token
        for token in ("", "x", "a:b,c;\"'%\\=", "\xe9\u20ac\U0001f511", "x" * 1024)
    },
}
# Of a setting: values of TOML, and texts of a variable.
REFUSED: Final = {
    "port": (
        ("70000", "-1", "true", "80.0", '"80"', "[80]", "1979-05-27"),
        ("", "x", "1.5", "True", "0x10"),
    ),
    "volume_num": (("0", "1", '"Auto"', "true"), ("", "1", "Auto")),
    "sync_interval": (("0.0", "inf", "nan", "false", '"1"'), ("",)),
    "max_key_size": (
        ("0", "true", "1.0", '"5KiB"', '"1024"', '"1MiB "', '"1.5kB"'),
        ("", "1.5kB", "-1kB", "1kib", "1KB", "1M", "KiB", "1  KiB", "1B", "x", "4097"),
    ),
    "sync_mode": (('"Always"', "1"), ("",)),
    "memc_on": (("1",), ("yes", "1", "True", "")),
    "ip": (
        ('"localhost"', '""', "2130706433"),
        ("fe80::1%%", "10.0.0.1%%eth0", "fe80::1%%a b"),
    ),
    "log_file": (("1",), ("a\n",)),
    "mount_point": (('""', '"a\\u0000b\\nc"'), ()),
    "memcache_listen": (("1",), ("a:99999", "a", ":80", "::1:80", "/" + "a" * 107)),
    "memc_servers": (
        ('"a:1"', "[1]"),
        ("host", "host:", "host:0x1", "::1:11211", "a:1,a:1", "a b:1"),
    ),
    # A port, a scheme, a pattern; addresses are always allowed.
    "admin_hosts": ((), ("a:80", "http://a", "a/b", "*", "[::1]", "a,a", ".a")),
    # What no browser sends, and `null`, which pages of any site can send.
    "cors_origins": (
        ('"https://a"',),
        (
            *("a.example", "https://a/", "https://a/x", "https://a:443", "http://a:80"),
            *("https://A", "HTTPS://a", "https://a:0", "https://a:", "https://*.a"),
            *("*,https://a", "https://user@a", "https://b\xfccher", "https://", "null"),
            *("://a", "file://", "https://a?x", "https://a#x", "http://::1"),
            *("https://a b", "https://a\nb", f"https://{'a' * 250}"),
            "https://a,https://a",
        ),
    ),
    # What a header cannot carry.
    **dict.fromkeys(
        TOKENS,
        (
            ("1234567",),
            (
                *("pass ", " pass", "pass\t", "pass\n", "pass\x7f", "pass\x85"),
                *("pass\xa0", "pass\u2028", "pass\udcff", "pass" * 257),
            ),
        ),
    ),
}
# These ends of ranges are allowed only together with another of the two.
LIMITED: Final = {("volume_size", "1MiB"), ("max_value_size", "1GiB")}


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return f"VOLCACHE_{name.upper()}"


def from_variable(name: str, text: str) -> Any:
    """Return the value that a variable gives to a setting."""
    return getattr(Sources(None, {variable(name): text}).load(), name)


def from_toml(folder: Path, line: str) -> Config:
    """Return what a file with one line gives."""
    path = folder / "volcache.toml"
    path.write_text(f"{line}\n")
    return Sources(path, {}).load()


def test_every_setting_is_complete() -> None:
    """`Config` has its type; the text is one sentence on one line."""
    fields = {field.name: field.type for field in dataclasses.fields(Config)}
    for setting in SETTINGS:
        kind = type(setting.default).__name__.replace("tuple", "tuple[str, ...]")
        assert fields.pop(setting.name) in {kind, "Eviction", "SyncMode"}
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


def test_what_is_read_is_the_same_from_a_file_and_a_variable(tmp_path: Path) -> None:
    """Text, lists, and numbers with a unit."""
    for name, texts in ACCEPTED.items():
        for text, expected in texts.items():
            assert from_variable(name, text) == expected
            raw = text if isinstance(expected, int) else expected
            if not text.isdigit():
                line = f"{name} = {json.dumps(raw, ensure_ascii=False)}"
                assert getattr(from_toml(tmp_path, line), name) == expected
    assert from_toml(tmp_path, 'cors_origins = "*"').cors_origins == ("*",)
    # An integer is accepted where a fraction is allowed.
    value = from_toml(tmp_path, "sync_interval = 2").sync_interval
    assert (value, type(value)) == (2.0, float)


def test_error_names_source_setting_value_and_what_is_allowed(tmp_path: Path) -> None:
    """In one line, for a wrong type and for a value out of range; tokens are not shown."""
    file = tmp_path / "volcache.toml"
    kinds = {setting.name: setting.kind for setting in SETTINGS}
    for name, (raws, texts) in REFUSED.items():
        found = [(f"{file}", raw, refused(file, f"{name} = {raw}")) for raw in raws]
        found += [
            (f"environment variable {variable(name)}", json.dumps(text), error)
            for text in texts
            for error in [refused(None, "", {variable(name): text})]
        ]
        for source, shown, error in found:
            cut = shown if len(shown) <= 80 else f"{shown[:80]}..."
            assert error == (
                f"{source}: {name} = {'(not shown)' if name in TOKENS else cut} is not"
                f" allowed; allowed is {kinds[name].allowed}"
            )


def refused(file: Path | None, line: str, environ: dict[str, str] | None = None) -> str:
    """Return why a line of a file, or a variable, is refused."""
    if file is not None:
        file.write_text(f"{line}\n")
    with pytest.raises(ConfigError) as caught:
        Sources(file, environ or {}).load()
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_tokens_are_not_shown(tmp_path: Path) -> None:
    """Not under a wrong name or of a wrong type; a log line may have the settings."""
    for line in (
        *('write_tokn = "pass"', "admin_token = 1234567", 'tokn = "pass"'),
        *('[access]\nread_token = "pass"', 'cors_token = ["pass"]'),
    ):
        error = refused(tmp_path / "volcache.toml", line)
        assert "(not shown)" in error
        assert not re.search("pass|1234567", error)
    config = Sources(None, dict.fromkeys(map(variable, TOKENS), "pass")).load()
    assert "pass" not in f"{config!r}{config}"


def test_sizes_have_units() -> None:
    """kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024; all can be written."""
    kind = size(0, 1 << 42)
    for base, suffix in ((1000, "B"), (1024, "iB")):
        for power, letter in enumerate("kMGT" if base == 1000 else "KMGT", 1):
            for text in (f"2{letter}{suffix}", f"2 {letter}{suffix}"):
                assert kind.from_toml(text) == kind.from_text(text) == 2 * base**power
    sizes = {0: "0", 1: "1", 1024: "1KiB", 1500: "1500", 1_000_000: "1MB", GIB: "1GiB"}
    for number, text in (sizes | {10 * GIB: "10GiB"}).items():
        assert format_size(number) == text
        assert kind.from_text(text) == number
