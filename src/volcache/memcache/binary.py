"""
The binary protocol of memcached, with SASL PLAIN.

Follows memcached 1.6; docs/MEMCACHE.md lists what differs. See `decoder.py` for the model.

A request is a header of 24 bytes and a body: extras, key and value, whose sizes are in the
header. A request that is not as its opcode needs it ("Invalid arguments") closes the
connection, as in memcached. A value that is too large and the body of an unknown request
are skipped, whatever their size is.

A quiet request is answered only if there is something to say: quiet reads do not answer a
miss, all others do not answer a success.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from volcache.memcache.commands import (
    EDITS,
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
    Simple,
    Statistics,
    Touch,
)
from volcache.memcache.decoder import Decoder
from volcache.memcache.replies import (
    AUTH_CONTINUE,
    AUTH_FAILURE,
    INVALID,
    OUT_OF_MEMORY,
    QUIET,
    UNKNOWN,
    BinaryReply,
    FixedReply,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_REQUEST: Final = 0x80
# Magic, opcode, size of the key, size of the extras, 3 bytes of no meaning, size of the
# body, opaque and cas unique.
_HEADER: Final = Struct(">BBHB3xI4sQ")
_HEADER_BYTES: Final = _HEADER.size
# The numbers in the extras, by their size: nothing, a time, flags and a time, or delta,
# initial number and its time.
_EXTRAS: Final = {0: Struct(""), 4: Struct(">I"), 8: Struct(">II"), 20: Struct(">QQI")}
# An arithmetic request with this time does not store the initial number.
_NO_INITIAL: Final = 0xFFFFFFFF

# memcached accepts no longer name of a mechanism. Cyrus SASL has no limit for what comes
# with it; a user and a token are shorter than this.
_MECHANISM_BYTES_MAX: Final = 32
_CREDENTIALS_BYTES_MAX: Final = 4096
_VERSION: Final = VERSION.encode()
_PLAIN: Final = b"PLAIN"
_SASL_AUTH: Final = 0x21


class _Request(NamedTuple):
    """A request, without the numbers in its extras."""

    name: str
    key: bytes
    value: bytes | None  # None: it was too large.
    cas: int
    reply: BinaryReply


def _get(request: _Request, exptime: int | None = None) -> Command:
    return Get(request.name, request.key, exptime, reply=request.reply)


def _touch(request: _Request, exptime: int) -> Command:
    return Touch(request.name, request.key, exptime, request.reply)


def _put(request: _Request, flags: int = 0, exptime: int = 0) -> Command:
    name, key, value, cas, reply = request
    mode: Mode = name  # type: ignore[assignment]
    if value is None:
        return Put(name, key, mode, b"", reply=reply, is_too_large=True)
    if cas and name not in EDITS:  # As in memcached: whatever the request is.
        name, mode = "cas", "set"
    return Put(name, key, mode, value, flags, exptime, cas, reply)


def _arithmetic(request: _Request, delta: int, initial: int, exptime: int) -> Command:
    name, key, _, cas, reply = request
    start = None if exptime == _NO_INITIAL else initial
    return Arithmetic(
        name, key, delta, name == "decr", start, exptime, None, cas, reply
    )


def _delete(request: _Request) -> Command:
    return Delete(request.name, request.key, request.cas, request.reply)


def _flush(request: _Request, exptime: int = 0) -> Command:
    return FlushAll(request.name, exptime, request.reply)


def _statistics(request: _Request) -> Command:
    return Statistics(request.name, request.key, request.reply)


def _noop(request: _Request, _level: int = 0) -> Command:
    return _answer(request)


def _quit(request: _Request) -> Command:
    data = b"" if request.reply.opcode in QUIET else request.reply.pack()
    return Simple(request.name, FixedReply(data), closes=True)


def _answer(request: _Request, body: bytes = b"") -> Simple:
    """Return a command that only answers a success."""
    return Simple(request.name, FixedReply(request.reply.pack(body=body)))


def _error(
    name: str, reply: BinaryReply, error: tuple[int, bytes], *, closes: bool = False
) -> Simple:
    """Return a command that only answers an error."""
    return Simple(name, FixedReply(reply.pack(*error)), is_error=True, closes=closes)


class _RequestForm(NamedTuple):
    """What the requests of an opcode consist of, and what makes their command."""

    name: str
    make: Callable[..., Command] | None  # None: a step of SASL.
    keys: range  # The sizes that a key may have.
    extras: tuple[int, ...] = (0,)  # The sizes that are allowed.
    has_value: bool = False


_NO_KEY: Final = range(1)
_ANY_KEY: Final = range(KEY_BYTES_MAX + 1)
_KEY: Final = range(1, KEY_BYTES_MAX + 1)
# Of no opcode: no size is right.
_UNKNOWN_FORM: Final = _RequestForm("unknown", None, range(0))
_FORMS: Final[dict[int, _RequestForm]] = {
    opcode: form
    for form, opcodes in (
        (_RequestForm("get", _get, _KEY), (0x00, 0x09, 0x0C, 0x0D)),
        (_RequestForm("gat", _get, _KEY, (4,)), (0x1D, 0x1E, 0x23, 0x24)),
        (_RequestForm("touch", _touch, _KEY, (4,)), (0x1C,)),
        (_RequestForm("set", _put, _KEY, (8,), has_value=True), (0x01, 0x11)),
        (_RequestForm("add", _put, _KEY, (8,), has_value=True), (0x02, 0x12)),
        (_RequestForm("replace", _put, _KEY, (8,), has_value=True), (0x03, 0x13)),
        (_RequestForm("append", _put, _KEY, has_value=True), (0x0E, 0x19)),
        (_RequestForm("prepend", _put, _KEY, has_value=True), (0x0F, 0x1A)),
        (_RequestForm("incr", _arithmetic, _KEY, (20,)), (0x05, 0x15)),
        (_RequestForm("decr", _arithmetic, _KEY, (20,)), (0x06, 0x16)),
        (_RequestForm("delete", _delete, _KEY), (0x04, 0x14)),
        (_RequestForm("flush_all", _flush, _NO_KEY, (0, 4)), (0x08, 0x18)),
        (_RequestForm("stats", _statistics, _ANY_KEY), (0x10,)),
        (_RequestForm("noop", _noop, _NO_KEY), (0x0A,)),
        (_RequestForm("version", partial(_answer, body=_VERSION), _NO_KEY), (0x0B,)),
        (_RequestForm("verbosity", _noop, _NO_KEY, (0, 4)), (0x1B,)),
        (_RequestForm("quit", _quit, _NO_KEY), (0x07, 0x17)),
        (_RequestForm("auth", None, _NO_KEY), (0x20,)),
        (_RequestForm("auth", None, _KEY, has_value=True), (_SASL_AUTH, 0x22)),
    )
    for opcode in opcodes
}


class BinaryDecoder(Decoder):
    """The binary protocol on one connection; for one thread."""

    _COMMAND_BYTES_MIN: ClassVar[int] = _HEADER_BYTES
    _has_sasl = False
    _is_step_next = False

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
        form = _FORMS.get(opcode, _UNKNOWN_FORM)
        name, make, keys, extras, has_value = form
        key_at = at + _HEADER_BYTES + extras_size
        value_at = key_at + key_size
        value_size = body_size - extras_size - key_size
        if (
            magic != _REQUEST
            or key_size not in keys
            or extras_size not in extras
            or (value_size and (value_size < 0 or not has_value))
        ):
            return self._refuse(header)
        is_too_large = value_size > self._value_size_max
        end = value_at if is_too_large else value_at + value_size
        if end > len(data):
            self._needed = end - at
            return None
        key = data[key_at:value_at]
        value = None if is_too_large else data[value_at:end]
        numbers = _EXTRAS[extras_size].unpack_from(data, at + _HEADER_BYTES)
        self._go_on(end, value_size if is_too_large else 0)
        request = _Request(name, key, value, cas, BinaryReply(opcode, opaque))
        if make is None:
            return self._authenticate(request)
        if make is _quit:
            self._close()
        return make(request, *numbers)

    def _authenticate(self, request: _Request) -> Command:
        """Answer a step of SASL: list of mechanisms, first or second message."""
        name, mechanism, value, _, reply = request
        is_step_next, self._is_step_next = self._is_step_next, False
        self._has_sasl = self._has_sasl or self.wants_credentials
        is_first = reply.opcode == _SASL_AUTH
        error = AUTH_FAILURE
        if not self._has_sasl:
            error = UNKNOWN
        elif not mechanism:
            return _answer(request, _PLAIN)
        elif len(mechanism) > _MECHANISM_BYTES_MAX:
            error = INVALID
        elif value is None or len(value) > _CREDENTIALS_BYTES_MAX:
            error = OUT_OF_MEMORY
        elif is_first and mechanism.upper() == _PLAIN and not value:
            self._is_step_next = True  # An empty first message asks for another.
            return Simple(name, FixedReply(reply.pack(*AUTH_CONTINUE)))
        elif mechanism.upper() == _PLAIN if is_first else is_step_next:
            # Who acts, who that is, and a proof; the user may be any.
            words = value.split(b"\0")
            if len(words) == 3:  # noqa: PLR2004
                return Authenticate(name, words[1], words[2], reply)
        return _error(name, reply, error)

    def _refuse(self, header: tuple[int, int, int, int, int, bytes, int]) -> Command:
        """Answer a request that is not as it should be, in the order of memcached."""
        magic, opcode, key_size, extras_size, body_size, opaque, _ = header
        if magic != _REQUEST:
            return self._close_silently()
        form, reply = _FORMS.get(opcode, _UNKNOWN_FORM), BinaryReply(opcode, opaque)
        is_whole = key_size + extras_size <= body_size
        if form is _UNKNOWN_FORM and is_whole and key_size <= KEY_BYTES_MAX:
            self._go_on(self._at + _HEADER_BYTES, body_size)
            return _error(form.name, reply, UNKNOWN)
        self._close()
        return _error(form.name, reply, INVALID if is_whole else UNKNOWN, closes=True)

    def _close_silently(self) -> Command:
        """Close the connection: what comes is no request, and cannot be answered."""
        self._close()
        return Simple("unknown", is_error=True, closes=True)
