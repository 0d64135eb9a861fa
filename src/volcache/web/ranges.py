"""
Ranges: which part of a value a request asks for.

One range of bytes is served; whatever else Range says, several ranges among it, counts as
if it were not there, as RFC 9110 section 14.2 allows. Knows headers and numbers only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from volcache.web.conditional import parse_date

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

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
