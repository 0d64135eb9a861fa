"""What the text protocol and its meta commands have in common: words, errors, values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from volcache.memcache.commands import (
    KEY_BYTES_MAX,
    NUMBER_MAX,
    Authenticate,
    Put,
    Simple,
)
from volcache.memcache.replies import FixedReply

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
FLAGS_MAX: Final = 2**32 - 1
BAD_FORMAT: Final = b"CLIENT_ERROR bad command line format"
BAD_CHUNK: Final = b"CLIENT_ERROR bad data chunk"

_SIGNED_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"[\t\n\v\f\r]*([+-]?[0-9]{1,40})(?:[\t\n\v\f\r]|\Z)")


class LineError(ValueError):
    """A line cannot be accepted; the argument is the line of the reply."""

    def __init__(self, line: bytes = BAD_FORMAT) -> None:
        """Keep the line."""
        super().__init__(line)
        self.line = line


class PendingValue(NamedTuple):
    """A command whose value follows its line."""

    size: int  # of the value, in bytes
    command: (
        Put | Authenticate | Simple
    )  # without the value; Simple: the value is skipped
    bad_chunk: Simple  # the answer if no line end follows the value


def answer_line(name: str, line: bytes, *, closes: bool = False) -> Simple:
    """Return a command that only answers a line, without its end; empty for nothing."""
    return Simple(name, FixedReply(line + b"\r\n" if line else b""), closes=closes)


def answer_error(name: str, line: bytes, *, closes: bool = False) -> Simple:
    """Return a command that only answers an error; see `answer_line`."""
    return answer_line(name, line, closes=closes)._replace(is_error=True)


def answers_errors(
    parse: Callable[[list[bytes]], T],
) -> Callable[[list[bytes]], T | Simple]:
    """Return a parser that answers the errors of another one."""

    def parse_line(words: list[bytes]) -> T | Simple:
        try:
            return parse(words)
        except LineError as error:
            return answer_error(words[0].decode(), error.line)

    return parse_line


def checked_key(word: bytes) -> bytes:
    """
    Return a key.

    Raises:
        LineError: It is too long.
    """
    if len(word) > KEY_BYTES_MAX:
        raise LineError
    return word


def required(number: int | None, line: bytes = BAD_FORMAT) -> int:
    """
    Return a number that was read.

    Raises:
        LineError: There is none.
    """
    if number is None:
        raise LineError(line)
    return number


def size_of(word: bytes) -> int:
    """
    Return the size of a value.

    Raises:
        LineError: It is invalid.
    """
    return required(unsigned(word, _SIGNED_MAX))


def signed(word: bytes) -> int | None:
    """Return a number of 64 bits with or without a sign, as strtol reads it."""
    return _integer(word, -_SIGNED_MAX - 1, _SIGNED_MAX)


def unsigned(word: bytes, largest: int = NUMBER_MAX) -> int | None:
    """Return a number from 0 on, as strtoul reads it."""
    return _integer(word, 0, largest)


def _integer(word: bytes, smallest: int, largest: int) -> int | None:
    found = _NUMBER.match(word)
    if found is None:
        return None
    number = int(found[1])
    return number if smallest <= number <= largest else None
