"""text.py: client input cannot break out of a log line or a field."""

from __future__ import annotations

import string
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.text import escape_header, escape_path

PRINTABLE = set(string.ascii_letters + string.digits + string.punctuation)
LATIN_1 = st.text(st.characters(max_codepoint=0xFF))


@pytest.mark.property
@given(LATIN_1)
def test_escaped_path_is_one_word_and_can_be_decoded(path: str) -> None:
    """No space, quote or control character; decoding gives the bytes of the request."""
    shown = escape_path(path, 10_000)
    assert set(shown) <= PRINTABLE - set('"\\ ')
    assert unquote_to_bytes(shown) == path.encode("latin-1")


@pytest.mark.property
@given(st.text())
def test_escaped_header_cannot_end_its_field(text: str) -> None:
    """Printable, without a quote or backslash of the client."""
    shown = escape_header(text, 10_000)
    assert set(shown) <= PRINTABLE | {" "}
    assert '"' not in shown
    assert shown.count("\\") == shown.count("\\x")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl/7.88.1 (x; y)", "curl/7.88.1 (x; y)"),
        ('a" 200 "b', "a\\x22 200 \\x22b"),
        ("a\\", "a\\x5C"),
        ("a\r\nb\x1b[2J\x7f", "a\\x0D\\x0Ab\\x1B[2J\\x7F"),
        ("\xe9", "\\xE9"),
    ],
)
def test_header_is_escaped_as_in_nginx(text: str, shown: str) -> None:
    """Programs that parse nginx's logs can parse ours."""
    assert escape_header(text, 100) == shown


def test_long_text_is_cut() -> None:
    """A client cannot make a line longer."""
    assert escape_header("a" * 11, 10) == "a" * 10 + "..."
    assert escape_path("/" * 11, 10) == "/" * 10 + "..."
    assert escape_path("/" * 10, 10) == "/" * 10
