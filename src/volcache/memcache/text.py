"""
The text protocol of memcached, with its meta commands.

Follows memcached 1.6; docs/MEMCACHE.md lists what differs. See `protocol.py` for the model.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.memcache import meta
from volcache.memcache.commands import (
    KEY_BYTES_MAX,
    VERSION,
    Arithmetic,
    Authenticate,
    Command,
    Delete,
    FlushAll,
    Get,
    Mode,
    Put,
    Result,
    Simple,
    Stats,
    Status,
    Touch,
)
from volcache.memcache.replies import (
    BAD_CHUNK,
    BAD_FORMAT,
    FLAGS_MAX,
    NO_VERSION,
    REPLIES,
    Line,
    answer_error,
    answer_line,
    failure,
    signed,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.protocol import WireLimits

# A line without its line feed. memcached reads at most this much of a line that has not
# ended, except of a get, which may have many keys.
LINE_BYTES_MAX: Final = 2048
GET_LINE_BYTES_MAX: Final = 1 << 20
_LEADING_SPACES_MAX: Final = 100
_OTHER: Final = re.compile(rb"(?!m.\Z)[^acdgist].")
_GETS: Final = (b"get ", b"gets ", b"gat ", b"gats ")
_WORD: Final = re.compile(rb" *([^ ]+) *")
_THREE_WORDS: Final = re.compile(rb" *([^ ]+)(?: +([^ ]+))?(?: +([^ ]+))?")
# memcached takes no more words from a line, except from a get.
_WORDS_MAX: Final = 23
# What a client sends as "user password".
_CREDENTIALS_BYTES_MAX: Final = 2048
# Pieces of a value below this size are joined at once: each object needs memory.
_PIECE_BYTES_MIN: Final = 4096

_HIT: Final = Status.HIT
_CR: Final = 13


# --- Replies -------------------------------------------------------------------------


def _status(_command: Command, result: Result) -> bytes:
    return REPLIES.get(result.status) or failure(result)


def _edited(command: Put, result: Result) -> bytes:
    """Answer "append" and "prepend"."""
    if result.status is Status.TOO_LARGE and not command.is_too_large:
        return REPLIES[Status.NOT_STORED]  # As in memcached: only the sum is too large.
    return _status(command, result)


_PUT_REPLIES: Final[dict[str, Any]] = {"append": _edited, "prepend": _edited}


def _nothing(_command: Command, _result: Result) -> bytes:
    """Answer a command with "noreply"."""
    return b""


def _value(end: bytes, command: Get, result: Result, *, has_cas: bool = False) -> bytes:
    """Answer a key of "get" and "gat"."""
    record = result.record
    if result.status is not _HIT or record is None:
        return end if result.status is Status.MISS else failure(result)
    value = record.value
    cas = b" %d" % record.stored_us if has_cas else b""
    return b"VALUE %b %d %d%b\r\n%b\r\n%b" % (
        command.key,
        record.flags,
        len(value),
        cas,
        value,
        end,
    )


_LAST_VALUE: Final = partial(_value, b"END\r\n")
_NEXT_VALUE: Final = partial(_value, b"")
# Of "gets" and "gats".
_LAST_VERSION: Final = partial(_LAST_VALUE, has_cas=True)
_NEXT_VERSION: Final = partial(_NEXT_VALUE, has_cas=True)


def _number(_command: Command, result: Result) -> bytes:
    """Answer "incr" and "decr"."""
    if result.status is Status.STORED:
        return b"%d\r\n" % result.number
    return REPLIES.get(result.status) or failure(result)


def _pairs(command: Stats, result: Result) -> bytes:
    """Answer "stats"."""
    if result.status is Status.NOT_FOUND:
        return b"ERROR\r\n"
    if result.status is not Status.OK:
        return failure(result)
    if command.argument == b"reset":
        return b"RESET\r\n"
    lines = "".join(f"STAT {name} {value}\r\n" for name, value in result.pairs)
    return lines.encode() + b"END\r\n"


# --- The codec -----------------------------------------------------------------------


_BAD_EXPTIME: Final = b"CLIENT_ERROR invalid exptime argument"
_NOREPLY: Final = b"noreply"
_UNKNOWN: Final = answer_error("unknown", b"ERROR")


def _cas(word: bytes) -> int | None:
    """Return the version that a "cas" asks for; no version is 0."""
    cas = unsigned(word)
    return NO_VERSION if cas == 0 else cas


_MODES: Final[dict[bytes, tuple[str, Mode]]] = {
    b"set": ("set", "set"),
    b"add": ("add", "add"),
    b"replace": ("replace", "replace"),
    b"append": ("append", "append"),
    b"prepend": ("prepend", "prepend"),
    b"cas": ("cas", "set"),
}


class _Expected(NamedTuple):
    """A value that is being read."""

    size: int
    finish: Callable[[bytes | None], Command]  # None: no line end follows the value


class TextCodec:
    """Commands and replies of one connection that speaks text."""

    def __init__(self, limits: WireLimits, *, wants_credentials: bool = False) -> None:
        """See `Connection`."""
        self.wants_credentials = wants_credentials
        self._value_size_max = limits.value_size
        # Bytes received, and how many of them are read.
        self._data = b""
        self._at = 0
        # The beginning of a line that has not ended.
        self._line = bytearray()
        # The line that is parsed, without its end.
        self._line_at = self._line_stop = 0
        # What to do before the next line. The keys of a get stay in the line, which has
        # this many bytes left, until their turn: a line may have 350,000 of them.
        self._keys_left = 0
        self._series = Get("get", b"")
        # Or a method that goes on with what has begun.
        self._resume: Callable[[], Command | None] | None = None
        # The value that is being read, its pieces and their size.
        self._expected: _Expected | None = None
        self._pieces: list[bytes | bytearray] = []
        self._held = 0
        self._missing = 0  # bytes of what is being read or skipped
        self._parsers: dict[bytes, Callable[[list[bytes]], Command | None]] = {
            b"get": self._parse_get,
            b"gets": self._parse_gets,
            b"bget": self._parse_get,
            b"gat": self._parse_gat,
            b"gats": self._parse_gat,
            b"set": self._parse_set,
            b"add": self._parse_put,
            b"replace": self._parse_put,
            b"append": self._parse_put,
            b"prepend": self._parse_put,
            b"cas": self._parse_put,
            b"incr": self._parse_arithmetic,
            b"decr": self._parse_arithmetic,
            b"touch": self._parse_touch,
            b"delete": self._parse_delete,
            b"flush_all": self._parse_flush_all,
            b"version": self._parse_version,
            b"verbosity": self._parse_verbosity,
            b"stats": self._parse_stats,
            b"quit": self._parse_quit,
            b"shutdown": self._parse_shutdown,
            b"mg": meta.parse_get,
            b"ms": self._parse_meta_put,
            b"md": meta.parse_delete,
            b"ma": meta.parse_arithmetic,
            b"me": meta.parse_debug,
            b"mn": meta.parse_nothing,
        }

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        size = len(self._data)
        return (size if self._at < size else 0) + len(self._line) + self._held

    def receive(self, data: bytes) -> None:
        """Take bytes that the client sent."""
        if self._at < len(self._data):
            self._data = self._data[self._at :] + data
        else:
            self._data = data
        self._at = 0

    def next_command(self) -> Command | None:  # noqa: C901, PLR0911 - All pass here.
        """Return the next command; None if more bytes are needed."""
        if self._keys_left:
            return self._next_key()
        if self._resume is not None:
            command = self._resume()
            if command is not None or self._resume is not None:
                return command
        data, at = self._data, self._at
        if self._line:
            data, at = self._join_line(data, at)
        end = data.find(b"\n", at)
        if end < 0:
            return self._hold_line()
        self._at = end + 1
        size = end - at
        stop = end - 1 if size > 1 and data[end - 1] == _CR else end
        self._line_at, self._line_stop = at, stop
        if size <= LINE_BYTES_MAX:
            words = data[at:stop].split(b" ")
        elif self._may_be_longer(data, at, size):
            # The name, the time of "gat" and a key; all others are only keys.
            words = list(_THREE_WORDS.match(data, at, stop).groups(b""))  # type: ignore[union-attr]
        else:
            return self._refuse_line()
        if b"" in words:
            words = [word for word in words if word]
            if not words:
                return _UNKNOWN
        if self.wants_credentials and words[0] == b"set":
            return self._parse_credentials(words)
        parse = self._parsers.get(words[0])
        return self._parse_other(words) if parse is None else parse(words)

    def reply(self, command: Command, result: Result) -> bytes:
        """Return the reply to a command; empty for none."""
        reply: bytes = command.reply(command, result)
        if self._keys_left and result.status not in {_HIT, Status.MISS}:
            # The rest of the keys of this get: its reply ends with the error.
            self._end_series()
        if self._at == len(self._data):
            # Its memory is not needed while the reply is sent.
            self._data = b""
            self._at = 0
        return reply

    # --- Lines -----------------------------------------------------------------------

    def _join_line(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Join what is held of a line with the rest, if its end has been received."""
        if data.find(b"\n", at) >= 0:
            self._line += memoryview(data)[at:]
            self._data = data = bytes(self._line)
            self._at = at = 0
            self._line = bytearray()
        return data, at

    def _hold_line(self) -> Command | None:
        """Hold the beginning of a line."""
        line = self._line
        line += memoryview(self._data)[self._at :]
        self._data = b""
        self._at = 0
        if len(line) > LINE_BYTES_MAX and not self._may_be_longer(line, 0, len(line)):
            return self._refuse_line()
        return None

    @staticmethod
    def _may_be_longer(data: bytes | bytearray, at: int, size: int) -> bool:
        """Whether a line above `LINE_BYTES_MAX` is accepted, at least so far."""
        start = bytes(data[at : at + _LEADING_SPACES_MAX + 8])
        words = start.lstrip(b" ")
        return (
            len(start) - len(words) <= _LEADING_SPACES_MAX
            and words.startswith(_GETS)
            and size <= GET_LINE_BYTES_MAX
        )

    def _refuse_line(self) -> Command:
        """Close: it is not known where the next command begins."""
        return self._close(
            answer_error("unknown", b"CLIENT_ERROR line too long", closes=True)
        )

    def _close(self, command: Simple) -> Command:
        self._resume = self._discard
        self._discard()
        return command

    def _discard(self) -> None:
        """Take no more commands."""
        self._data = b""
        self._at = 0
        self._line = bytearray()

    # --- Values ----------------------------------------------------------------------

    def _expect(
        self, size: int, finish: Callable[[bytes | None], Command]
    ) -> Command | None:
        """Read a value, which a line end follows; the command if it is all there."""
        start = self._at
        stop = start + size
        data = self._data
        if stop + 2 <= len(data):
            self._at = stop + 2
            is_ended = data.startswith(b"\r\n", stop)
            return finish(data[start:stop] if is_ended else None)
        self._expected = _Expected(size, finish)
        self._missing = size
        self._resume = self._read_value
        return self._read_value()

    def _read_value(self) -> Command | None:
        data, at = self._data, self._at
        if self._missing:
            piece = data[at : at + self._missing] if at or self._missing else data
            self._hold(piece)
            at += len(piece)
            self._missing -= len(piece)
            self._at = at
        if self._missing:
            self._data = b""
            self._at = 0
            return None
        if len(data) - at < 2:  # noqa: PLR2004 - A line end.
            return None  # `receive` keeps what is not read.
        expected = self._expected
        assert expected is not None  # noqa: S101
        value = b"".join(self._pieces)
        self._drop_pieces()
        self._resume = None
        self._at = at + 2
        return expected.finish(value if data.startswith(b"\r\n", at) else None)

    def _hold(self, piece: bytes) -> None:
        """Hold a piece of a value."""
        if not piece:
            return
        self._held += len(piece)
        pieces = self._pieces
        if len(piece) >= _PIECE_BYTES_MIN:
            pieces.append(piece)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += piece
        else:
            pieces.append(bytearray(piece))

    def _drop_pieces(self) -> None:
        self._expected = None
        self._pieces = []
        self._held = 0

    def _swallow(self, size: int, command: Command) -> Command:
        """Answer, and skip a value and its line end."""
        self._missing = size + 2
        self._resume = self._skip
        self._skip()
        return command

    def _skip(self) -> None:
        held = len(self._data) - self._at
        if held < self._missing:
            self._missing -= held
            self._data = b""
            self._at = 0
        else:
            self._at += self._missing
            self._missing = 0
            self._resume = None

    # --- Reading ---------------------------------------------------------------------

    def _parse_get(self, words: list[bytes]) -> Command:
        if len(words) == 2:  # noqa: PLR2004 - The most frequent command.
            key = words[1]
            if len(key) <= KEY_BYTES_MAX:
                return Get("get", key, None, True, _LAST_VALUE)  # noqa: FBT003
        return self._begin_series(Get("get", b"", reply=_LAST_VALUE), 1)

    def _parse_gets(self, _words: list[bytes]) -> Command:
        return self._begin_series(Get("gets", b"", reply=_LAST_VERSION), 1)

    def _parse_gat(self, words: list[bytes]) -> Command:
        name = words[0].decode()
        if len(words) == 1:
            return answer_error(name, b"ERROR")
        exptime = signed(words[1])
        if exptime is None:
            return answer_error(name, _BAD_EXPTIME)
        reply = _LAST_VALUE if name == "gat" else _LAST_VERSION
        return self._begin_series(Get(name, b"", exptime, reply=reply), 2)

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
            # "gat" takes a time without a key.
            line = b"ERROR" if last.exptime is None else b"END"
            return Simple(last.name, Line(line + b"\r\n"), last.exptime is None)
        if _has_long_key(data, at, stop):
            return answer_error(last.name, BAD_FORMAT)
        self._series = last
        self._at = at
        self._keys_left = stop - at
        return self._next_key()

    def _next_key(self) -> Command:
        data, at = self._data, self._at
        found = _WORD.match(data, at, at + self._keys_left)
        assert found is not None  # noqa: S101
        self._at = found.end()
        self._keys_left -= self._at - at
        last = self._series
        reply = last.reply
        if self._keys_left:
            reply = _NEXT_VALUE if reply is _LAST_VALUE else _NEXT_VERSION
        else:
            self._end_series()
        return Get(last.name, found[1], last.exptime, True, reply)  # noqa: FBT003

    def _end_series(self) -> None:
        self._keys_left = 0
        self._at = self._data.index(b"\n", self._at) + 1

    # --- Writing ---------------------------------------------------------------------

    def _parse_set(self, words: list[bytes]) -> Command | None:
        # The most frequent form; all others take the other way.
        if len(words) == 5:  # noqa: PLR2004
            _, key, flags, exptime, length = words
            if (
                len(key) <= KEY_BYTES_MAX
                and length.isdigit()
                and len(length) < 10  # noqa: PLR2004 - Below 2^31.
                and (exptime == b"0" or (exptime.isdigit() and len(exptime) < 10))  # noqa: PLR2004
                and (flags == b"0" or (flags.isdigit() and len(flags) < 10))  # noqa: PLR2004
            ):
                start = self._at
                stop = start + int(length)
                data = self._data
                if (
                    data.startswith(b"\r\n", stop)
                    and stop - start <= self._value_size_max
                ):
                    self._at = stop + 2
                    return Put(
                        "set",
                        key,
                        "set",
                        data[start:stop],
                        0 if flags == b"0" else int(flags),
                        0 if exptime == b"0" else int(exptime),
                        0,
                        _status,
                    )
        return self._parse_put(words)

    def _parse_put(self, words: list[bytes]) -> Command | None:
        name, mode = _MODES[words[0]]
        count = 6 if name == "cas" else 5
        if len(words) not in {count, count + 1}:
            return answer_error(name, b"ERROR")
        is_quiet = words[-1] == _NOREPLY
        size = signed(words[4])
        if size is None or size < 0:
            return answer_error(name, b"" if is_quiet else BAD_FORMAT)
        key = words[1]
        flags = unsigned(words[2], FLAGS_MAX)
        exptime = signed(words[3])
        cas = _cas(words[5]) if name == "cas" else 0
        if len(key) > KEY_BYTES_MAX or flags is None or exptime is None or cas is None:
            refusal = answer_error(name, b"" if is_quiet else BAD_FORMAT)
            return self._swallow(size, refusal)
        reply = _nothing if is_quiet else _PUT_REPLIES.get(name, _status)
        put = Put(name, key, mode, b"", flags, exptime, cas, reply)
        if size > self._value_size_max:
            return self._swallow(size, put._replace(is_too_large=True))

        def finish(value: bytes | None) -> Command:
            if value is None:
                return answer_error(name, b"" if is_quiet else BAD_CHUNK)
            return put._replace(value=value)

        return self._expect(size, finish)

    def _parse_meta_put(self, words: list[bytes]) -> Command | None:
        size, refusal, put = meta.parse_put(words)
        if size < 0:
            return refusal
        if put is None:
            return self._swallow(size, refusal)
        if size > self._value_size_max:
            return self._swallow(size, put._replace(is_too_large=True))

        def finish(value: bytes | None) -> Command:
            return refusal if value is None else put._replace(value=value)

        return self._expect(size, finish)

    def _parse_arithmetic(self, words: list[bytes]) -> Command:
        name = words[0].decode()
        if len(words) not in {3, 4}:
            return answer_error(name, b"ERROR")
        is_quiet = words[-1] == _NOREPLY
        key = words[1]
        if len(key) > KEY_BYTES_MAX:
            return answer_error(name, b"" if is_quiet else BAD_FORMAT)
        delta = unsigned(words[2])
        if delta is None:
            line = b"CLIENT_ERROR invalid numeric delta argument"
            return answer_error(name, b"" if is_quiet else line)
        return Arithmetic(
            name, key, delta, name == "decr", reply=_nothing if is_quiet else _number
        )

    def _parse_touch(self, words: list[bytes]) -> Command:
        if len(words) not in {3, 4}:
            return answer_error("touch", b"ERROR")
        is_quiet = words[-1] == _NOREPLY
        key = words[1]
        if len(key) > KEY_BYTES_MAX:
            return answer_error("touch", b"" if is_quiet else BAD_FORMAT)
        exptime = signed(words[2])
        if exptime is None:
            return answer_error("touch", b"" if is_quiet else _BAD_EXPTIME)
        return Touch("touch", key, exptime, _nothing if is_quiet else _status)

    def _parse_delete(self, words: list[bytes]) -> Command:
        if not 2 <= len(words) <= 4:  # noqa: PLR2004
            return answer_error("delete", b"ERROR")
        is_quiet = len(words) > 2 and words[-1] == _NOREPLY  # noqa: PLR2004
        options = words[2:-1] if is_quiet else words[2:]
        if options not in ([], [b"0"]):
            line = BAD_FORMAT + b".  Usage: delete <key> [noreply]"
            return answer_error("delete", b"" if is_quiet else line)
        key = words[1]
        if len(key) > KEY_BYTES_MAX:
            return answer_error("delete", b"" if is_quiet else BAD_FORMAT)
        return Delete("delete", key, reply=_nothing if is_quiet else _status)

    def _parse_flush_all(self, words: list[bytes]) -> Command:
        if len(words) > 3:  # noqa: PLR2004
            return answer_error("flush_all", b"ERROR")
        is_quiet = words[-1] == _NOREPLY
        exptime: int | None = 0
        if len(words) != (2 if is_quiet else 1):
            exptime = signed(words[1])
        if exptime is None:
            return answer_error("flush_all", b"" if is_quiet else _BAD_EXPTIME)
        return FlushAll("flush_all", exptime, _nothing if is_quiet else _status)

    # --- The rest --------------------------------------------------------------------

    def _parse_version(self, _words: list[bytes]) -> Command:
        return answer_line("version", b"VERSION " + VERSION.encode())

    def _parse_verbosity(self, words: list[bytes]) -> Command:
        if len(words) not in {2, 3}:
            return answer_error("verbosity", b"ERROR")
        is_quiet = words[-1] == _NOREPLY
        if unsigned(words[1]) is None:
            return answer_error("verbosity", b"" if is_quiet else BAD_FORMAT)
        return answer_line("verbosity", b"" if is_quiet else b"OK")

    def _parse_stats(self, words: list[bytes]) -> Command:
        return Stats("stats", words[1] if len(words) > 1 else b"", _pairs)

    def _parse_quit(self, _words: list[bytes]) -> Command:
        return self._close(answer_line("quit", b"", closes=True))

    def _parse_shutdown(self, _words: list[bytes]) -> Command:
        return answer_error("shutdown", b"ERROR: shutdown not enabled")

    def _parse_credentials(self, words: list[bytes]) -> Command | None:
        """Parse "set KEY FLAGS EXPTIME LENGTH", whose value is "user password"."""
        size = signed(words[4]) if len(words) > 4 else None  # noqa: PLR2004
        if size is None or size < 0:
            return answer_error("auth", b"CLIENT_ERROR unauthenticated")
        bad = answer_error("auth", b"CLIENT_ERROR bad authentication token format")
        if size > _CREDENTIALS_BYTES_MAX:
            return self._swallow(size, bad)

        def finish(value: bytes | None) -> Command:
            if value is None:
                return answer_error(
                    "auth", b"CLIENT_ERROR bad command line termination"
                )
            given = [word for word in value.split(b" ") if word]
            if len(given) < 2:  # noqa: PLR2004
                return bad
            return Authenticate("auth", given[0], given[1], _status)

        return self._expect(size, finish)

    def _parse_other(self, words: list[bytes]) -> Command | None:
        # A browser, or a request made in its name. As in memcached, which does not look
        # at the rest of the line if the word begins like one of its commands.
        if words[:_WORDS_MAX][-1].startswith(b"HTTP/") and _OTHER.match(words[0]):
            return self._close(answer_error("unknown", b"", closes=True))
        return _UNKNOWN


def _has_long_key(data: bytes, at: int, stop: int) -> bool:
    """Whether a part of a line has a longer word than a key may be."""
    while stop - at > KEY_BYTES_MAX:
        # From the end of what it may have: short keys are passed many at a time.
        at = data.rfind(b" ", at, at + KEY_BYTES_MAX + 1) + 1
        if not at:
            return True
    return False
