"""
The meta commands of memcached's text protocol: mg, ms, md, ma, me and mn.

A command is two letters, a key and flags: words whose first letter says what they are. See
the section "Meta Commands" of memcached's protocol.txt.

Accepted are the flags whose meaning the store can keep. A stale mark (`I`) and a cas unique
of the client's choice (`E`) are not stored in a record, so these flags are refused.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.memcache.commands import (
    KEY_BYTES_MAX,
    Arithmetic,
    Command,
    Delete,
    Get,
    Mode,
    Put,
    Result,
    Simple,
    Status,
    TtlWanted,
)
from volcache.memcache.replies import (
    BAD_FORMAT,
    FLAGS_MAX,
    NO_VERSION,
    answer_error,
    answer_line,
    failure,
    signed,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_OPAQUE_BYTES_MAX: Final = 32  # with its letter
# Words of a line, with the command.
_WORDS_MAX: Final = 19
_ASCII_MAX: Final = 126
_BASE64: Final = ord("b")
_OPAQUE: Final = ord("O")

_MODES: Final[dict[bytes, Mode]] = {
    b"S": "set",
    b"E": "add",
    b"R": "replace",
    b"A": "append",
    b"P": "prepend",
}
_IS_DECREMENT: Final = {b"I": False, b"+": False, b"D": True, b"-": True}

_INVALID: Final = b"CLIENT_ERROR invalid flag"
_BAD_TOKEN: Final = b"CLIENT_ERROR bad token in command line format"
_INVALID_OR_DUPLICATE: Final = b"CLIENT_ERROR invalid or duplicate flag"


class BadFlagsError(ValueError):
    """The flags cannot be accepted; the argument is the line of the reply."""

    def __init__(self, line: bytes) -> None:
        """Keep the line."""
        super().__init__(line)
        self.line = line


class Flags(NamedTuple):
    """The flags of a command."""

    key: bytes
    words: list[bytes]
    given: dict[int, Any]  # what follows a letter, or None, by letter

    def has(self, letter: str) -> bool:
        """Whether a flag was given."""
        return ord(letter) in self.given

    def get(self, letter: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return what follows a letter."""
        return self.given.get(ord(letter), default)

    def is_before(self, first: str, second: str) -> bool:
        """Whether two flags were given, in this order."""
        letters = list(self.given)
        one, two = ord(first), ord(second)
        if one not in self.given or two not in self.given:
            return False
        return letters.index(one) < letters.index(two)


class MetaReply(NamedTuple):
    """What the reply to a meta command needs."""

    encode: Callable[[MetaReply, Any, Result], bytes]
    words: tuple[bytes, ...] = ()  # the flags that the reply repeats
    is_base64: bool = False
    is_quiet: bool = False
    known_cas: int = NO_VERSION  # "mg" returns no value if it is the version

    def __call__(self, command: Command, result: Result) -> bytes:
        """Return the reply."""
        return self.encode(self, command, result)


# --- Flags ---------------------------------------------------------------------------


def _number(text: bytes) -> int:
    number = signed(text)
    if number is None:
        raise BadFlagsError(_BAD_TOKEN)
    return number


def _cas(text: bytes) -> int:
    number = unsigned(text)
    if number is None:
        raise BadFlagsError(_BAD_TOKEN)
    return number


def _client_flags(text: bytes) -> int:
    number = unsigned(text, FLAGS_MAX)
    if number is None:
        raise BadFlagsError(BAD_FORMAT)
    return number


def _mode(text: bytes) -> bytes:
    if len(text) != 1:
        raise BadFlagsError(b"CLIENT_ERROR incorrect length for M token")
    return text


def _initial(text: bytes) -> int:
    number = unsigned(text)
    if number is None:
        raise BadFlagsError(b"CLIENT_ERROR invalid numeric initial value")
    return number


def _delta(text: bytes) -> int:
    number = unsigned(text)
    if number is None:
        raise BadFlagsError(b"CLIENT_ERROR invalid numeric delta value")
    return number


def _nothing(_text: bytes) -> None:
    """Ignore what follows, as memcached does."""


