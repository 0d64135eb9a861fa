"""keys.py: from a key to the path of a request, as the service reads it."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tables import each_row
from volcache.errors import BadKeyError
from volcache.keys import parse_key
from volcache.kinds import TTL_MAX as SERVICE_TTL_MAX
from volcache_client.errors import InvalidArgumentError, InvalidKeyError
from volcache_client.keys import (
    TTL_MAX,
    checked_ttl,
    encode_key,
    encode_prefix,
    path_of,
)

# Another load of the machine is no reason to fail.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Bytes and words of which keys that matter are made.
PARTS = st.sampled_from(
    [b"/", b".", b"..", b"-", b"-/", b"%", b"%2F", b"%2e", b"#", b"?", b"a", b"\x00",
     b"\x1f", b"\x7f", b"\x80", b"\xff", b" ", b"\\", b"+", "é".encode()]
)  # fmt: skip
KEYS = st.one_of(st.binary(max_size=50), st.lists(PARTS, max_size=8).map(b"".join))


def parsed(key: bytes) -> bytes | str:
    """Return the key that the service makes of the path, or why it refuses it."""
    path = unquote_to_bytes(path_of(key)).decode("latin-1")
    try:
        return parse_key(path, 1 << 20)
    except BadKeyError as error:
        return str(error)


@UNHURRIED
@given(key=KEYS)
def test_encode_key_accepts_what_the_service_stores_under(key: bytes) -> None:
    """And refused if the service refuses it, or it is another one, or a path."""
    reason = _refusal(key)
    assert (parsed(key) == key and key[:1] != b"/") == (reason is None)
    if reason is not None:
        assert _holds(reason, key)


def _refusal(key: bytes) -> str | None:
    try:
        assert encode_key(key) == key
    except InvalidKeyError as error:
        return str(error)
    return None


def _holds(text: str, key: bytes) -> bool:
    """Whether the reason in an error holds for a key."""
    segments = set(key.split(b"/"))
    return (
        ("it is empty" in text and not key)
        or ("it begins with a slash" in text and key.startswith(b"/"))
        or ('prefix "-/" is reserved' in text and key.startswith(b"-/"))
        or ("control byte 0x" in text and any(c < 32 or c == 127 for c in key))
        or ('a segment "." or ".."' in text and bool(segments & {b".", b".."}))
    )


@UNHURRIED
@given(key=KEYS)
def test_path_of_a_key_has_no_characters_that_end_it(key: bytes) -> None:
    """ASCII, without a space, a query, a fragment or an escape that is not one."""
    path = path_of(key)
    assert path[0] == "/"
    assert unquote_to_bytes(path[1:]) == key
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set(' ?#"<>\\^`{|}')


@each_row("key", [b"-", b"-x", b"a/-/b", b"a//x", b"...", b"a/.b", b" "])
def test_encode_key_of_similar_keys_accepts_them(key: bytes) -> None:
    """Only whole segments and the very beginning count."""
    assert encode_key(key) == key == parsed(key)


@each_row(
    ("key", "reason"),
    [
        *((None, "a key of type NoneType"), (7, "type int"), (["a"], "type list")),
        *((bytearray(b"a"), "type bytearray"), ("a\ud800", "not valid Unicode")),
    ],
)
def test_encode_key_of_another_type_is_an_error(key: Any, reason: str) -> None:
    """Text has UTF-8; a lone surrogate has none."""
    with pytest.raises(InvalidKeyError, match=reason):
        encode_key(key)


def test_encode_key_checks_the_prefix_and_the_key_together() -> None:
    """Both together are checked, also their length."""
    assert encode_key("é", b"a/", size_max=4) == b"a/\xc3\xa9"
    for key, before, reason in (("é", b"a/", "4 bytes long"), ("b/..", b"a/", "..")):
        with pytest.raises(InvalidKeyError, match=reason):
            encode_key(key, before, size_max=3 if key == "é" else None)


def test_encode_prefix_accepts_the_beginning_of_keys() -> None:
    """Its last segment may go on."""
    for prefix in (b"a", b"a/", b"a/.", b"..", b"-", b"a" * 9):
        assert encode_prefix(prefix, size_max=9) == prefix
    assert encode_prefix("b", b"a/") == b"a/b"
    with pytest.raises(InvalidArgumentError, match=r"call clear\(\)"):
        encode_prefix("", b"a/")
    refused: list[tuple[Any, str]] = [
        *(("", r"call clear\(\)"), ("a\n", "control byte"), ("-/a", "reserved")),
        *(("/a", "begins with a slash"), ("../a", "segment"), ("a" * 10, "10 bytes")),
        *((None, "type NoneType"), ("a\ud800", "not valid Unicode")),
    ]
    for wrong, reason in refused:
        with pytest.raises(InvalidArgumentError, match=reason):
            encode_prefix(wrong, size_max=9)


def test_checked_ttl_accepts_seconds_above_0() -> None:
    """At most 68 years, as the service has them, or for ever."""
    assert TTL_MAX == SERVICE_TTL_MAX
    for ttl in (1, 0.001, TTL_MAX, float("inf")):
        assert checked_ttl(ttl) == ttl
    wrong: list[Any] = [0, -1, True, "60", TTL_MAX + 1, float("nan"), None]
    for ttl in wrong:
        with pytest.raises(InvalidArgumentError, match=r"^ttl=.*; allowed are seconds"):
            checked_ttl(ttl)
