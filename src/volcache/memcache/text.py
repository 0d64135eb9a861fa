"""
The text protocol of memcached, with its meta commands.

Follows memcached 1.6; docs/MEMCACHE.md lists what differs. See `decoder.py` for the model.
`TextDecoder` reads lines, values and the gets of several keys. `_LINES` has what makes the
command of any other line; `meta.py` parses the meta commands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from volcache.memcache import meta
from volcache.memcache.commands import (
    KEY_BYTES_MAX,
    VERSION,
    Arithmetic,
    Authenticate,
    Command,
    Delete,
    Encoder,
    FlushAll,
    Get,
    Mode,
    Put,
    Result,
    Simple,
    Statistics,
    Status,
    Touch,
    silent,
)
from volcache.memcache.decoder import Decoder
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

    from volcache.memcache.commands import WireLimits

# A line without its line feed. memcached reads at most this much of a line that has not
# ended, except of a get, which may have many keys.
LINE_BYTES_MAX: Final = 2048
GET_LINE_BYTES_MAX: Final = 1 << 20
_LONG_LINE: Final = re.compile(rb" {,100}(?:get|gets|gat|gats) ")
_WORD: Final = re.compile(rb" *([^ ]+) *")
_THREE_WORDS: Final = re.compile(rb" *([^ ]+)(?: +([^ ]+))?(?: +([^ ]+))?")
_LONG_KEY: Final = re.compile(rb"(?<![^ ])[^ ]{%d}" % (KEY_BYTES_MAX + 1))

_TOO_LONG: Final = answer_error("unknown", b"CLIENT_ERROR line too long", closes=True)

_CR: Final = 13
_VALUE: Final = TextReply()
_NEXT_VALUE: Final = TextReply(end=b"")
# Of "gets" and "gats".
_VERSION: Final = TextReply(has_cas=True)
_NEXT_VERSION: Final = TextReply(has_cas=True, end=b"")
_BAD_EXPTIME: Final = b"CLIENT_ERROR invalid exptime argument"
_BAD_DELTA: Final = b"CLIENT_ERROR invalid numeric delta argument"
_NOREPLY: Final = b"noreply"
_OTHER: Final = re.compile(rb"(?!m.\Z)[^acdgist].")
# memcached reads no more words from a line, except from a get.
_WORDS_MAX: Final = 23
# What a client sends as "user password".
_CREDENTIALS_BYTES_MAX: Final = 2048


# --- Lines ---------------------------------------------------------------------------


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
        is_quiet = count >= self.quiet_min and words[-1] == _NOREPLY
        try:
            found = self.parse([*words[:-1], b""] if is_quiet else words)
        except LineError as error:
            found = answer_error(name, error.line)
        if not is_quiet:
            return found
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
    return Put(name, key, mode, b"", flags, exptime, cas, _VALUE)


def _parse_credentials(words: list[bytes]) -> Command | PendingValue:
    """Parse "set KEY FLAGS EXPTIME LENGTH", whose value is "user password"."""
    try:
        size = size_of(words[4] if len(words) > 4 else b"")  # noqa: PLR2004
    except LineError:
        return answer_error("auth", b"CLIENT_ERROR unauthenticated")
    command: Authenticate | Simple = Authenticate("auth", b"", b"", _VALUE)
    if size > _CREDENTIALS_BYTES_MAX:
        command = _BAD_CREDENTIALS
    bad_chunk = answer_error("auth", b"CLIENT_ERROR bad command line termination")
    return PendingValue(size, command, bad_chunk)


def _read_credentials(value: bytes) -> Command:
    """Return the command of "user password"."""
    given = [word for word in value.split(b" ") if word]
    if len(given) < 2:  # noqa: PLR2004
        return _BAD_CREDENTIALS
    return Authenticate("auth", given[0], given[1], _VALUE)


def _parse_arithmetic(words: list[bytes]) -> Command:
    name, key = words[0].decode(), checked_key(words[1])
    delta = required(unsigned(words[2]), _BAD_DELTA)
    return Arithmetic(name, key, delta, name == "decr", reply=_VALUE)


def _parse_touch(words: list[bytes]) -> Command:
    key = checked_key(words[1])
    return Touch("touch", key, required(signed(words[2]), _BAD_EXPTIME), _VALUE)


def _parse_delete(words: list[bytes]) -> Command:
    if b"".join(words[2:]) not in {b"", b"0"}:
        raise LineError(BAD_FORMAT + b".  Usage: delete <key> [noreply]")
    return Delete("delete", checked_key(words[1]), reply=_VALUE)


def _parse_flush_all(words: list[bytes]) -> Command:
    word = b"".join(words[1:2]) or b"0"
    return FlushAll("flush_all", required(signed(word), _BAD_EXPTIME), _VALUE)


def _parse_verbosity(words: list[bytes]) -> Command:
    required(unsigned(words[1]))
    return answer_line("verbosity", b"OK")


def _parse_other(words: list[bytes]) -> Command:
    """Answer a line that is no command."""
    # A browser, or a request made in its name. As in memcached, which does not look
    # at the rest of the line if the word begins like one of its commands.
    if words[:_WORDS_MAX][-1].startswith(b"HTTP/") and _OTHER.match(words[0]):
        return answer_error("unknown", b"", closes=True)
    return answer_error("unknown", b"ERROR")


_BAD_CREDENTIALS: Final = answer_error(
    "auth", b"CLIENT_ERROR bad authentication token format"
)
_MODES: Final[dict[bytes, Mode]] = {mode.encode(): mode for mode in get_args(Mode)}
_MODES[b"cas"] = "set"
_LINES: Final[dict[bytes, Callable[[list[bytes]], Command | PendingValue]]] = {
    **dict.fromkeys(_MODES, _Form(_parse_put, 5, 5)),
    b"cas": _Form(_parse_put, 6, 6),
    b"incr": _Form(_parse_arithmetic, 3, 3),
    b"decr": _Form(_parse_arithmetic, 3, 3),
    b"touch": _Form(_parse_touch, 3, 3),
    b"delete": _Form(_parse_delete, 2, 3, quiet_min=3),
    b"flush_all": _Form(_parse_flush_all, 1, 2),
    b"verbosity": _Form(_parse_verbosity, 2, 2),
    b"stats": lambda words: Statistics("stats", b"".join(words[1:2]), _VALUE),
    b"version": lambda _: answer_line("version", b"VERSION " + VERSION.encode()),
    b"quit": lambda _: answer_line("quit", b"", closes=True),
    b"shutdown": lambda _: answer_error("shutdown", b"ERROR: shutdown not enabled"),
    **meta.PARSERS,
}


# --- The decoder ---------------------------------------------------------------------


class TextDecoder(Decoder):
    """The text protocol on one connection; for one thread."""

    _COMMAND_BYTES_MIN: ClassVar[int] = 1

    def __init__(self, limits: WireLimits, *, wants_credentials: bool = False) -> None:
        """See `Decoder`."""
        super().__init__(limits, wants_credentials=wants_credentials)
        # How many bytes of a line that has not ended were searched for its end.
        self._searched = 0
        # The line that is parsed, without its end.
        self._line_at = self._line_stop = 0
        # The keys of a get stay in the line, which has this many bytes left, until their
        # turn: a line may have 350,000 of them. The command for the last one, without it.
        self._keys_left = 0
        self._series = Get("get", b"")

    def next_command(self) -> Command | None:  # noqa: C901 - All pass here.
        """Return the next command; None if more bytes are needed."""
        if self._keys_left:
            return self._next_key()
        data, at = self._data, self._at
        if len(data) - at < self._needed:
            return None
        end = data.find(b"\n", at + self._searched)
        size = (end if end >= 0 else len(data)) - at
        if size > LINE_BYTES_MAX and (
            size > GET_LINE_BYTES_MAX or _LONG_LINE.match(data, at) is None
        ):
            # It is unknown where the next command begins.
            self._close()
            return _TOO_LONG
        if end < 0:
            self._searched = size
            return None
        if isinstance(data, bytearray):
            data = self._data = bytes(data)
        stop = end - 1 if size > 1 and data[end - 1] == _CR else end
        self._line_at, self._line_stop = at, stop
        self._at = end + 1
        self._needed, self._searched = 1, 0
        if size <= LINE_BYTES_MAX:
            words = data[at:stop].split(b" ")
        else:
            # The name, the time of "gat" and a key; all others are only keys.
            words = list(_THREE_WORDS.match(data, at, stop).groups(b""))  # type: ignore[union-attr]
        if b"" in words:
            words = [word for word in words if word] or [b""]
        command = self._PARSERS.get(words[0], TextDecoder._parse_line)(self, words)
        if self._at == len(self._data):
            # Its memory is not needed while the command is executed.
            self._data = b""
            self._at = 0
        return command

    def give_back(self) -> bytes:
        """See `Decoder`."""
        return b"" if self._keys_left else super().give_back()

    # --- Gets ------------------------------------------------------------------------

    def _parse_get(self, words: list[bytes]) -> Command:
        """Parse "get" and "gets", and "gat" and "gats", which have a time."""
        name, exptime = words[0].decode().replace("bget", "get"), None
        if name in {"gat", "gats"}:
            if len(words) == 1:
                return answer_error(name, b"ERROR")
            exptime = signed(words[1])
            if exptime is None:
                return answer_error(name, _BAD_EXPTIME)
        reply = _VERSION if name.endswith("s") else _VALUE
        last = Get(name, b"", exptime, reply=reply)
        return self._begin_series(last, 1 if exptime is None else 2)

    def _begin_series(self, last: Get, words: int) -> Command:
        """
        Begin a command for each key of the line.

        Args:
            last: The last of these commands, without its key.
            words: How many words are before the keys.
        """
        data, at, stop = self._data, self._line_at, self._line_stop
        for _ in range(words):
            at = _WORD.match(data, at, stop).end()  # type: ignore[union-attr]
        if at == stop:
            # "gat" accepts a time without a key.
            if last.exptime is None:
                return answer_error(last.name, b"ERROR")
            return answer_line(last.name, b"END")
        if _LONG_KEY.search(data, at, stop) is not None:
            return answer_error(last.name, BAD_FORMAT)
        self._series = last
        self._at = at
        self._keys_left = stop - at
        return self._next_key()

    def _next_key(self) -> Command:
        at, last = self._at, self._series
        found = _WORD.match(self._data, at, at + self._keys_left)
        assert found is not None  # noqa: S101
        self._at = found.end()
        self._keys_left -= self._at - at
        reply: Encoder = self._answer_key
        if not self._keys_left:
            reply = last.reply
            self._end_series()
        return Get(last.name, found[1], last.exptime, True, reply)  # noqa: FBT003

    def _answer_key(self, command: Command, result: Result) -> bytes:
        """Answer a key that others follow; after an error, none of them is read."""
        if result.record is None and result.status is not Status.MISS:
            self._end_series()
        reply = _NEXT_VALUE if self._series.reply is _VALUE else _NEXT_VERSION
        return reply(command, result)

    def _end_series(self) -> None:
        self._keys_left = 0
        self._go_on(self._data.index(b"\n", self._at) + 1)

    # --- All others ------------------------------------------------------------------

    def _parse_set(self, words: list[bytes]) -> Command | None:
        if self.wants_credentials:
            return self._begin(_parse_credentials(words))
        return self._parse_line(words)

    def _parse_line(self, words: list[bytes]) -> Command | None:
        return self._begin(_LINES.get(words[0], _parse_other)(words))

    def _begin(self, found: Command | PendingValue) -> Command | None:
        """Return a command when its value is here."""
        if isinstance(found, PendingValue):
            return self._read_value(found)
        if isinstance(found, Simple) and found.closes:
            self._close()
        return found

    def _read_value(self, pending: PendingValue) -> Command | None:
        """Read the value after the line, and its line end; None if they are not here."""
        size, command, bad_chunk = pending
        start = self._at
        if isinstance(command, Put) and size > self._value_size_max:
            self._go_on(start, size + 2)
            return command._replace(is_too_large=True)
        if isinstance(command, Simple):
            self._go_on(start, size + 2)
            return command
        stop, data = start + size, self._data
        if len(data) < stop + 2:
            # Later, the line is parsed once more.
            self._at = self._line_at
            self._needed = stop + 2 - self._at
            return None
        self._go_on(stop + 2)
        if not data.startswith(b"\r\n", stop):
            return bad_chunk
        value = bytes(data[start:stop])
        if isinstance(command, Authenticate):
            return _read_credentials(value)
        return command._replace(value=value)

    _PARSERS: ClassVar[
        dict[bytes, Callable[[TextDecoder, list[bytes]], Command | None]]
    ] = {
        b"get": _parse_get,
        b"bget": _parse_get,
        b"gets": _parse_get,
        b"gat": _parse_get,
        b"gats": _parse_get,
        b"set": _parse_set,
    }