_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    **dict.fromkeys(b"bkstcfhlvuqOPL", _nothing),
    **dict.fromkeys(b"NTR", _number),
    ord("C"): _cas,
    ord("F"): _client_flags,
    ord("M"): _mode,
    ord("J"): _initial,
    ord("D"): _delta,
}


def _read_flags(key: bytes, words: list[bytes]) -> Flags:
    """
    Read the flags of a command.

    Raises:
        BadFlagsError: They cannot be accepted.
    """
    given: dict[int, Any] = {}
    wrong: BadFlagsError | None = None
    for word in words:
        letter = word[0]
        if letter > _ASCII_MAX or letter in given:
            raise BadFlagsError(b"CLIENT_ERROR duplicate flag")
        reader = _READERS.get(letter)
        if reader is None:
            raise BadFlagsError(_INVALID)
        given[letter] = None
        try:
            if letter == _BASE64:
                key = _decode_key(key)
            else:
                given[letter] = reader(word[1:])
        except BadFlagsError as error:
            # Of several errors, memcached names the last, and this one only alone.
            if wrong is None or error.line != BAD_FORMAT:
                wrong = error
    if wrong is not None:
        raise wrong
    _check_opaque(words)
    return Flags(key, words, given)


def _check_opaque(words: list[bytes]) -> None:
    if any(word[0] == _OPAQUE and len(word) > _OPAQUE_BYTES_MAX for word in words):
        raise BadFlagsError(b"CLIENT_ERROR opaque token too long")


def _decode_key(key: bytes) -> bytes:
    try:
        decoded = a2b_base64(key, strict_mode=True)
    except Base64Error:
        decoded = b""
    if not decoded:
        raise BadFlagsError(b"CLIENT_ERROR error decoding key")
    return decoded


def _reply(
    encode: Callable[[MetaReply, Any, Result], bytes],
    flags: Flags,
    repeated: bytes,
    known_cas: int = NO_VERSION,
) -> MetaReply:
    """Return what the reply needs, with the flags that it repeats."""
    return MetaReply(
        encode,
        tuple(word for word in flags.words if word[0] in repeated),
        flags.has("b"),
        flags.has("q"),
        known_cas,
    )


# --- Replies -------------------------------------------------------------------------


_NUMBERS: Final[dict[bytes, Callable[[Result], int]]] = {
    b"t": lambda result: result.ttl,
    b"c": lambda result: result.record.stored_us if result.record else 0,
    b"f": lambda result: result.record.flags if result.record else 0,
    b"h": lambda result: result.idle >= 0,
    b"l": lambda result: max(0, result.idle),
}


def _repeat(reply: MetaReply, key: bytes, result: Result, *, value_size: int) -> bytes:
    """Return the flags of a reply, each with a space before it."""
    parts: list[bytes] = []
    for word in reply.words:
        letter = word[:1]
        if letter == b"O":
            parts.append(b" " + word)
        elif letter == b"k":
            parts.append(b" k" + _encode_key(key) if reply.is_base64 else b" k" + key)
        elif letter == b"s":
            parts.append(b" s%d" % value_size)
        elif letter in _NUMBERS:
            parts.append(b" %b%d" % (letter, _NUMBERS[letter](result)))
    return b"".join(parts)


def _encode_key(key: bytes) -> bytes:
    return b2a_base64(key, newline=False) + b" b"


def _repeat_opaque_and_key(reply: MetaReply, key: bytes) -> bytes:
    """Return the flags of a reply without a record."""
    words = tuple(word for word in reply.words if word[:1] in b"Ok")
    return _repeat(reply._replace(words=words), key, Result(Status.MISS), value_size=0)


def _encode_get(reply: MetaReply, command: Get, result: Result) -> bytes:
    record = result.record
    if result.status is Status.MISS:
        if reply.is_quiet:
            return b""
        return b"EN%b\r\n" % _repeat_opaque_and_key(reply, command.key)
    if result.status is not Status.HIT or record is None:
        return failure(result)
    flags = _repeat(reply, command.key, result, value_size=record.length)
    if result.token:
        flags += b" " + result.token
    if not command.wants_value or record.stored_us == reply.known_cas:
        return b"HD%b\r\n" % flags
    value = record.value
    return b"VA %d%b\r\n%b\r\n" % (len(value), flags, value)


