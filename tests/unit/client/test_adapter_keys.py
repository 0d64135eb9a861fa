"""Keys of other libraries: each accepted by the service, and none that of another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.tables import each_row
from volcache_client.adapters._keys import safe_key
from volcache_client.keys import encode_key

PIECES = [
    *(".", "..", "/", "%", "%2E", "%~", "~", "-", "\n", "\x7f", "é", "\udc80"),
    "x" * 512,
]
TEXTS = st.text(st.characters(), max_size=20) | st.lists(
    st.sampled_from(PIECES), max_size=5
).map("".join)


@given(TEXTS)
def test_safe_key_of_any_text_is_a_key(text: str) -> None:
    """Also below a prefix, and has at most 512 bytes."""
    key = safe_key(text).encode()
    assert len(key) <= 512
    assert key[:1] != b"/"
    assert encode_key(b"a/" + key) == b"a/" + key


@given(TEXTS, TEXTS)
def test_safe_key_of_two_texts_is_not_the_same(one: str, other: str) -> None:
    """Also those that look like what is made of another."""
    assert (safe_key(one) == safe_key(other)) == (one == other)


@given(TEXTS)
def test_safe_key_of_a_safe_key_is_another_if_something_was_replaced(text: str) -> None:
    """It has a key of its own, unless nothing was replaced."""
    made = safe_key(text)
    assert (safe_key(made) == made) == (made == text)


@each_row(
    ("text", "key"),
    [
        *(("", ""), (":1:a b/é", ":1:a b/é"), ("a/../.b./...", "a/%2E%2E/.b./...")),
        *(("100%", "100%25"), ("//a/b", "%2F/a/b"), ("a\r\nb", "a%0D%0Ab")),
        ("é\udc80", "%C3%A9%ED%B2%80"),
    ],
)
def test_safe_key_replaces_only_what_is_refused(text: str, key: str) -> None:
    """So that a key can be read, and purged by its beginning."""
    assert safe_key(text) == key


def test_safe_key_of_a_long_text_keeps_its_beginning() -> None:
    """And ends with a digest of all of it."""
    one, other = safe_key("é" * 400 + "1"), safe_key("é" * 400 + "2")
    assert one[:200] == other[:200] == "é" * 200
    assert one != other
