"""keys.py: which path names which key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tables import each_row
from volcache.errors import BadKeyError, ClientError, KeyTooLongError
from volcache.keys import parse_key

# The response of nginx 1.22 to `return 200 $uri` with merge_slashes off, without the
# first slash; None is a 400.
NGINX = [
    ("/a", b"a"),
    ("/a/", b"a/"),
    ("/a/./b", b"a/b"),
    ("/./a", b"a"),
    ("/a/.", b"a/"),
    ("/a/b/..", b"a/"),
    ("/a/b/../", b"a/"),
    ("/a/b/../c", b"a/c"),
    ("/a/b/../../c", b"c"),
    ("/a//../b", b"a/b"),
    ("/a//..//b", b"a//b"),
    ("/a/../b", b"b"),
    ("//", b"/"),
    ("//a//b/", b"/a//b/"),
    ("/a/...", b"a/..."),
    ("/a/..b", b"a/..b"),
    ("/a/.b/..", b"a/"),
    ("/.a", b".a"),
    ("/a/.#", b"a/.#"),
    ("/..?/x", b"..?/x"),
    ("/a b+c%d", b"a b+c%d"),
    ("/a\\..\\b", b"a\\..\\b"),
    ("/\xc3\xa9/./\xd0\x80", b"\xc3\xa9/\xd0\x80"),
    ("/", b""),
    ("/.", b""),
    ("/a/..", b""),
    ("//..", b""),
    ("/..", None),
    ("/../a", None),
    ("/a/../..", None),
    ("/./../a", None),
    ("//../../a", None),
]


@each_row(("path", "uri"), NGINX)
def test_dot_segments_resolve_as_in_nginx(path: str, uri: bytes | None) -> None:
    """The instance and nginx derive the same key, or both refuse."""
    if uri:
        assert parse_key(path, 1024) == uri
    else:
        reason = "above the root" if uri is None else "empty"
        with pytest.raises(BadKeyError, match=reason):
            parse_key(path, 1024)


@each_row("code", [*range(0x20), 0x7F])
def test_control_bytes_are_refused(code: int) -> None:
    """A key can be written to a line of an index file and to a header."""
    with pytest.raises(BadKeyError, match=f"0x{code:02X}"):
        parse_key(f"/a{chr(code)}b", 1024)


@each_row("code", [0x20, 0x7E, *range(0x80, 0x100)])
def test_other_bytes_are_part_of_the_key(code: int) -> None:
    """Spaces, and the bytes of any encoding."""
    assert parse_key(f"/a{chr(code)}b", 1024) == b"a" + bytes([code]) + b"b"


@each_row("path", ["/-/", "/-/healthy", "/x/../-/healthy", "/./-/", "/-/../-/x"])
def test_reserved_prefix_is_refused_after_resolving(path: str) -> None:
    """No spelling of an operator's path is a key."""
    with pytest.raises(BadKeyError, match="reserved"):
        parse_key(path, 1024)


@each_row("path", ["/-", "/-x", "/pkg/-/x", "//-/x", "/-/../x"])
def test_reserved_prefix_applies_at_the_beginning_only(path: str) -> None:
    """Package registries have `-/` in the middle of their paths."""
    assert parse_key(path, 1024)


@each_row("path", ["", "a", "*", "h:1", "http://h/a"])
def test_path_without_leading_slash_is_refused(path: str) -> None:
    """Such as those of CONNECT and OPTIONS *."""
    with pytest.raises(BadKeyError, match="begin with a slash"):
        parse_key(path, 1024)


def test_limit_applies_to_the_resolved_key() -> None:
    """Not to the path."""
    assert parse_key("/x/../" + "a" * 10, 10) == b"a" * 10
    with pytest.raises(KeyTooLongError, match="11 bytes long; allowed are 1 to 10"):
        parse_key("/" + "a" * 11, 10)


def test_text_beyond_latin_1_is_refused() -> None:
    """A server that violates WSGI gets an error, not a bug."""
    with pytest.raises(BadKeyError, match="latin-1"):
        parse_key("/\u20ac", 1024)


PIECES = st.sampled_from(["/", ".", "..", "-", "a", "\xff", " ", "\x85", "/-/"])
PATHS = st.one_of(st.text(), st.lists(PIECES).map(lambda pieces: "/" + "".join(pieces)))


@pytest.mark.property
@given(PATHS, st.integers(1, 20))
def test_key_is_canonical_or_a_client_error(path: str, size_max: int) -> None:
    """For any path: a ClientError, or a key that parses to itself."""
    try:
        key = parse_key(path, size_max)
    except ClientError:
        return
    assert 0 < len(key) <= size_max
    assert not key.startswith(b"-/")
    assert parse_key("/" + key.decode("latin-1"), size_max) == key
