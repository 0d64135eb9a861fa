"""
The commands of memcached's text protocol: from the words of a line to a command.

The gets of several keys are in `text.py`, the meta commands in `meta.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from volcache.memcache import meta
from volcache.memcache.commands import (
    VERSION,
    Arithmetic,
    Authenticate,
    Command,
    Delete,
    FlushAll,
    Mode,
    Put,
    Simple,
    Statistics,
    Touch,
    silent,
)
from volcache.memcache.replies import NO_VERSION, TextReply
from volcache.memcache.words import (
    BAD_CHUNK,
    BAD_FORMAT,
    FLAGS_MAX,
    LineError,
    PendingValue,
    answer_error,
    answer_line,
    answers_errors,
    checked_key,
    required,
    signed,
    size_of,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BAD_EXPTIME: Final = b"CLIENT_ERROR invalid exptime argument"
REPLY: Final = TextReply()
UNKNOWN: Final = answer_error("unknown", b"ERROR")
_BAD_DELTA: Final = b"CLIENT_ERROR invalid numeric delta argument"
_NOREPLY: Final = b"noreply"
_OTHER: Final = re.compile(rb"(?!m.\Z)[^acdgist].")
# memcached reads no more words from a line, except from a get.
_WORDS_MAX: Final = 23
# What a client sends as "user password".
_CREDENTIALS_BYTES_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class _Form:
    """The parser of a command whose last word may be "noreply"."""

    parse: Callable[[list[bytes]], Command | PendingValue]
    words_min: int  # without "noreply"
    words_max: int
    quiet_min: int = 1  # From this many words on, the last one may be "noreply".

    def __call__(self, words: list[bytes]) -> Command | PendingValue:
        """Return the command of a line."""
        name, count = words[0].decode(), len(words)
        if not self.words_min <= count <= self.words_max + 1:
            return answer_error(name, b"ERROR")
        if count < self.quiet_min or words[-1] != _NOREPLY:
            return answers_errors(self.parse)(words)
        found = answers_errors(self.parse)([*words[:-1], b""])
        if not isinstance(found, PendingValue):
            return found._replace(reply=silent)
        size, command, bad_chunk = found
        quiet = command._replace(reply=silent)
        return PendingValue(size, quiet, bad_chunk._replace(reply=silent))


def _parse_put(words: list[bytes]) -> PendingValue:
    bad_chunk = answer_error(words[0].decode(), BAD_CHUNK)
    return PendingValue(size_of(words[4]), _put(words), bad_chunk)


@answers_errors
def _put(words: list[bytes]) -> Put:
    """Return the command without its value."""
    key = checked_key(words[1])
    flags, exptime = required(unsigned(words[2], FLAGS_MAX)), required(signed(words[3]))
    name, mode, cas = words[0].decode(), _MODES[words[0]], 0
    if name == "cas":  # No version is 0.
        cas = required(unsigned(words[5])) or NO_VERSION
    return Put(name, key, mode, b"", flags, exptime, cas, REPLY)


def parse_credentials(words: list[bytes]) -> Command | PendingValue:
    """Parse "set KEY FLAGS EXPTIME LENGTH", whose value is "user password"."""
    try:
        size = size_of(words[4] if len(words) > 4 else b"")  # noqa: PLR2004
    except LineError:
        return answer_error("auth", b"CLIENT_ERROR unauthenticated")
    command: Authenticate | Simple = Authenticate("auth", b"", b"", REPLY)
    if size > _CREDENTIALS_BYTES_MAX:
        command = _BAD_CREDENTIALS
    bad_chunk = answer_error("auth", b"CLIENT_ERROR bad command line termination")
    return PendingValue(size, command, bad_chunk)


def read_credentials(value: bytes) -> Command:
    """Return the command of "user password"."""
    given = [word for word in value.split(b" ") if word]
    if len(given) < 2:  # noqa: PLR2004
        return _BAD_CREDENTIALS
    return Authenticate("auth", given[0], given[1], REPLY)


def _parse_arithmetic(words: list[bytes]) -> Command:
    name, key = words[0].decode(), checked_key(words[1])
    delta = required(unsigned(words[2]), _BAD_DELTA)
    return Arithmetic(name, key, delta, name == "decr", reply=REPLY)


def _parse_touch(words: list[bytes]) -> Command:
    key = checked_key(words[1])
    return Touch("touch", key, required(signed(words[2]), BAD_EXPTIME), REPLY)


def _parse_delete(words: list[bytes]) -> Command:
    if b"".join(words[2:]) not in {b"", b"0"}:
        raise LineError(BAD_FORMAT + b".  Usage: delete <key> [noreply]")
    return Delete("delete", checked_key(words[1]), reply=REPLY)


def _parse_flush_all(words: list[bytes]) -> Command:
    word = b"".join(words[1:2]) or b"0"
    return FlushAll("flush_all", required(signed(word), BAD_EXPTIME), REPLY)


def _parse_verbosity(words: list[bytes]) -> Command:
    required(unsigned(words[1]))
    return answer_line("verbosity", b"OK")


def _parse_stats(words: list[bytes]) -> Command:
    return Statistics("stats", words[1] if len(words) > 1 else b"", REPLY)


def parse_other(words: list[bytes]) -> Command:
    """Answer a line that is no command."""
    # A browser, or a request made in its name. As in memcached, which does not look
    # at the rest of the line if the word begins like one of its commands.
    if words[:_WORDS_MAX][-1].startswith(b"HTTP/") and _OTHER.match(words[0]):
        return answer_error("unknown", b"", closes=True)
    return UNKNOWN


_BAD_CREDENTIALS: Final = answer_error(
    "auth", b"CLIENT_ERROR bad authentication token format"
)
_MODES: Final[dict[bytes, Mode]] = {
    b"set": "set",
    b"add": "add",
    b"replace": "replace",
    b"append": "append",
    b"prepend": "prepend",
    b"cas": "set",
}
PARSERS: Final[dict[bytes, Callable[[list[bytes]], Command | PendingValue]]] = {
    **dict.fromkeys(_MODES, _Form(_parse_put, 5, 5)),
    b"cas": _Form(_parse_put, 6, 6),
    b"incr": _Form(_parse_arithmetic, 3, 3),
    b"decr": _Form(_parse_arithmetic, 3, 3),
    b"touch": _Form(_parse_touch, 3, 3),
    b"delete": _Form(_parse_delete, 2, 3, quiet_min=3),
    b"flush_all": _Form(_parse_flush_all, 1, 2),
    b"verbosity": _Form(_parse_verbosity, 2, 2),
    b"stats": _parse_stats,
    b"version": lambda _: answer_line("version", b"VERSION " + VERSION.encode()),
    b"quit": lambda _: answer_line("quit", b"", closes=True),
    b"shutdown": lambda _: answer_error("shutdown", b"ERROR: shutdown not enabled"),
    **meta.PARSERS,
}
