"""
Conditional requests and ranges, as RFC 9110 sections 13 and 14 define them.

Conditions compare the request with the stored record by its entity tag and by its date
(see `modified_of`), in the order of section 13.2.2. A `Range` header that is malformed, or
has too many ranges or some that overlap, is ignored, which section 14.2 allows. Depends
neither on methods nor on status codes.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from volcache.errors import ClientError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

    from volcache.store import Record

IF_MATCH: Final = "HTTP_IF_MATCH"
IF_NONE_MATCH: Final = "HTTP_IF_NONE_MATCH"
IF_MODIFIED_SINCE: Final = "HTTP_IF_MODIFIED_SINCE"
IF_UNMODIFIED_SINCE: Final = "HTTP_IF_UNMODIFIED_SINCE"
# All but If-Range.
CONDITIONS: Final = frozenset(
    {IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE}
)

_US_PER_SECOND: Final = 1_000_000

# bjoern joins repeated headers without a comma, so tags are searched for, not split.
_TAG: Final = re.compile(r'(W/)?("[^"]*")')
# The digits are bounded because Python refuses to convert thousands of them.
_RANGE: Final = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")
_RANGES_MAX: Final = 64
_DATES_KEPT_MAX: Final = 1_000
_DATE_LENGTH_MAX: Final = 100  # Those of RFC 9110 have 24 to 33 characters.


class PreconditionFailedError(ClientError):
    """A condition of the request is false; nothing was changed."""


def modified_of(stored_us: int) -> int:
    """
    Return the date of a value, in seconds since the epoch: the end of its second.

    Several values can be stored in one second, but a client that has seen this date, as
    Last-Modified or as Date, has seen the last one of them. Therefore the date may be used
    only when it is over.
    """
    return stored_us // _US_PER_SECOND + 1


def is_not_modified(environ: WSGIEnvironment, record: Record, now: int) -> bool:
    """
    Evaluate the conditions of a GET or HEAD.

    Args:
        environ: The request.
        record: What is stored.
        now: The second of the response's Date. A later date in If-Modified-Since is
            ignored: the value may still change before it.

    Returns:
        Whether the client has the record already, so that the answer is a 304.

    Raises:
        PreconditionFailedError: If-Match or If-Unmodified-Since is false.
    """
    _require_match(environ, record)
    if IF_NONE_MATCH in environ:
        return _is_tag_in(environ[IF_NONE_MATCH], record, weakly=True)
    if IF_MODIFIED_SINCE in environ:
        date = parse_date(environ[IF_MODIFIED_SINCE])
        return date is not None and modified_of(record.stored_us) <= date <= now
    return False


def require_change_allowed(environ: WSGIEnvironment, record: Record | None) -> None:
    """
    Evaluate the conditions of a PUT or DELETE.

    Args:
        environ: The request.
        record: The stored record; None if the key is absent.

    Raises:
        PreconditionFailedError: A condition is false.
    """
    _require_match(environ, record)
    if IF_NONE_MATCH in environ and _is_tag_in(
        environ[IF_NONE_MATCH], record, weakly=True
    ):
        raise PreconditionFailedError(f"If-None-Match is false: {_stored(record)}")


def requested_ranges(
    environ: WSGIEnvironment, record: Record, now: int
) -> list[range] | None:
    """
    Return the parts of the value that a request asks for, in its order.

    Args:
        environ: The request.
        record: What is stored.
        now: The second of the response's Date.

    Returns:
        None for the whole value. Otherwise 1 to 64 parts that do not overlap, none of them
        empty; an empty list if the value has none of these bytes.
    """
    unit, _, text = environ.get("HTTP_RANGE", "").partition("=")
    ranges = text.split(",", _RANGES_MAX)
    if (
        unit.strip().lower() != "bytes"
        or len(ranges) > _RANGES_MAX
        or not _is_if_range_true(environ, record, now)
    ):
        return None
    parts = [_part(one.strip(" \t"), record.length) for one in ranges]
    found = [part for part in parts if part]
    in_order = sorted(found, key=lambda part: part.start)
    is_whole = None in parts or any(
        following.start < part.stop for part, following in pairwise(in_order)
    )
    return None if is_whole else found


def _part(text: str, length: int) -> range | None:
    """Return the bytes of a range, empty if it has none; None: ignore the header."""
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    first, last = found.groups()
    if first:
        if last and int(last) < int(first):
            return None  # Invalid: RFC 9110 section 14.1.1.
        return range(int(first), min(int(last) + 1, length) if last else length)
    if not last or (int(last) and not length):
        return None  # A suffix of an empty value is satisfiable, but has no numbers.
    return range(max(length - int(last), 0), length)


def parse_date(text: str) -> int | None:
    """Return an HTTP date in seconds since the epoch; None if the text is no date."""
    return _parse_date(text) if len(text) <= _DATE_LENGTH_MAX else None


@lru_cache(maxsize=_DATES_KEPT_MAX)
def _parse_date(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _require_match(environ: WSGIEnvironment, record: Record | None) -> None:
    """Raise `PreconditionFailedError` if If-Match or If-Unmodified-Since is false."""
    if IF_MATCH in environ:
        if not _is_tag_in(environ[IF_MATCH], record, weakly=False):
            raise PreconditionFailedError(f"If-Match is false: {_stored(record)}")
    elif IF_UNMODIFIED_SINCE in environ and record is not None:
        date = parse_date(environ[IF_UNMODIFIED_SINCE])
        if date is not None and modified_of(record.stored_us) > date:
            raise PreconditionFailedError(
                "If-Unmodified-Since is false: the stored file is newer"
            )


def _is_tag_in(header: str, record: Record | None, *, weakly: bool) -> bool:
    """Return whether a list of tags, or `*`, includes the tag of the stored record."""
    if record is None or header.strip() == "*":
        return record is not None
    tag, found = record.etag, _TAG.findall(header)
    return ("", tag) in found or (weakly and ("W/", tag) in found)


def _stored(record: Record | None) -> str:
    """Describe the stored file for the text of an error."""
    if record is None:
        return "no file is stored under this key"
    return f"the stored file has the entity tag {record.etag}"


def _is_if_range_true(environ: WSGIEnvironment, record: Record, now: int) -> bool:
    """Return whether If-Range is absent or names the record by tag or Last-Modified."""
    condition: str = environ.get("HTTP_IF_RANGE", "").strip()
    if not condition:
        return True
    if condition.endswith('"'):
        return condition == record.etag
    modified = modified_of(record.stored_us)
    return parse_date(condition) == modified <= now
