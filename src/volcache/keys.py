"""
Keys: the canonical key of a request path.

A key is the percent-decoded path after its first slash. `.` and `..` segments are resolved
exactly as nginx resolves `$uri` with `merge_slashes off`: nginx selects the instance by
that variable, so both must derive the same key. Depends neither on HTTP nor on the store
nor on the settings.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NoReturn

from volcache.errors import BadKeyError, KeyTooLongError

# Paths under this prefix belong to the operator: `/-/healthy` is never a stored value.
RESERVED_PREFIX: Final = "/-/"
# Paths from the first up to the second begin with a slash but not with the reserved
# prefix: in code point order "0" follows "/". Two comparisons are faster than two slices.
_ORDINARY_FIRST: Final = "/-0"
_ORDINARY_END: Final = "0"

# What a query is for a key; in the order of `vc_query_use` in front/request.h.
Query = Literal["ignore", "key", "refuse"]
QUERIES: Final[tuple[Query, ...]] = ("ignore", "key", "refuse")

_CONTROL_BYTE: Final = re.compile(r"[\x00-\x1f\x7f]")
_CONTROL_BYTE_OF_PREFIX: Final = re.compile(rb"[\x00-\x1f\x7f]")


def parse_key(path: str, size_max: int) -> bytes:
    """
    Return the canonical key of a path.

    Idempotent: applied to a slash and its own result, it returns the same key.

    Args:
        path: Percent-decoded, as latin-1 text (PATH_INFO of WSGI), without a query.
        size_max: The longest key accepted, in bytes.

    Returns:
        1 to `size_max` bytes, without control bytes, not beginning with `-/`.

    Raises:
        BadKeyError: The path does not begin with a slash, ends there, contains a control
            byte, resolves above the root, or has the reserved prefix.
        KeyTooLongError: The key is longer than `size_max` bytes after resolving.
    """
    # These tests are all that an ordinary path costs. Some paths that `_canonical` leaves
    # unchanged do not pass them: "/." finds every dot segment, but also "/.git".
    is_ordinary = (
        _ORDINARY_FIRST <= path < _ORDINARY_END
        and "/." not in path
        and path.isprintable()
    )
    if not is_ordinary:
        path = _canonical(path)
    try:
        key = path[1:].encode("latin-1")
    except UnicodeEncodeError:
        _refuse("the path is not latin-1 text")
    size = len(key)
    if size > size_max:
        raise KeyTooLongError(size=size, limit=size_max)
    return key


def with_query(path: str, query: str, use: Query) -> str:
    """
    Return a path whose key is that of a path with a query.

    As nginx's `$uri$is_args$args`: the query is not decoded, and an empty one is none.

    Args:
        path: As for `parse_key`.
        query: Without its question mark, as latin-1 text (QUERY_STRING of WSGI).
        use: Whether the query is part of the key.

    Raises:
        BadKeyError: The query is refused, or has a dot segment, or the path resolves above
            the root.
    """
    if not query or use == "ignore" or path[:1] != "/":
        return path
    if use == "refuse":
        raise BadKeyError(
            "bad key: it has a query, which the setting query refuses; allowed is a path"
            " without a query, and a ? in a key is %3F"
        )
    joined = f"{_resolve(path)}?{query}"
    # No other key would parse to another one.
    if _resolve(joined) != joined:
        _refuse('the query has a segment "." or ".."; write . as %2E')
    return joined


def _canonical(path: str) -> str:
    """Check and resolve a path that is not ordinary."""
    if path[:1] != "/":
        _refuse("the path does not begin with a slash")
    control = _CONTROL_BYTE.search(path)
    if control is not None:
        _refuse(f"it holds the control byte 0x{ord(control[0]):02X}")
    path = _resolve(path)
    if path == "/":
        _refuse(f"it is empty (the page for operators is {RESERVED_PREFIX})")
    if path.startswith(RESERVED_PREFIX):
        _refuse('the prefix "-/" is reserved')
    return path


def _resolve(path: str) -> str:
    """
    Resolve `.` and `..` segments.

    As in nginx, `..` removes the segment before it even if that is empty (`/a//../b` is
    `/a/b`), and a dot segment at the end leaves its slash (`/a/b/..` is `/a/`).

    Source: ngx_http_parse_complex_uri in nginx's src/http/ngx_http_parse.c.
    """
    kept: list[str] = []
    segment = ""
    for segment in path[1:].split("/"):
        if segment == "..":
            if not kept:
                _refuse('".." resolves above the root')
            kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segment in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)


def _refuse(reason: str) -> NoReturn:
    """Raise the error for a path that is not a key."""
    raise BadKeyError(
        f"bad key: {reason}; a key is the path after its first slash: at least one"
        ' byte, no control bytes, not beginning with "-/"'
    )


def prefix_problem(prefix: bytes, size_max: int, drop_all: str) -> str:
    """
    Return why no key, or every key, begins with a prefix; empty if some may.

    Args:
        prefix: Without a slash of a path.
        size_max: The longest key, in bytes.
        drop_all: How all keys are dropped.
    """
    control = _CONTROL_BYTE_OF_PREFIX.search(prefix)
    if control is not None:
        return f"it holds the control byte 0x{control[0][0]:02X}, which no key has"
    if not prefix:
        return f"it is empty; to drop everything, {drop_all}"
    if prefix.startswith(RESERVED_PREFIX[1:].encode()):
        return 'no key begins with "-/"'
    if len(prefix) > size_max:
        return f"it is {len(prefix)} bytes long, and keys have 1 to {size_max}"
    return ""
