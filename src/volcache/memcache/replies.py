"""What the text protocol and its meta commands have in common."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.memcache.commands import NUMBER_MAX, Result, Simple, Status

if TYPE_CHECKING:
    from volcache.memcache.commands import Command

FLAGS_MAX: Final = 2**32 - 1
# No version has it: a command with this cas unique fails.
NO_VERSION: Final = -1

BAD_FORMAT: Final = b"CLIENT_ERROR bad command line format"
BAD_CHUNK: Final = b"CLIENT_ERROR bad data chunk"

_SIGNED_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"[\t\n\v\f\r]*([+-]?[0-9]{1,40})(?:[\t\n\v\f\r]|\Z)")


class Line(NamedTuple):
    """Always the same reply."""

    line: bytes

    def __call__(self, _command: Command, _result: Result) -> bytes:
        """Return the line."""
        return self.line


def answer_line(name: str, line: bytes, *, closes: bool = False) -> Simple:
    """Return a command that only answers a line, without its end; empty for nothing."""
    return Simple(name, Line(line + b"\r\n" if line else b""), closes=closes)


def answer_error(name: str, line: bytes, *, closes: bool = False) -> Simple:
    """Return a command that only answers an error; see `answer_line`."""
    return answer_line(name, line, closes=closes)._replace(is_error=True)


_FAILURES: Final = {
    Status.TOO_LARGE: b"SERVER_ERROR object too large for cache\r\n",
    Status.UNAUTHORIZED: b"CLIENT_ERROR unauthenticated\r\n",
    Status.DENIED: b"CLIENT_ERROR authentication failure\r\n",
    Status.NON_NUMERIC: (
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
    ),
}
REPLIES: Final = {
    Status.STORED: b"STORED\r\n",
    Status.NOT_STORED: b"NOT_STORED\r\n",
    Status.EXISTS: b"EXISTS\r\n",
    Status.NOT_FOUND: b"NOT_FOUND\r\n",
    Status.DELETED: b"DELETED\r\n",
    Status.TOUCHED: b"TOUCHED\r\n",
    Status.AUTHENTICATED: b"STORED\r\n",
    Status.OK: b"OK\r\n",
    **_FAILURES,
}


def failure(result: Result) -> bytes:
    """Return the reply for a result that is an error, whatever the command was."""
    reply = _FAILURES.get(result.status)
    if reply is not None:
        return reply
    text = result.text.encode("latin-1", "replace")
    if result.status is Status.FAILED:
        return b"SERVER_ERROR %b\r\n" % text
    return b"CLIENT_ERROR %b\r\n" % text


# --- Numbers -------------------------------------------------------------------------


def signed(word: bytes) -> int | None:
    """Return a number of 64 bits with or without a sign, as strtol reads it."""
    if word.isdigit() and len(word) < 19:  # noqa: PLR2004 - All fit.
        return int(word)
    found = _NUMBER.match(word)
    if found is None:
        return None
    number = int(found[1])
    return number if -_SIGNED_MAX - 1 <= number <= _SIGNED_MAX else None


def unsigned(word: bytes, largest: int = NUMBER_MAX) -> int | None:
    """Return a number from 0 on, as strtoul reads it."""
    if word.isdigit() and len(word) < 20:  # noqa: PLR2004 - All fit.
        number = int(word)
        return number if number <= largest else None
    found = _NUMBER.match(word)
    if found is None:
        return None
    number = int(found[1])
    return number if 0 <= number <= largest else None
