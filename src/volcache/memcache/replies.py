"""
The replies: what each protocol sends for a command and its result.

A reply is called with both, and returns bytes; see `Encoder` in `commands.py`. Each
protocol has one type for all of its commands.
"""

from __future__ import annotations

from binascii import b2a_base64
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.memcache.commands import (
    EDITS,
    Arithmetic,
    Get,
    Put,
    Result,
    Statistics,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.commands import Command
    from volcache.store import Record

# No version has it: a command with this cas unique fails.
NO_VERSION: Final = -1


class FixedReply(NamedTuple):
    """Always the same bytes."""

    data: bytes

    def __call__(self, _command: Command, _result: Result) -> bytes:
        """Return them."""
        return self.data


def _status_of(command: Command, result: Result) -> Status:
    """Return the status to answer."""
    status = result.status
    if (
        status is Status.TOO_LARGE
        and isinstance(command, Put)
        and command.mode in EDITS
        and not command.is_too_large
    ):
        return Status.NOT_STORED  # As in memcached: only the sum is too large.
    return status


# --- Text ----------------------------------------------------------------------------

_LINES: Final = {
    Status.NOT_STORED: b"NOT_STORED\r\n",
    Status.EXISTS: b"EXISTS\r\n",
    Status.NOT_FOUND: b"NOT_FOUND\r\n",
    Status.DELETED: b"DELETED\r\n",
    Status.TOUCHED: b"TOUCHED\r\n",
    Status.AUTHENTICATED: b"STORED\r\n",
    Status.OK: b"OK\r\n",
    Status.TOO_LARGE: b"SERVER_ERROR object too large for cache\r\n",
    Status.UNAUTHORIZED: b"CLIENT_ERROR unauthenticated\r\n",
    Status.DENIED: b"CLIENT_ERROR authentication failure\r\n",
    Status.NON_NUMERIC: b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
}


def _line(status: Status, result: Result) -> bytes:
    line = _LINES.get(status)
    if line is not None:
        return line
    kind = b"SERVER_ERROR" if status is Status.FAILED else b"CLIENT_ERROR"
    return b"%b %b\r\n" % (kind, result.text.encode("latin-1", "replace"))


class TextReply(NamedTuple):
    """The reply to a command of the text protocol."""

    has_cas: bool = False  # with the cas unique of a value
    end: bytes = b"END\r\n"  # after a value, or instead of one

    def __call__(self, command: Command, result: Result) -> bytes:
        """Return the reply."""
        status, record = result.status, result.record
        if status is Status.HIT and record is not None:
            value = record.value
            return b"VALUE %b %d %d%b\r\n%b\r\n%b" % (
                command.key,  # type: ignore[union-attr]
                record.flags,
                len(value),
                b" %d" % record.stored_us if self.has_cas else b"",
                value,
                self.end,
            )
        if status is Status.STORED:
            if isinstance(command, Arithmetic):
                return b"%d\r\n" % result.number
            return b"STORED\r\n"
        if status is Status.MISS:
            return self.end
        if isinstance(command, Statistics):
            return _statistics(command, result)
        return _line(_status_of(command, result), result)


def _statistics(command: Statistics, result: Result) -> bytes:
    if result.status is Status.NOT_FOUND:
        return b"ERROR\r\n"
    if result.status is not Status.OK:
        return _line(result.status, result)
    if command.argument == b"reset":
        return b"RESET\r\n"
    lines = "".join(f"STAT {name} {value}\r\n" for name, value in result.pairs)
    return lines.encode() + b"END\r\n"


# --- Meta ----------------------------------------------------------------------------

_CODES: Final = {
    Status.MISS: b"EN",
    Status.STORED: b"HD",
    Status.NOT_STORED: b"NS",
    Status.EXISTS: b"EX",
    Status.NOT_FOUND: b"NF",
    Status.DELETED: b"HD",
}


class MetaReply(NamedTuple):
    """The reply to a meta command."""

    words: tuple[bytes, ...] = ()  # the flags that it repeats
    is_base64: bool = False
    is_quiet: bool = False
    known_cas: int = NO_VERSION  # "mg" returns no value if it is the version
    is_debug: bool = False  # of "me"

    def __call__(self, command: Command, result: Result) -> bytes:
        """Return the reply."""
        record = result.record
        if result.status is Status.HIT and record is not None:
            return self._hit(command, result, record)  # type: ignore[arg-type]
        status = _status_of(command, result)
        code = _CODES.get(status)
        if code is None:
            return _line(status, result)
        if self.is_quiet and code in {b"HD", b"EN"}:
            return b""
        is_number = code == b"HD" and isinstance(command, Arithmetic)
        flags = self._flags(
            command, result, is_full=is_number or isinstance(command, Put)
        )
        if is_number and any(word[:1] == b"v" for word in self.words):
            value = b"%d" % result.number
            return b"VA %d%b\r\n%b\r\n" % (len(value), flags, value)
        return b"%b%b\r\n" % (code, flags)

    def _hit(self, command: Get, result: Result, record: Record) -> bytes:
        if self.is_debug:
            key = command.key
            return b"ME %b exp=%d cas=%d size=%d\r\n" % (
                b2a_base64(key, newline=False) if self.is_base64 else key,
                -1 if result.ttl < 0 else -result.ttl,
                record.stored_us,
                record.size,
            )
        flags = self._flags(command, result, is_full=True)
        if result.token:
            flags += b" " + result.token
        if not command.wants_value or record.stored_us == self.known_cas:
            return b"HD%b\r\n" % flags
        return b"VA %d%b\r\n%b\r\n" % (len(record.value), flags, record.value)

    def _flags(self, command: Command, result: Result, *, is_full: bool) -> bytes:
        """
        Return the flags that are repeated, each with a space before it.

        Args:
            command: What was asked for.
            result: What became of it.
            is_full: All of them, not only the opaque and the key.
        """
        parts: list[bytes] = []
        for word in self.words:
            letter = word[:1]
            if letter == b"O":
                parts.append(word)
            elif letter == b"k":
                key: bytes = getattr(command, "key", b"")
                encoded = b2a_base64(key, newline=False) + b" b"
                parts.append(b"k" + (encoded if self.is_base64 else key))
            elif is_full and letter != b"v":
                parts.append(b"%b%d" % (letter, _NUMBERS[letter](command, result)))
        return b"".join(b" " + part for part in parts)


def _size(command: Command, result: Result) -> int:
    if result.record is not None:
        return result.record.length
    return len(command.value) if isinstance(command, Put) else 0


_NUMBERS: Final[dict[bytes, Callable[[Command, Result], int]]] = {
    b"t": lambda _, result: result.ttl,
    b"c": lambda _, result: result.record.stored_us if result.record else 0,
    b"f": lambda _, result: result.record.flags if result.record else 0,
    b"h": lambda _, result: result.idle >= 0,
    b"l": lambda _, result: max(0, result.idle),
    b"s": _size,
}


# --- Binary --------------------------------------------------------------------------

_MAGIC: Final = 0x81
# Magic, opcode, size of the key, size of the extras, a byte of no meaning, status, size of
# the body, opaque and cas unique.
_HEADER: Final = Struct(">BBHBxHI4sQ")
_FLAGS: Final = Struct(">I")
_NUMBER_BODY: Final = Struct(">Q")
# These opcodes are answered only if there is something to say.
QUIET: Final = frozenset((0x09, 0x0D, *range(0x11, 0x1B), 0x1E, 0x24))
# These return the key.
_WITH_KEY: Final = frozenset((0x0C, 0x0D, 0x23, 0x24))

# The statuses of errors and what memcached says with them.
_NOT_FOUND: Final = (0x01, b"Not found")
_EXISTS: Final = (0x02, b"Data exists for key.")
INVALID: Final = (0x04, b"Invalid arguments")
AUTH_FAILURE: Final = (0x20, b"Auth failure.")
AUTH_CONTINUE: Final = (0x21, b"")
UNKNOWN: Final = (0x81, b"Unknown command")
OUT_OF_MEMORY: Final = (0x82, b"Out of memory")
_ERRORS: Final = {
    Status.MISS: _NOT_FOUND,
    Status.NOT_FOUND: _NOT_FOUND,
    Status.EXISTS: _EXISTS,
    Status.TOO_LARGE: (0x03, b"Too large."),
    Status.BAD_KEY: INVALID,
    Status.NOT_STORED: (0x05, b"Not stored."),
    Status.NON_NUMERIC: (0x06, b"Non-numeric server-side value for incr or decr"),
    Status.DENIED: AUTH_FAILURE,
    Status.UNAUTHORIZED: AUTH_FAILURE,
    Status.FORBIDDEN: AUTH_FAILURE,
}


class BinaryReply(NamedTuple):
    """The reply to a request of the binary protocol."""

    opcode: int
    opaque: bytes

    def pack(
        self,
        status: int = 0,
        body: bytes = b"",
        cas: int = 0,
        key: bytes = b"",
        extras: bytes = b"",
    ) -> bytes:
        """Return the bytes."""
        key_size, extras_size = len(key), len(extras)
        size = extras_size + key_size + len(body)
        head = _HEADER.pack(
            _MAGIC, self.opcode, key_size, extras_size, status, size, self.opaque, cas
        )
        return b"%b%b%b%b" % (head, extras, key, body)

    def __call__(self, command: Command, result: Result) -> bytes:
        """Return the reply."""
        status, record = result.status, result.record
        if status is Status.HIT and record is not None:
            key = command.key if self.opcode in _WITH_KEY else b""  # type: ignore[union-attr]
            flags = _FLAGS.pack(record.flags)
            return self.pack(0, record.value, record.stored_us, key, flags)
        if status is Status.STORED or status is Status.DELETED or status is Status.OK:
            return self._success(command, result)
        if status is Status.TOUCHED and record is not None:
            return self.pack(cas=record.stored_us, extras=_FLAGS.pack(record.flags))
        if status is Status.AUTHENTICATED:
            return self.pack(body=b"Authenticated")
        return self._failure(command, result)

    def _success(self, command: Command, result: Result) -> bytes:
        if self.opcode in QUIET:
            return b""
        if isinstance(command, Statistics):
            # A reply for each pair, and an empty one after the last.
            pairs = (*result.pairs, ("", ""))
            return b"".join(
                self.pack(body=text.encode(), key=name.encode()) for name, text in pairs
            )
        is_number = isinstance(command, Arithmetic)
        body = _NUMBER_BODY.pack(result.number) if is_number else b""
        record = result.record
        # There is none if it has expired at once.
        return self.pack(0, body, 0 if record is None else record.stored_us)

    def _failure(self, command: Command, result: Result) -> bytes:
        status = _status_of(command, result)
        if status is Status.MISS and self.opcode in QUIET:
            return b""
        if status is Status.MISS and self.opcode in _WITH_KEY:
            return self.pack(_NOT_FOUND[0], key=command.key)  # type: ignore[union-attr]
        error = _ERRORS.get(status)
        if status is Status.NOT_STORED and isinstance(command, Put):
            error = {"add": _EXISTS, "replace": _NOT_FOUND}.get(command.mode, error)
        if error is None:
            code, text = OUT_OF_MEMORY
            error = code, result.text.encode(errors="replace") or text
        return self.pack(*error)
