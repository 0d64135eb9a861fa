"""keys.py: which path names which key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.errors import BadKeyError, ClientError, KeyTooLongError
from volcache.keys import parse_key, with_query

# The response of nginx 1.22 to `return 200 $uri` with merge_slashes off; a path is a key
# without its first slash.
NGINX = {
    "/a/./b": "a/b",
    "/./a": "a",
    "/a/.": "a/",
    "/a/b/..": "a/",
    "/a/b/../": "a/",
    "/a/b/../c": "a/c",
    "/a/b/../../c": "c",
    "/a//../b": "a/b",
    "/a/../b": "b",
    "/a//..//b": "a//b",
    "/a/.b/..": "a/",
    "/\xc3\xa9/./\xd0\x80": "\xc3\xa9/\xd0\x80",
    **{
        f"/{key}": key
        for key in ("a", "a/", "/", "/a//b/", "a/...", "a/..b", ".a", "a/.#")
    },
    **{f"/{key}": key for key in ("..?/x", "a b+c%d", "a\\..\\b")},
    # What is reserved is the prefix; package registries have it in the middle.
    **{f"/{key}": key for key in ("-", "-x", "pkg/-/x", "/-/x")},
    "/-/../x": "x",
}
# What nginx answers with 400, and more that is no key.
REFUSED = {
    "above the root": ("/..", "/../a", "/a/../..", "/./../a", "//../../a"),
    "empty": ("/", "/.", "/a/..", "//.."),
    "reserved": ("/-/", "/-/healthy", "/x/../-/healthy", "/./-/", "/-/../-/x"),
    # Such as those of CONNECT and OPTIONS *.
    "begin with a slash": ("", "a", "*", "h:1", "http://h/a"),
    # A server that violates WSGI gets an error, not a bug.
    "latin-1": ("/\u20ac",),
}


def test_dot_segments_resolve_as_in_nginx() -> None:
    """The instance and nginx derive the same key, or both refuse."""
    for path, key in NGINX.items():
        assert parse_key(path, 1024) == key.encode("latin-1")
    for reason, paths in REFUSED.items():
        for path in paths:
            with pytest.raises(BadKeyError, match=reason):
                parse_key(path, 1024)


def test_control_bytes_are_refused() -> None:
    """A key can be written to a line of an index file and to a header."""
    for code in range(0x100):
        path, key = f"/a{chr(code)}b", b"a" + bytes([code]) + b"b"
        if code < 0x20 or code == 0x7F:
            with pytest.raises(BadKeyError, match=f"0x{code:02X}"):
                parse_key(path, 1024)
        else:
            assert parse_key(path, 1024) == key


def test_query_is_part_of_a_key_as_in_nginx() -> None:
    """As nginx 1.22 returns `$uri$is_args$args`: only the path is resolved."""
    for path, query, key in (
        ("/a", "", "a"),
        ("/a", "b", "a?b"),
        ("/a/b", "?c=%20&d", "a/b??c=%20&d"),
        ("/a/../b", "c", "b?c"),
        ("/a/..", "c", "?c"),
        ("/a?b", "c", "a?b?c"),
        ("/..a/.", "c/.d/..e", "..a/?c/.d/..e"),
    ):
        assert parse_key(with_query(path, query, "key"), 1024) == key.encode()
        assert with_query(path, query, "ignore") == path
    for path, query, reason in (
        ("/a", "b/../c", "%2E"),
        ("/a", "/.", "%2E"),
        ("/..", "c", "above the root"),
        ("/b/../-/", "c", "reserved"),
        ("*", "c", "begin with a slash"),
        ("/a", "\x1f", "0x1F"),
    ):
        with pytest.raises(BadKeyError, match=reason):
            parse_key(with_query(path, query, "key"), 1024)


def test_limit_applies_to_the_resolved_key() -> None:
    """Not to the path."""
    assert parse_key("/x/../" + "a" * 10, 10) == b"a" * 10
    with pytest.raises(KeyTooLongError, match="11 bytes long; allowed are 1 to 10"):
        parse_key("/" + "a" * 11, 10)


PIECES = st.sampled_from(["/", ".", "..", "-", "a", "\xff", " ", "\x85", "/-/"])
PATHS = st.one_of(st.text(), st.lists(PIECES).map(lambda pieces: "/" + "".join(pieces)))


@pytest.mark.property
@given(PATHS, st.one_of(st.text(), st.lists(PIECES).map("".join)), st.integers(1, 20))
def test_key_is_canonical_or_a_client_error(
    path: str, query: str, size_max: int
) -> None:
    """For any path and query: a ClientError, or a key that parses to itself."""
    try:
        key = parse_key(with_query(path, query, "key"), size_max)
    except ClientError:
        return
    assert 0 < len(key) <= size_max
    assert not key.startswith(b"-/")
    assert parse_key("/" + key.decode("latin-1"), size_max) == key
