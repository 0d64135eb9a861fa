"""
`POST /-/purge?prefix=...`: everything stored so far under a prefix becomes a miss.

The prefix is that of the path: percent-encoded, with or without its first slash. Whatever
is not clear is refused, because the purge of another prefix cannot be undone.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from volcache.errors import BadQueryError
from volcache.http.responses import text_response
from volcache.keys import prefix_problem
from volcache.store.index_format import encode_key
from volcache.text import size, span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from wsgiref.types import WSGIEnvironment

    from volcache.cache import Cache
    from volcache.http.responses import Response
    from volcache.store.purges import PurgeStay

PURGE_PATH: Final = "/-/purge"
_ALLOWED: Final = "allowed are prefix=... and dry-run, each once"
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def purge(cache: Cache, environ: WSGIEnvironment, key_size: int) -> Response:
    """
    Purge a prefix, or tell how long the entry would stay in the list.

    With the header `X-Purge-Next: 1`, the status is 404 instead of 200: nginx then asks the
    next instance, see nginx/volcache/purge.conf.

    Args:
        cache: To be purged.
        environ: Of a request that was authorized.
        key_size: The longest key that is accepted.

    Raises:
        BadQueryError: The query string is not a valid one.
        TooManyPurgesError: The list is full.
        StoreError: The disk refused.
    """
    prefix, is_dry = parse_query(environ.get("QUERY_STRING", ""), key_size)
    if not is_dry:
        cache.purge(prefix)
    stay = cache.store.purge_stay()
    done, verb = ("would purge", "would stay") if is_dry else ("purged", "stays")
    is_last = environ.get("HTTP_X_PURGE_NEXT") != "1"
    return text_response(
        HTTPStatus.OK if is_last else HTTPStatus.NOT_FOUND,
        f"{done} {encode_key(prefix)}: all values stored so far under this prefix are"
        f" misses; the entry {verb} in the list until {_describe(stay)}",
    )


def parse_query(query: str, key_size: int) -> tuple[bytes, bool]:
    """
    Return the prefix, and whether nothing is to be changed.

    Raises:
        BadQueryError: A parameter is unknown, missing, repeated or wrong.
    """
    given = parameters(query, ("prefix", "dry-run"), _ALLOWED)
    if given.get("dry-run") or "prefix" not in given:
        what = "dry-run has a value" if "prefix" in given else "no prefix"
        raise BadQueryError(f"{what}; {_ALLOWED}")
    prefix = decode_prefix(given["prefix"])
    if why := prefix_problem(prefix, key_size, "POST /-/flush"):
        raise BadQueryError(f"bad prefix: {why}")
    return prefix, "dry-run" in given


def parameters(query: str, names: Sequence[str], allowed: str) -> dict[str, str]:
    """
    Return the values of the parameters in a query string, as they are sent.

    Args:
        query: Of the request.
        names: Of the parameters; only the last may lack a value.
        allowed: The end of an error.

    Raises:
        BadQueryError: One is unknown or repeated, or has no value.
    """
    given: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if name not in names or not (equals or name == names[-1]):
            raise BadQueryError(f"unknown parameter {part[:50]!r}; {allowed}")
        if name in given:
            raise BadQueryError(f"{name} is given twice; {allowed}")
        given[name] = value
    return given


def decode_prefix(text: str) -> bytes:
    """
    Return the prefix of keys that a parameter names.

    Raises:
        BadQueryError: It is not percent-encoded, or not clearly so.
    """
    if "+" in text:
        raise BadQueryError(
            "bad prefix: it is not clear what + is; write %2B for a plus, %20 for a space"
        )
    if _BAD_ESCAPE.search(text):
        raise BadQueryError("bad prefix: after % two hexadecimal digits are expected")
    return unquote_to_bytes(text.encode("latin-1", "replace")).removeprefix(b"/")


def _describe(stay: PurgeStay) -> str:
    """Return in words how long an entry stays."""
    when = "which cannot be estimated, because too little is stored"
    if stay.seconds is not None:
        when = f"in about {span(stay.seconds)} at the rate since the start"
    return (
        f"all present volumes ({stay.volumes}) are reclaimed, when about"
        f" {size(stay.needed_bytes)} more are stored, {when}; {stay.entries} of"
        f" {stay.limit} entries are in use"
    )
