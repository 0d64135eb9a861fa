"""
Keys: from the path of a request to the bytes the store knows.

A key is what follows the first slash of the percent-decoded path. `.` and `..` segments
are resolved exactly as nginx resolves `$uri` with `merge_slashes off`, so that nginx,
which spreads the requests by that variable, and the instance always mean the same key.
Knows nothing of HTTP, of the store or of settings.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from volcache.errors import BadKeyError, KeyTooLongError

# Paths under it are the operator's: `/-/healthy` can never be a stored value.
RESERVED_PREFIX: Final = "/-/"

_CONTROL_BYTE: Final = re.compile(r"[\x00-\x1f\x7f]")


def parse_key(path: str, size_max: int) -> bytes:
    """
    Return the canonical key a path names.

    Applied to a slash and its own result it returns the same bytes.

    Args:
        path: Percent-decoded, as latin-1 text (PATH_INFO of WSGI), without a query.
        size_max: The longest key taken, in bytes.

    Returns:
        1 to `size_max` bytes: no control byte, not beginning with `-/`.

    Raises:
        BadKeyError: No leading slash, nothing behind it, a control byte, `..` above the
            root, or the reserved prefix.
        KeyTooLongError: More than `size_max` bytes after resolving.

    """
    # An ordinary path pays for these tests alone. "/." finds every dot segment, and
    # with them names such as "/.git", which pass through the resolver unchanged.
    if (
        "/." in path
        or not path.isprintable()
        or path[:3] == RESERVED_PREFIX
        or path[:1] != "/"
    ):
        path = _canonical(path)
    try:
        key = path[1:].encode("latin-1")
    except UnicodeEncodeError:
        _refuse("the path is not latin-1 text")
    if 0 < len(key) <= size_max:
        return key
    if key:
        raise KeyTooLongError(size=len(key), limit=size_max)
    return _refuse(f"it is empty (the page for people is {RESERVED_PREFIX})")


def _canonical(path: str) -> str:
    """Resolve and check a path that is out of the ordinary."""
    if path[:1] != "/":
        _refuse("the path does not begin with a slash")
    control = _CONTROL_BYTE.search(path)
    if control is not None:
        _refuse(f"it holds the control byte 0x{ord(control[0]):02X}")
    path = _resolve(path)
    if path.startswith(RESERVED_PREFIX):
        _refuse('the prefix "-/" is reserved')
    return path


def _resolve(path: str) -> str:
    """
    Take out `.` and `..` segments.

    As in nginx, `..` takes away the segment before it even when that is empty
    (`/a//../b` is `/a/b`), and a dot segment at the end leaves its slash (`/a/b/..` is
    `/a/`).

    Source: ngx_http_parse_complex_uri in nginx's src/http/ngx_http_parse.c.
    """
    kept: list[str] = []
    segment = ""
    for segment in path[1:].split("/"):
        if segment == "..":
            if not kept:
                _refuse('".." climbs above the root')
            kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segment in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)


def _refuse(reason: str) -> NoReturn:
    """Raise the error that says why and what a key is."""
    raise BadKeyError(
        f"bad key: {reason}; a key is the path after its first slash: at least one"
        ' byte, no control bytes, not beginning with "-/"'
    )