_STORED: Final = {
    Status.STORED: b"HD",
    Status.NOT_STORED: b"NS",
    Status.EXISTS: b"EX",
    Status.NOT_FOUND: b"NF",
    Status.DELETED: b"HD",
}


def _encode_put(reply: MetaReply, command: Put, result: Result) -> bytes:
    code = _STORED.get(result.status)
    if code is None:
        is_sum = command.mode in {"append", "prepend"} and not command.is_too_large
        if result.status is not Status.TOO_LARGE or not is_sum:
            return failure(result)
        code = b"NS"
    if code == b"HD" and reply.is_quiet:
        return b""
    record = result.record
    size = len(command.value) if record is None else record.length
    return b"%b%b\r\n" % (code, _repeat(reply, command.key, result, value_size=size))


def _encode_delete(reply: MetaReply, command: Delete, result: Result) -> bytes:
    code = _STORED.get(result.status)
    if code is None:
        return failure(result)
    if code == b"HD" and reply.is_quiet:
        return b""
    return b"%b%b\r\n" % (code, _repeat_opaque_and_key(reply, command.key))


def _encode_arithmetic(reply: MetaReply, command: Arithmetic, result: Result) -> bytes:
    code = _STORED.get(result.status)
    if code is None:
        return failure(result)
    if code != b"HD":
        return b"%b%b\r\n" % (code, _repeat_opaque_and_key(reply, command.key))
    if reply.is_quiet:
        return b""
    value = b"%d" % result.number
    flags = _repeat(reply, command.key, result, value_size=0)
    if any(word[:1] == b"v" for word in reply.words):
        return b"VA %d%b\r\n%b\r\n" % (len(value), flags, value)
    return b"HD%b\r\n" % flags


def _encode_debug(reply: MetaReply, command: Get, result: Result) -> bytes:
    record = result.record
    if result.status is Status.MISS:
        return b"EN\r\n"
    if result.status is not Status.HIT or record is None:
        return failure(result)
    key = command.key
    if reply.is_base64:
        key = b2a_base64(key, newline=False)
    expires = -1 if result.ttl < 0 else -result.ttl
    return b"ME %b exp=%d cas=%d size=%d\r\n" % (
        key,
        expires,
        record.stored_us,
        record.size,
    )


# --- Commands ------------------------------------------------------------------------


def parse_get(words: list[bytes]) -> Command:
    """Parse "mg KEY FLAGS"."""
    wrong = _check(words, b"CLIENT_ERROR options flags are too long")
    if wrong is not None:
        return wrong
    try:
        flags = _read_flags(words[1], words[2:])
    except BadFlagsError as error:
        return answer_error("mg", error.line)
    exptime = flags.get("T")
    vivify = flags.get("N")
    if flags.is_before("N", "T"):  # The later one counts.
        vivify = exptime
    return Get(
        "mg",
        flags.key,
        exptime,
        flags.has("v"),
        _reply(_encode_get, flags, b"Oktscfhl", flags.get("C", NO_VERSION)),
        is_peek=flags.has("u"),
        is_meta=True,
        vivify=vivify,
        recache=flags.get("R"),
        is_recache_late=flags.is_before("T", "R"),
        ttl=_wanted_ttl(flags, "TN"),
    )


def parse_put(
    words: list[bytes],
) -> tuple[int, Command, Put | None]:
    """
    Parse "ms KEY LENGTH FLAGS".

    Returns:
        How many bytes the value has, below 0 if none is to be read. What to answer if it
        is not to be stored or no line end follows it. What to execute, without its
        value; None to skip the value.
    """
    if len(words) < 3:  # noqa: PLR2004
        line = b"ERROR" if len(words) < 2 else BAD_FORMAT  # noqa: PLR2004
        return -1, answer_error("ms", line), None
    size = signed(words[2])
    if size is None or size < 0:
        return -1, answer_error("ms", BAD_FORMAT), None
    wrong = _check(words, b"CLIENT_ERROR options flags too long")
    if wrong is not None:
        return size, wrong, None
    try:
        flags = _read_flags(words[1], words[3:])
    except BadFlagsError as error:
        return size, answer_error("ms", error.line), None
    mode = _MODES.get(flags.get("M", b"S"))
    if mode is None:
        line = b"CLIENT_ERROR invalid mode for ms M token"
        return size, answer_error("ms", line), None
    put = Put(
        "ms",
        flags.key,
        mode,
        b"",
        flags.get("F", 0),
        flags.get("T", 0),
        # As in memcached, "add" ignores it, and no version is 0.
        0 if mode == "add" else _expected_cas(flags, mode),
        _reply(_encode_put, flags, b"Okcs"),
        flags.get("N") if mode in {"append", "prepend"} else None,
    )
    return size, answer_error("ms", b"CLIENT_ERROR bad data chunk"), put


