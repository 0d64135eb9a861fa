"""
Conditions on a request: If-Match, If-None-Match and the two about dates.

What a condition means, and in which order conditions count, is RFC 9110 section 13.2.2;
what follows from one that does not hold is the caller's. Knows headers and tags, neither
verbs nor statuses nor where values are.

Ranges: which part of a value a request asks for.

One range of bytes is served; whatever else Range says, several ranges among it, counts as
if it were not there, as RFC 9110 section 14.2 allows. Knows headers and numbers only.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from volcache.errors import ClientError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

IF_MATCH: Final = "HTTP_IF_MATCH"
IF_NONE_MATCH: Final = "HTTP_IF_NONE_MATCH"
IF_MODIFIED_SINCE: Final = "HTTP_IF_MODIFIED_SINCE"
IF_UNMODIFIED_SINCE: Final = "HTTP_IF_UNMODIFIED_SINCE"

# bjoern joins headers that come twice without a comma, so tags are found, not split.
_TAG: Final = re.compile(r'(W/)?("[^"]*")')
_DATES_KEPT_MAX: Final = 1_000


class PreconditionFailedError(ClientError):
    """A condition of the request does not hold; nothing was changed."""


def is_conditional(environ: WSGIEnvironment) -> bool:
    """Tell whether a request has a condition, other than If-Range."""
    return (
        IF_NONE_MATCH in environ
        or IF_MODIFIED_SINCE in environ
        or IF_MATCH in environ
        or IF_UNMODIFIED_SINCE in environ
    )


def require(environ: WSGIEnvironment, tag: str | None, modified: int) -> None:
    """
    Let a request pass whose If-Match or If-Unmodified-Since holds, or that has neither.

    Args:
        environ: As WSGI has it.
        tag: The entity tag of what is stored; None when nothing is.
        modified: When it was stored, in seconds since the epoch.

    Raises:
        PreconditionFailedError: It does not hold; says what is stored.

    """
    if IF_MATCH in environ:
        if not _matches(environ[IF_MATCH], tag, weakly=False):
            raise PreconditionFailedError(f"If-Match does not hold: {_stored(tag)}")
    elif IF_UNMODIFIED_SINCE in environ and tag is not None:
        date = parse_date(environ[IF_UNMODIFIED_SINCE])
        if date is not None and modified > date:
            raise PreconditionFailedError(
                "If-Unmodified-Since does not hold: the stored file is newer"
            )


def require_absent(environ: WSGIEnvironment, tag: str | None) -> None:
    """
    Let an upload pass whose If-None-Match holds, or that has none.

    Raises:
        PreconditionFailedError: What is stored is what must not be there.

    """
    if IF_NONE_MATCH in environ and _matches(environ[IF_NONE_MATCH], tag, weakly=True):
        raise PreconditionFailedError(f"If-None-Match does not hold: {_stored(tag)}")


def is_known(environ: WSGIEnvironment, tag: str, modified: int) -> bool:
    """
    Tell whether the client has what is stored, by If-None-Match or If-Modified-Since.

    The second counts only without the first, and only if it is a date.
    """
    if IF_NONE_MATCH in environ:
        return _matches(environ[IF_NONE_MATCH], tag, weakly=True)
    if IF_MODIFIED_SINCE in environ:
        date = parse_date(environ[IF_MODIFIED_SINCE])
        return date is not None and modified <= date
    return False


@lru_cache(maxsize=_DATES_KEPT_MAX)
def parse_date(text: str) -> int | None:
    """Return seconds since the epoch; None for what is no date of HTTP."""
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _matches(header: str, tag: str | None, *, weakly: bool) -> bool:
    """Tell whether a list of tags, or `*`, has the tag of what is stored."""
    if tag is None:
        return False
    if header.strip() == "*":
        return True
    return any(
        found == tag and (weakly or not weak) for weak, found in _TAG.findall(header)
    )


def _stored(tag: str | None) -> str:
    """Say what is there, for the text of an error."""
    if tag is None:
        return "no file is stored under this key"
    return f"the stored file has the entity tag {tag}"


# Digits are bounded: Python refuses to convert thousands of them.
_RANGE: Final = re.compile(
    r"\s*bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.IGNORECASE
)


def requested_range(
    environ: WSGIEnvironment, tag: str, modified: int, length: int
) -> range | None:
    """
    Return the bytes a request asks for.

    Args:
        environ: As WSGI has it.
        tag: The entity tag of what is stored.
        modified: When it was stored, in seconds since the epoch.
        length: Of what is stored, in bytes.

    Returns:
        None for all of it; an empty range when there are no such bytes.

    """
    found = _RANGE.fullmatch(environ.get("HTTP_RANGE", ""))
    if found is None or not _is_for(environ, tag, modified):
        return None
    first, last = found.groups()
    if first:
        if last and int(last) < int(first):
            return None  # No range at all, says RFC 9110 section 14.1.1.
        return range(int(first), min(int(last) + 1, length) if last else length)
    if not last:
        return None
    if int(last) and not length:
        return None  # The last bytes of nothing are there, but cannot be numbered.
    return range(max(length - int(last), 0), length)


def _is_for(environ: WSGIEnvironment, tag: str, modified: int) -> bool:
    """
    Tell whether If-Range, if there is one, names what is stored.

    A tag must be the strong one; a date must be the very Last-Modified.
    """
    condition: str = environ.get("HTTP_IF_RANGE", "").strip()
    if not condition:
        return True
    if condition.endswith('"'):
        return condition == tag
    return parse_date(condition) == modified
