"""
The binary protocol of memcached, with SASL PLAIN.

Follows memcached 1.6; docs/MEMCACHE.md lists what differs. See `protocol.py` for the model.

A request is a header of 24 bytes and a body: extras, key and value, whose sizes are in the
header. A request that is not as its opcode needs it ("Invalid arguments") closes the
connection, as in memcached. A value that is too large and the body of an unknown request
are skipped, whatever their size is.

A quiet request is answered only if there is something to say: quiet reads do not answer a
miss, all others do not answer a success.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, cast

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.protocol import WireLimits

_REQUEST: Final = 0x80
_REPLY: Final = 0x81

# Magic, opcode, size of the key, size of the extras, 3 bytes of no meaning, size of the
# body, opaque and cas unique.
_HEADER: Final = Struct(">BBHB3xI4sQ")
# The same of a reply, with its status.
_REPLY_HEADER: Final = Struct(">BBHBxHI4sQ")
_FLAGS: Final = Struct(">I")
_NUMBER: Final = Struct(">Q")
_FLAGS_AND_EXPTIME: Final = Struct(">II")
_EXPTIME: Final = Struct(">I")
_ARITHMETIC: Final = Struct(">QQI")
_HEADER_BYTES: Final = _HEADER.size
# An arithmetic request with this time does not store the initial number.
_NO_INITIAL: Final = 0xFFFFFFFF

# The statuses of replies and what memcached says with them.
_SUCCESS: Final = 0x00
_NOT_FOUND: Final = (0x01, b"Not found")
_EXISTS: Final = (0x02, b"Data exists for key.")
_TOO_LARGE: Final = (0x03, b"Too large.")
_INVALID: Final = (0x04, b"Invalid arguments")
_NOT_STORED: Final = (0x05, b"Not stored.")
_NON_NUMERIC: Final = (0x06, b"Non-numeric server-side value for incr or decr")
_AUTH_FAILURE: Final = (0x20, b"Auth failure.")
_AUTH_CONTINUE: Final = (0x21, b"")
_UNKNOWN: Final = (0x81, b"Unknown command")
_OUT_OF_MEMORY: Final = (0x82, b"Out of memory")

_ERRORS: Final = {
    Status.MISS: _NOT_FOUND,
    Status.NOT_FOUND: _NOT_FOUND,
    Status.EXISTS: _EXISTS,
    Status.TOO_LARGE: _TOO_LARGE,
    Status.BAD_KEY: _INVALID,
    Status.NOT_STORED: _NOT_STORED,
    Status.NON_NUMERIC: _NON_NUMERIC,
    Status.DENIED: _AUTH_FAILURE,
    Status.UNAUTHORIZED: _AUTH_FAILURE,
    Status.FORBIDDEN: _AUTH_FAILURE,
}

# memcached accepts no longer name of a mechanism. Cyrus SASL has no limit for what comes
# with it; a user and a token are shorter than this.
_MECHANISM_BYTES_MAX: Final = 32
_CREDENTIALS_BYTES_MAX: Final = 4096
_PLAIN: Final = b"PLAIN"

_HIT: Final = Status.HIT
_STORED: Final = Status.STORED

# --- Replies -------------------------------------------------------------------------


class _Origin(NamedTuple):
    """The request that a command was made from: `Command.reply`."""

    answer: Callable[[_Origin, Command, Result], bytes]
    opcode: int
    opaque: bytes


def _reply(  # noqa: PLR0913, PLR0917 - The fields.
    opcode: int,
    opaque: bytes,
    status: int = _SUCCESS,
    body: bytes = b"",
    cas: int = 0,
    key: bytes = b"",
    extras: bytes = b"",
) -> bytes:
    key_size, extras_size = len(key), len(extras)
    size = extras_size + key_size + len(body)
    head = _REPLY_HEADER.pack(
        _REPLY, opcode, key_size, extras_size, status, size, opaque, cas
    )
    return b"%b%b%b%b" % (head, extras, key, body)


def _failure(origin: _Origin, result: Result) -> bytes:
    """Return the reply for a result that is an error, whatever the command was."""
    error = _ERRORS.get(result.status)
    if error is None:
        code, text = _OUT_OF_MEMORY
        error = code, result.text.encode(errors="replace") or text
    return _reply(origin.opcode, origin.opaque, *error)


def _answer_get(origin: _Origin, command: Command, result: Result) -> bytes:
    _, opcode, opaque = origin
    record = result.record
    key = cast("Get", command).key if opcode in _WITH_KEY else b""
    if result.status is _HIT and record is not None:
        flags = _FLAGS.pack(record.flags)
        cas = record.stored_us
        return _reply(opcode, opaque, _SUCCESS, record.value, cas, key, flags)
    if result.status is not Status.MISS:
        return _failure(origin, result)
    if opcode in _QUIET:
        return b""
    if key:
        return _reply(opcode, opaque, _NOT_FOUND[0], key=key)
    return _reply(opcode, opaque, *_NOT_FOUND)


def _answer_touch(origin: _Origin, _command: Command, result: Result) -> bytes:
    _, opcode, opaque = origin
    record = result.record
    if result.status is not Status.TOUCHED or record is None:
        return _failure(origin, result)
    flags = _FLAGS.pack(record.flags)
    return _reply(opcode, opaque, cas=record.stored_us, extras=flags)


def _answer_put(origin: _Origin, command: Command, result: Result) -> bytes:
    _, opcode, opaque = origin
    status = result.status
    if status is _STORED:
        if opcode in _QUIET:
            return b""
        record = result.record
        # There is none if it has expired at once.
        cas = 0 if record is None else record.stored_us
        return _reply(opcode, opaque, cas=cas)
    put = cast("Put", command)
    if status is Status.NOT_STORED and put.mode == "add":
        return _reply(opcode, opaque, *_EXISTS)
    if status is Status.NOT_STORED and put.mode == "replace":
        return _reply(opcode, opaque, *_NOT_FOUND)
    if status is Status.TOO_LARGE and put.mode in _EDITS and not put.is_too_large:
        return _reply(opcode, opaque, *_NOT_STORED)  # With what there is.
    return _failure(origin, result)


def _answer_arithmetic(origin: _Origin, _command: Command, result: Result) -> bytes:
    _, opcode, opaque = origin
    if result.status is not _STORED:
        return _failure(origin, result)
    if opcode in _QUIET:
        return b""
    record = result.record
    cas = 0 if record is None else record.stored_us
    return _reply(opcode, opaque, body=_NUMBER.pack(result.number), cas=cas)


def _answer_plainly(origin: _Origin, _command: Command, result: Result) -> bytes:
    """Answer "delete" and "flush_all": there is nothing to return."""
    if result.status not in {Status.DELETED, Status.OK}:
        return _failure(origin, result)
    if origin.opcode in _QUIET:
        return b""
    return _reply(origin.opcode, origin.opaque)


def _answer_stats(origin: _Origin, _command: Command, result: Result) -> bytes:
    """Answer with a reply for each pair, and an empty one after the last."""
    if result.status is not Status.OK:
        return _failure(origin, result)
    _, opcode, opaque = origin
    pairs = [(name.encode(), text.encode()) for name, text in (*result.pairs, ("", ""))]
    return b"".join(_reply(opcode, opaque, body=text, key=name) for name, text in pairs)


def _answer_authenticate(origin: _Origin, _command: Command, result: Result) -> bytes:
    if result.status is not Status.AUTHENTICATED:
        return _failure(origin, result)
    return _reply(origin.opcode, origin.opaque, body=b"Authenticated")


# --- Commands ------------------------------------------------------------------------


class _Fields(NamedTuple):
    """A request, its header without what only its reading needs."""

    extras: bytes
    key: bytes
    value: bytes | None  # None: it was too large.
    cas: int
    origin: _Origin


def _get(name: str, fields: _Fields) -> Command:
    return Get(name, fields[1], None, True, fields[4])  # noqa: FBT003 - As it is fast.


def _gat(name: str, fields: _Fields) -> Command:
    (exptime,) = _EXPTIME.unpack(fields.extras)
    return Get(name, fields.key, exptime, reply=fields.origin)


def _touch(name: str, fields: _Fields) -> Command:
    (exptime,) = _EXPTIME.unpack(fields.extras)
    return Touch(name, fields.key, exptime, fields.origin)


def _put(name: str, fields: _Fields) -> Command:
    extras, key, value, cas, origin = fields
    flags, exptime = _FLAGS_AND_EXPTIME.unpack(extras)
    if value is None:
        mode = cast("Mode", name)
        return Put(name, key, mode, b"", reply=origin, is_too_large=True)
    if cas:  # As in memcached: whatever the request is.
        return Put("cas", key, "set", value, flags, exptime, cas, origin)
    return Put(name, key, cast("Mode", name), value, flags, exptime, 0, origin)


def _edit(name: str, fields: _Fields) -> Command:
    """Make the command for "append" or "prepend"."""
    _, key, value, cas, origin = fields
    is_too_large = value is None
    mode = cast("Mode", name)
    return Put(
        name, key, mode, value or b"", 0, 0, cas, origin, is_too_large=is_too_large
    )


def _arithmetic(name: str, fields: _Fields) -> Command:
    delta, initial, exptime = _ARITHMETIC.unpack(fields.extras)
    return Arithmetic(
        name,
        fields.key,
        delta,
        name == "decr",
        None if exptime == _NO_INITIAL else initial,
        exptime,
        cas=fields.cas,
        reply=fields.origin,
    )


def _delete(name: str, fields: _Fields) -> Command:
    return Delete(name, fields.key, fields.cas, fields.origin)


def _flush(name: str, fields: _Fields) -> Command:
    (exptime,) = _EXPTIME.unpack(fields.extras) if fields.extras else (0,)
    return FlushAll(name, exptime, fields.origin)


def _stats(name: str, fields: _Fields) -> Command:
    return Stats(name, fields.key, fields.origin)


class _Operation(NamedTuple):
    """What a request of an opcode consists of, and what becomes of it."""

    name: str
    answer: Callable[[_Origin, Command, Result], bytes] | None = None
    # None: `BinaryCodec` answers by itself.
    parse: Callable[[str, _Fields], Command] | None = None
    key_min: int = 0
    key_max: int = 0
    extras: tuple[int, ...] = (0,)  # The sizes that are allowed.
    has_value: bool = False


def _keyed(
    name: str,
    answer: Callable[[_Origin, Command, Result], bytes],
    parse: Callable[[str, _Fields], Command],
    extras: int = 0,
    *,
    has_value: bool = False,
) -> _Operation:
    """Return an operation on a key."""
    return _Operation(name, answer, parse, 1, KEY_BYTES_MAX, (extras,), has_value)


# Of no opcode: no size is right.
_NO_OPERATION: Final = _Operation("unknown", key_min=1)
_NOOP: Final = _Operation("noop")
_VERSION: Final = _Operation("version")
_VERBOSITY: Final = _Operation("verbosity", extras=(0, 4))
_QUIT: Final = _Operation("quit")
_MECHANISMS: Final = _Operation("auth")
_SASL: Final = _Operation("auth", None, None, 1, KEY_BYTES_MAX, has_value=True)
_GET: Final = _keyed("get", _answer_get, _get)
_GAT: Final = _keyed("gat", _answer_get, _gat, 4)
_SET: Final = _keyed("set", _answer_put, _put, 8, has_value=True)
_ADD: Final = _keyed("add", _answer_put, _put, 8, has_value=True)
_REPLACE: Final = _keyed("replace", _answer_put, _put, 8, has_value=True)
_APPEND: Final = _keyed("append", _answer_put, _edit, has_value=True)
_PREPEND: Final = _keyed("prepend", _answer_put, _edit, has_value=True)
_INCR: Final = _keyed("incr", _answer_arithmetic, _arithmetic, 20)
_DECR: Final = _keyed("decr", _answer_arithmetic, _arithmetic, 20)
_DELETE: Final = _keyed("delete", _answer_plainly, _delete)
_FLUSH: Final = _Operation("flush_all", _answer_plainly, _flush, extras=(0, 4))
_STATS: Final = _Operation("stats", _answer_stats, _stats, key_max=KEY_BYTES_MAX)

_SASL_AUTH: Final = 0x21
_OPERATIONS: Final = {
    0x00: _GET,
    0x01: _SET,
    0x02: _ADD,
    0x03: _REPLACE,
    0x04: _DELETE,
    0x05: _INCR,
    0x06: _DECR,
    0x07: _QUIT,
    0x08: _FLUSH,
    0x09: _GET,
    0x0A: _NOOP,
    0x0B: _VERSION,
    0x0C: _GET,
    0x0D: _GET,
    0x0E: _APPEND,
    0x0F: _PREPEND,
    0x10: _STATS,
    0x11: _SET,
    0x12: _ADD,
    0x13: _REPLACE,
    0x14: _DELETE,
    0x15: _INCR,
    0x16: _DECR,
    0x17: _QUIT,
    0x18: _FLUSH,
    0x19: _APPEND,
    0x1A: _PREPEND,
    0x1B: _VERBOSITY,
    0x1C: _keyed("touch", _answer_touch, _touch, 4),
    0x1D: _GAT,
    0x1E: _GAT,
    0x20: _MECHANISMS,
    _SASL_AUTH: _SASL,
    0x22: _SASL,
    0x23: _GAT,
    0x24: _GAT,
}
_QUIET: Final = frozenset((0x09, 0x0D, *range(0x11, 0x1B), 0x1E, 0x24))
# These return the key.
_WITH_KEY: Final = frozenset((0x0C, 0x0D, 0x23, 0x24))
_EDITS: Final = ("append", "prepend")


class BinaryCodec:
    """The binary protocol on one connection; for one thread. See `protocol.Codec`."""

    def __init__(self, limits: WireLimits, *, wants_credentials: bool = False) -> None:
        """
        Expect a request.

        Args:
            limits: What is read.
            wants_credentials: A token is required. SASL is unknown to a connection for
                which this was never set, as to memcached without -S.
        """
        self.wants_credentials = wants_credentials
        self._value_size_max = limits.value_size
        # What was received; read up to `_at`. A bytearray while a request is not whole.
        self._data: bytes | bytearray = b""
        self._at = 0
        self._needed = _HEADER_BYTES  # How much must be held to go on.
        self._skipped = 0  # How many bytes to come are skipped.
        self._is_closed = False
        self._has_sasl = False
        self._is_step_next = False

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        return len(self._data)

    def receive(self, data: bytes) -> None:
        """Take bytes that the client sent."""
        if self._skipped:
            size = len(data)
            data = data[self._skipped :]
            self._skipped -= size - len(data)
        if self._is_closed or not data:
            return
        held, at = self._data, self._at
        if at == len(held):
            self._data = data
        elif isinstance(held, bytearray):
            held += data  # `_at` is 0.
            return
        else:
            # Pieces are added in linear time, however small they are.
            self._data = bytearray(memoryview(held)[at:])
            self._data += data
        self._at = 0

    def next_command(self) -> Command | None:
        """Return the next command; None if more bytes are needed."""
        data, at = self._data, self._at
        held = len(data) - at
        if held < self._needed:
            if held and data[at] != _REQUEST:
                return self._close_silently()
            return None
        if isinstance(data, bytearray):
            data = self._data = bytes(data)
        header = _HEADER.unpack_from(data, at)
        magic, opcode, key_size, extras_size, body_size, opaque, cas = header
        operation = _OPERATIONS.get(opcode, _NO_OPERATION)
        key_at = at + _HEADER_BYTES + extras_size
        value_at = key_at + key_size
        value_size = body_size - extras_size - key_size
        if (
            magic != _REQUEST
            or not operation[3] <= key_size <= operation[4]
            or extras_size not in operation[5]
            or (value_size and (value_size < 0 or not operation[6]))
        ):
            return self._refuse(header)
        end = at + _HEADER_BYTES + body_size
        is_too_large = value_size > self._value_size_max
        if is_too_large:
            end = value_at
        if end > len(data):
            self._needed = end - at
            return None
        key = data[key_at:value_at]
        value = None if is_too_large else data[value_at:end]
        extras = data[at + _HEADER_BYTES : key_at]
        self._go_on(end, value_size if is_too_large else 0)
        name, answer, parse, _, _, _, _ = operation
        if parse is None or answer is None:
            return self._answer(operation, opcode, opaque, key, value)
        origin = _Origin(answer, opcode, opaque)
        return parse(name, _Fields(extras, key, value, cas, origin))

    def reply(self, command: Command, result: Result) -> bytes:
        """Return the reply to the last command; empty for none."""
        origin = command.reply
        if isinstance(origin, _Origin):
            return origin[0](origin, command, result)
        line: bytes = origin
        if line and result.status is Status.UNAUTHORIZED:
            _, opcode, _, _, _, opaque, _ = _HEADER.unpack_from(line)
            return _reply(opcode, opaque, *_AUTH_FAILURE)
        return line

    # --- What the codec answers by itself ----------------------------------------------

    def _answer(
        self,
        operation: _Operation,
        opcode: int,
        opaque: bytes,
        key: bytes,
        value: bytes | None,
    ) -> Command:
        name = operation.name
        if name == "auth":
            return self._authenticate(opcode, opaque, key, value)
        if operation is _QUIT:
            self._close()
            bye = b"" if opcode in _QUIET else _reply(opcode, opaque)
            return Simple(name, bye, closes=True)
        body = VERSION.encode() if operation is _VERSION else b""
        return Simple(name, _reply(opcode, opaque, body=body))

    def _authenticate(
        self, opcode: int, opaque: bytes, key: bytes, value: bytes | None
    ) -> Command:
        """Take a step of SASL: list of mechanisms, first or second message."""
        is_step_next, self._is_step_next = self._is_step_next, False
        self._has_sasl = self._has_sasl or self.wants_credentials
        error = None
        if not self._has_sasl:
            error = _UNKNOWN
        elif not key:
            return Simple("auth", _reply(opcode, opaque, body=_PLAIN))
        elif len(key) > _MECHANISM_BYTES_MAX:
            error = _INVALID
        elif value is None or len(value) > _CREDENTIALS_BYTES_MAX:
            error = _OUT_OF_MEMORY
        elif is_step_next if opcode != _SASL_AUTH else key.upper() == _PLAIN:
            return self._read_message(opcode, opaque, value)
        return _error("auth", opcode, opaque, error or _AUTH_FAILURE)

    def _read_message(self, opcode: int, opaque: bytes, value: bytes) -> Command:
        """Read a message of SASL PLAIN; an empty first one asks for another."""
        if opcode == _SASL_AUTH and not value:
            self._is_step_next = True
            return Simple("auth", _reply(opcode, opaque, *_AUTH_CONTINUE))
        # Who acts, who that is, and a proof; the user may be any.
        words = value.split(b"\0")
        if len(words) != 3:  # noqa: PLR2004
            return _error("auth", opcode, opaque, _AUTH_FAILURE)
        origin = _Origin(_answer_authenticate, opcode, opaque)
        return Authenticate("auth", words[1], words[2], origin)

    def _refuse(self, header: tuple[int, int, int, int, int, bytes, int]) -> Command:
        """Answer a request that is not as it should be, in the order of memcached."""
        magic, opcode, key_size, extras_size, body_size, opaque, _ = header
        if magic != _REQUEST:
            return self._close_silently()
        operation = _OPERATIONS.get(opcode, _NO_OPERATION)
        is_whole = key_size + extras_size <= body_size
        if operation is _NO_OPERATION and is_whole and key_size <= KEY_BYTES_MAX:
            self._go_on(self._at + _HEADER_BYTES, body_size)
            return _error(operation.name, opcode, opaque, _UNKNOWN)
        self._close()
        error = _INVALID if is_whole else _UNKNOWN
        return _error(operation.name, opcode, opaque, error, closes=True)

    # --- Parts -------------------------------------------------------------------------

    def _go_on(self, at: int, skipped: int = 0) -> None:
        """Read from here on, after what is skipped."""
        self._needed = _HEADER_BYTES
        at += skipped
        size = len(self._data)
        if at < size:
            self._at = at
        else:
            # Its memory is not needed while the command is executed.
            self._data = b""
            self._at = 0
            self._skipped = at - size

    def _close(self) -> None:
        """Take no more commands."""
        self._is_closed = True
        self._data = b""
        self._at = 0
        self._needed = _HEADER_BYTES

    def _close_silently(self) -> Command:
        """Close the connection: what comes is no request, and cannot be answered."""
        self._close()
        return Simple("unknown", b"", is_error=True, closes=True)


def _error(
    name: str,
    opcode: int,
    opaque: bytes,
    error: tuple[int, bytes],
    *,
    closes: bool = False,
) -> Simple:
    """Return a command that only answers an error."""
    reply = _reply(opcode, opaque, *error)
    return Simple(name, reply, is_error=True, closes=closes)