def _expected_cas(flags: Flags, mode: Mode) -> int:
    cas: int | None = flags.get("C")
    if cas is None:
        return 0
    if not cas and mode in {"set", "replace"}:
        return NO_VERSION
    return cas


def parse_delete(words: list[bytes]) -> Command:
    """Parse "md KEY FLAGS"."""
    wrong = _check(words, b"CLIENT_ERROR options flags too long")
    if wrong is not None:
        return wrong
    try:
        flags = _read_flags(words[1], words[2:])
    except BadFlagsError as error:
        return answer_error("md", _delete_line(error))
    cas = flags.get("C")
    return Delete(
        "md",
        flags.key,
        0 if cas is None else cas or NO_VERSION,
        _reply(_encode_delete, flags, b"Ok"),
    )


def parse_arithmetic(words: list[bytes]) -> Command:
    """Parse "ma KEY FLAGS"."""
    wrong = _check(words, b"CLIENT_ERROR options flags too long")
    if wrong is not None:
        return wrong
    try:
        flags = _read_flags(words[1], words[2:])
    except BadFlagsError as error:
        return answer_error("ma", _delete_line(error))
    is_decrement = _IS_DECREMENT.get(flags.get("M", b"I"))
    if is_decrement is None:
        return answer_error("ma", b"CLIENT_ERROR invalid mode for ma M token")
    exptime = flags.get("T")
    initial_exptime = flags.get("N", 0)
    if exptime is not None and not flags.is_before("T", "N"):  # The later one counts.
        initial_exptime = exptime
    return Arithmetic(
        "ma",
        flags.key,
        flags.get("D", 1),
        is_decrement,
        flags.get("J", 0) if flags.has("N") else None,
        initial_exptime,
        exptime,
        flags.get("C", 0),
        _reply(_encode_arithmetic, flags, b"Oktcv"),
        _wanted_ttl(flags, "TN"),
    )


def _delete_line(error: BadFlagsError) -> bytes:
    """Return the line of an error of "md" and "ma", which name few errors."""
    if error.line.startswith(b"CLIENT_ERROR opaque"):
        return error.line
    return _INVALID_OR_DUPLICATE


def parse_debug(words: list[bytes]) -> Command:
    """Parse "me KEY"."""
    if len(words) < 2 or len(words[1]) > KEY_BYTES_MAX:  # noqa: PLR2004
        return answer_error("me", BAD_FORMAT)
    key = words[1]
    is_base64 = len(words) > 2 and words[2] == b"b"  # noqa: PLR2004
    if is_base64:
        try:
            key = _decode_key(key)
        except BadFlagsError:
            return answer_error("me", BAD_FORMAT)
    reply = MetaReply(_encode_debug, is_base64=is_base64)
    return Get("me", key, None, wants_value=False, reply=reply, is_peek=True)


def parse_nothing(_words: list[bytes]) -> Command:
    """Parse "mn"."""
    return answer_line("mn", b"MN")


def _check(words: list[bytes], too_many: bytes) -> Simple | None:
    """Return the error of a line that has no key, a long one or too many flags."""
    name = words[0].decode()
    if len(words) < 2:  # noqa: PLR2004
        return answer_error(name, b"ERROR")
    if len(words[1]) > KEY_BYTES_MAX:
        return answer_error(name, BAD_FORMAT)
    if len(words) > _WORDS_MAX:
        return answer_error(name, too_many)
    return None


def _wanted_ttl(flags: Flags, changing: str) -> TtlWanted:
    """Return which time to live "t" asks for: flags take effect in their order."""
    if not flags.has("t"):
        return ""
    is_before = any(flags.is_before("t", letter) for letter in changing)
    return "before" if is_before else "after"
