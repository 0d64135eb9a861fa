"""
How long an upload is to be kept: Cache-Control and Expires, within the settings.

Knows headers and numbers only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from volcache.http.preconditions import parse_date
from volcache.http.upload import BadHeaderError

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

# What a longer time counts as, by RFC 9111 section 1.2.2: 68 years.
SECONDS_MAX: Final = 2**31

_MAX_AGE: Final = re.compile(r'(?:^|[\s,;])max-age\s*=\s*"?([^\s,;"]*)', re.IGNORECASE)
_DIGITS_MAX: Final = 10


class TtlPolicy:
    """The settings about it."""

    def __init__(self, *, default_ttl: int = 0, max_ttl: int = 0) -> None:
        """
        Keep what an upload does not overrule.

        Args:
            default_ttl: Seconds an upload lives that does not say; 0 = for ever.
            max_ttl: Seconds an upload lives at most; 0 = for ever.

        """
        self._default_ms = default_ttl * 1000
        self._max_ms = max_ttl * 1000
        self._is_limited = bool(default_ttl or max_ttl)

    def concern(self, environ: WSGIEnvironment) -> bool:
        """Tell whether an upload may end at all; else `expires_ms` would be 0."""
        return (
            self._is_limited
            or "HTTP_CACHE_CONTROL" in environ
            or "HTTP_EXPIRES" in environ
        )

    def expires_ms(self, environ: WSGIEnvironment, now_ms: int) -> int:
        """
        Return when an upload expires, in milliseconds since the epoch; 0 = never.

        `max-age` counts before `Expires`, and the first of several.

        Raises:
            BadHeaderError: `max-age` is no number.

        """
        expires = self._asked_ms(environ, now_ms)
        if expires is None and self._default_ms:
            expires = now_ms + self._default_ms
        if self._max_ms:
            end = now_ms + self._max_ms
            expires = end if expires is None else min(expires, end)
        return expires or 0

    def _asked_ms(self, environ: WSGIEnvironment, now_ms: int) -> int | None:
        """Return what the upload asks for; None when it does not say."""
        control = environ.get("HTTP_CACHE_CONTROL")
        if control:
            found = _MAX_AGE.search(control)
            if found is not None:
                return now_ms + _seconds(found[1]) * 1000
        text = environ.get("HTTP_EXPIRES")
        if not text:
            return None
        date = parse_date(text)
        # What is no date, such as 0, has passed: RFC 9111 section 5.3. So has the past.
        return now_ms if date is None else min(max(date, 1), SECONDS_MAX * 8) * 1000


def _seconds(text: str) -> int:
    """Read a number of seconds."""
    if not (text.isascii() and text.isdigit()):
        raise BadHeaderError(
            "Cache-Control: max-age is not a number; allowed is max-age=SECONDS"
        )
    digits = text.lstrip("0")
    if len(digits) > _DIGITS_MAX:
        return SECONDS_MAX
    return min(int(digits or "0"), SECONDS_MAX)
