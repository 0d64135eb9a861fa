"""options.py: defaults, and errors that say what is allowed."""

from __future__ import annotations

import math
import ssl
from dataclasses import fields
from typing import Any

import pytest

from support.tables import each_row
from volcache_client import Client
from volcache_client.errors import InvalidArgumentError
from volcache_client.options import OptionArguments, Options, make_options

TIMES = [
    *("connect_timeout", "timeout", "probe_timeout", "refresh_seconds"),
    "lease_seconds",
]
TIME = "allowed: seconds above 0 and up to 1e9"
BACKOFF = "allowed: a tuple of two times"

WRONG: list[tuple[str, Any, str]] = [
    *((name, value, TIME) for name in TIMES for value in (
        0, -1, math.nan, math.inf, 1e10, True, "1", b"1", [1], 1j)),
    *((name, None, TIME) for name in TIMES),
    *((name, value, "allowed: integers from 1")
      for name in ("connections_max", "failures")
      for value in (0, -1, 1.0, True, "3", None)),
    *(("default_ttl", value, "allowed are seconds above 0") for value in (
        0, -1, math.nan, 1e10, True, "1", [1])),
    ("lease_seconds", 0.5, "allowed: numbers from 1"),
    *(("backoff", value, BACKOFF) for value in (
        1.0, None, (), (1.0,), (1.0, 2.0, 3.0), [0.5, 30.0], (2.0, 1.0), (0, 1), (1, 1e10),
        ("1", 2), (True, 2), (math.nan, 1))),
    *(("on_error", value, "allowed: 'raise', 'miss'")
      for value in ("ignore", None, "", 1, ["miss"])),
    *(("writes_when_down", value, "allowed: None, 'raise', 'drop'")
      for value in ("miss", "", 0, False)),
    ("ssl_context", True, "allowed: an ssl.SSLContext, and None"),
    ("ssl_context", "cert.pem", "allowed: an ssl.SSLContext, and None"),
    ("on_event", "print", "allowed: a function, and None"),
    ("prefix", None, "allowed: text"),
    ("prefix", b"a", "allowed: text"),
    ("prefix", "a\n", "it has the control byte"),
    ("prefix", "-/", 'the prefix "-/" is reserved'),
    ("prefix", "a/../", 'it has a segment "." or ".."'),
    ("prefix", "\ud800", "it is not valid Unicode"),
]  # fmt: skip


@each_row(("name", "value", "allowed"), WRONG)
def test_option_with_a_wrong_value_names_what_is_allowed(
    name: str, value: Any, allowed: str
) -> None:
    """By both ways to make options."""
    for make in (Options, lambda **given: make_options(given)):
        with pytest.raises(InvalidArgumentError) as raised:
            make(**{name: value})
        assert str(raised.value).startswith(f"{name}={value!r}")
        assert allowed in str(raised.value)


@pytest.mark.parametrize("name", ["token", "admin_token"])
@pytest.mark.parametrize(
    "value",
    ["secret\n", "secret x", "secr\u00e9t", "\x00secret", b"secret", ["secret"]],
)
def test_option_with_a_wrong_token_does_not_show_it(name: str, value: Any) -> None:
    """The error names the option and what is allowed."""
    with pytest.raises(InvalidArgumentError) as raised:
        Options(**{name: value})
    assert str(raised.value).startswith(f"{name}: ")
    assert "allowed: text of printable ASCII without spaces" in str(raised.value)
    assert "secr" not in str(raised.value)


def test_repr_of_options_has_no_token() -> None:
    """It may be logged."""
    assert "secret" not in repr(Options(token="secret", admin_token="secret"))  # noqa: S106


@each_row(
    ("name", "hint"),
    [
        ("timout", "; did you mean timeout?"),
        ("conect_timeout", "; did you mean connect_timeout?"),
        ("tokens", "; did you mean token?"),
        ("on_errors", "; did you mean on_error?"),
        ("back_off", "; did you mean backoff?"),
        ("zzz", ""),
    ],
)
def test_option_that_is_unknown_names_the_closest_one(name: str, hint: str) -> None:
    """And with all there are."""
    arguments: Any = {name: 1}
    for make in (make_options, lambda given: Client("http://a:1", **given)):
        with pytest.raises(InvalidArgumentError) as raised:
            make(arguments)
        begin = f"unknown option {name}{hint}; the options are token, admin_token,"
        assert str(raised.value).startswith(begin)


def test_options_of_defaults_and_limits_are_allowed() -> None:
    """Each value at its edges."""
    assert make_options({}) == Options()
    options = make_options(
        {
            "token": "abc~!=",
            "prefix": "é/ a",
            "ssl_context": ssl.create_default_context(),
            "timeout": 1e9,
            "connect_timeout": 1e-3,
            "default_ttl": 1,
            "lease_seconds": 1,
            "failures": 1,
            "connections_max": 1,
            "backoff": (1, 1),
            "on_event": print,
        }
    )
    assert options.timeout == 1e9


def test_options_and_the_signature_of_the_clients_are_the_same() -> None:
    """With the same types."""
    assert list(OptionArguments.__annotations__) == [o.name for o in fields(Options)]
    assert [str(o.type) for o in fields(Options)] == [
        kind.__forward_arg__ for kind in OptionArguments.__annotations__.values()
    ]
