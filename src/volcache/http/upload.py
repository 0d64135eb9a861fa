"""
Uploads: the value of a PUT, the headers stored with it, and its time to live.

bjoern accepts a Content-Length next to a chunked body, joins repeated headers, and passes
control characters. So the length of the body is compared with Content-Length, and a header
is stored only if it cannot be mistaken for two when it is sent back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from volcache.errors import ClientError, ValueTooLargeError
from volcache.http.preconditions import parse_date
from volcache.text import parse_number

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

# A longer max-age counts as 68 years, as RFC 9111 section 1.2.2 recommends.
MAX_AGE_SECONDS_MAX: Final = 2**31
# The latest date that Expires may name, in the year 2514: what is later counts as this.
_EXPIRES_SECONDS_MAX: Final = 8 * MAX_AGE_SECONDS_MAX

_MAX_AGE: Final = re.compile(r'(?:^|[\s,;])max-age\s*=\s*"?([^\s,;"]*)', re.IGNORECASE)
_DIGITS_MAX: Final = 10
_FLAGS_MAX: Final = (1 << 32) - 1
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
# A directive and its argument, a token or a quoted string: RFC 9111, 5.2. What is between
# them is not looked at, since bjoern may join repeated headers without a comma.
_DIRECTIVE: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9-]*)"
    r"(?:\s*=\s*(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"(?:[ !#-\[\]-~]|\\[ -~])*\"))?"
)
# The lifetime is returned as what is left of it. One for shared caches alone would be
# returned undiminished, so it is not.
_LIFETIMES: Final = frozenset({"max-age", "s-maxage"})


class LengthRequiredError(ClientError):
    """An upload has neither a Content-Length nor a chunked body; nothing was stored."""


class BadHeaderError(ClientError):
    """A header of an upload is invalid; nothing was stored."""


def read_value(environ: WSGIEnvironment, size_max: int) -> bytes:
    """
    Return the body of a PUT; under bjoern without a copy.

    Args:
        environ: The request.
        size_max: The longest value accepted, in bytes.

    Raises:
        LengthRequiredError: There is neither a Content-Length nor a chunked body.
        ValueTooLargeError: The body is longer than `size_max`.
        BadHeaderError: Content-Length is not the length of the body, or there is a
            Content-Range: a part of a file must not be stored as the whole.
    """
    declared: str = environ.get("CONTENT_LENGTH", "")
    if not declared and "chunked" not in environ.get("HTTP_TRANSFER_ENCODING", ""):
        raise LengthRequiredError(
            "length required; allowed are a Content-Length or a chunked body"
        )
    if "HTTP_CONTENT_RANGE" in environ:
        raise BadHeaderError(
            "Content-Range is not accepted with PUT; send the whole file"
        )
    stream = environ["wsgi.input"]
    try:
        # bjoern's input is a BytesIO. Its read() copies, because the buffer is one byte
        # longer than the value: 2 us for 64 KiB, 900 us for 1 MiB. getvalue() does not.
        value: bytes = stream.getvalue()
    except AttributeError:  # Another WSGI server.
        value = stream.read(int(declared or -1))
    length = len(value)
    if length > size_max:
        raise ValueTooLargeError(size=length, limit=size_max)
    # The grammar is 1*DIGIT, so leading zeros are allowed.
    if declared and declared.lstrip("0") != (str(length) if length else ""):
        raise BadHeaderError(
            f"Content-Length does not match the body of {length} bytes;"
            f" allowed is {length}"
        )
    return value


def read_stored_headers(environ: WSGIEnvironment) -> list[bytes]:
    """
    Return what is stored with the value of a PUT; empty what is absent.

    A record has room for 255 bytes of each.

    Returns:
        Content-Type, Content-Encoding, and Cache-Control without its lifetime.

    Raises:
        BadHeaderError: A header is too long or not printable.
    """
    found = _DIRECTIVE.finditer(environ.get("HTTP_CACHE_CONTROL", ""))
    directives = [one[0] for one in found if one[1].lower() not in _LIFETIMES]
    encoded = []
    for name, text, size_max in (
        ("Content-Type", environ.get("CONTENT_TYPE", ""), 255),
        ("Content-Encoding", environ.get("HTTP_CONTENT_ENCODING", ""), 64),
        ("Cache-Control", ", ".join(dict.fromkeys(directives)), 255),
    ):
        if len(text) > size_max:
            raise BadHeaderError(
                f"{name} is {len(text)} bytes long; allowed are 0 to {size_max}"
            )
        if _CONTROL.search(text):  # A line end would end the header and begin another.
            raise BadHeaderError(
                f"{name} contains a control character; allowed is printable text"
            )
        encoded.append(text.encode("latin-1"))  # WSGI passes no other text.
    return encoded


def read_flags(environ: WSGIEnvironment) -> int:
    """
    Return the flags that memcached clients will get with the value; 0 without any.

    Raises:
        BadHeaderError: X-Flags is not a number of 32 bits.
    """
    flags = parse_number(environ.get("HTTP_X_FLAGS", "0"), _FLAGS_MAX)
    if flags is None:
        raise BadHeaderError(f"X-Flags is not a number; allowed are 0 to {_FLAGS_MAX}")
    return flags


def read_expiry(
    environ: WSGIEnvironment, now_ms: int, *, default_ttl: int = 0, max_ttl: int = 0
) -> int:
    """
    Return when an upload expires, in milliseconds since the epoch; 0 = never.

    `max-age` of Cache-Control takes precedence over Expires, and the first of several
    takes precedence over the others. A lifetime that is over already counts as none: real
    clients send `max-age=0` or `Expires: 0` with every request.

    Args:
        environ: The request.
        now_ms: The present time, in milliseconds since the epoch.
        default_ttl: Seconds for an upload without max-age and Expires; 0 = no end.
        max_ttl: The longest time to live in seconds; 0 = no limit.

    Raises:
        BadHeaderError: `max-age` is not a number.
    """
    end = None
    max_age = _MAX_AGE.search(environ.get("HTTP_CACHE_CONTROL", ""))
    if max_age is not None:
        seconds = _parse_seconds(max_age[1])
        end = now_ms + seconds * 1000 if seconds else None
    elif "HTTP_EXPIRES" in environ:
        # An invalid date, such as 0, is in the past: RFC 9111 section 5.3.
        date = parse_date(environ["HTTP_EXPIRES"])
        if date is not None and date * 1000 > now_ms:
            end = min(date, _EXPIRES_SECONDS_MAX) * 1000
    if end is None and default_ttl:
        end = now_ms + default_ttl * 1000
    if max_ttl:
        latest = now_ms + max_ttl * 1000
        end = latest if end is None else min(end, latest)
    return end or 0


def _parse_seconds(text: str) -> int:
    """Return a number of seconds; 0 for a negative one."""
    if text[:1] == "-" and text[1:].isascii() and text[1:].isdigit():
        return 0
    if not (text.isascii() and text.isdigit()):
        raise BadHeaderError(
            "Cache-Control: max-age is not a number; allowed is max-age=SECONDS"
        )
    digits = text.lstrip("0")
    if len(digits) > _DIGITS_MAX:
        return MAX_AGE_SECONDS_MAX
    return min(int(digits or "0"), MAX_AGE_SECONDS_MAX)
