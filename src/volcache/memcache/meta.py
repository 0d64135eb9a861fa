"""
The meta commands of memcached's text protocol: mg, ms, md, ma, me and mn.

A command is two letters, a key and flags: words whose first letter says what they are. See
the section "Meta Commands" of memcached's protocol.txt.

Accepted are the flags whose meaning the store can keep. A stale mark (`I`) and a cas unique
of the client's choice (`E`) are not stored in a record, so these flags are refused.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.memcache.commands import (
    EDITS,
    Arithmetic,
    Command,
    Delete,
    Get,
    Mode,
    Put,
    TtlWanted,
)
from volcache.memcache.replies import NO_VERSION, MetaReply
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
    signed,
    size_of,
    unsigned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_OPAQUE_BYTES_MAX: Final = 32  # with its letter
# Words of a line, with the command.
_WORDS_MAX: Final = 19
_ASCII_MAX: Final = b"~"

_MODES: Final[dict[bytes, Mode]] = {
    b"S": "set",
    b"E": "add",
    b"R": "replace",
    b"A": "append",
    b"P": "prepend",
}
_IS_DECREMENT: Final = {b"I": False, b"+": False, b"D": True, b"-": True}

_BAD_TOKEN: Final = b"CLIENT_ERROR bad token in command line format"
_INVALID_OR_DUPLICATE: Final = b"CLIENT_ERROR invalid or duplicate flag"
_BAD_MS_CHUNK: Final = answer_error("ms", BAD_CHUNK)


class Flags(NamedTuple):
    """The flags of a command."""

    key: bytes
    words: list[bytes]
    given: dict[bytes, Any]  # what follows a letter, or empty, by letter

    def get(self, letter: bytes, default: Any = None) -> Any:  # noqa: ANN401
        """Return what follows a letter."""
        return self.given.get(letter, default)

    def is_before(self, first: bytes, second: bytes) -> bool:
        """Whether two flags were given, in this order."""
        given = self.given
        if first not in given or second not in given:
            return False
        return next(letter for letter in given if letter in {first, second}) == first

    def reply(self, repeated: bytes, known_cas: int = NO_VERSION) -> MetaReply:
        """Return the reply, with the flags that it repeats."""
        words = tuple(word for word in self.words if word[:1] in repeated)
        return MetaReply(words, b"b" in self.given, b"q" in self.given, known_cas)

    @property
    def wanted_ttl(self) -> TtlWanted:
        """Which time to live "t" asks for: flags take effect in their order."""
        if b"t" not in self.given:
            return ""
        is_before = self.is_before(b"t", b"T") or self.is_before(b"t", b"N")
        return "before" if is_before else "after"


# --- Flags ---------------------------------------------------------------------------


def _mode(text: bytes) -> bytes | None:
    return text if len(text) == 1 else None


def _decoded(key: bytes) -> bytes | None:
    try:
        return a2b_base64(key, strict_mode=True) or None
    except Base64Error:
        return None


# What reads the text after a letter, and the error if it cannot.
_READERS: Final[dict[bytes, tuple[Callable[[bytes], Any], bytes]]] = {
    # As in memcached, what follows these is ignored.
    **{b"%c" % letter: (bool, b"") for letter in b"kstcfhlvuqOPL"},
    b"b": (_decoded, b"CLIENT_ERROR error decoding key"),  # It reads the key.
    b"N": (signed, _BAD_TOKEN),
    b"T": (signed, _BAD_TOKEN),
    b"R": (signed, _BAD_TOKEN),
    b"C": (unsigned, _BAD_TOKEN),
    b"F": (partial(unsigned, largest=FLAGS_MAX), BAD_FORMAT),
    b"M": (_mode, b"CLIENT_ERROR incorrect length for M token"),
    b"J": (unsigned, b"CLIENT_ERROR invalid numeric initial value"),
    b"D": (unsigned, b"CLIENT_ERROR invalid numeric delta value"),
}


def _read_flags(key: bytes, words: list[bytes]) -> tuple[dict[bytes, Any], bytes]:
    """Return what follows the letters, and the error if they cannot be accepted."""
    given: dict[bytes, Any] = {}
    wrong = b""
    for word in words:
        letter = word[:1]
        if letter > _ASCII_MAX or letter in given:
            return given, b"CLIENT_ERROR duplicate flag"
        if letter not in _READERS:
            return given, b"CLIENT_ERROR invalid flag"
        read, error = _READERS[letter]
        given[letter] = read(key if letter == b"b" else word[1:])
        # Of several errors, memcached names the last, and this one only alone.
        if given[letter] is None and (not wrong or error != BAD_FORMAT):
            wrong = error
    return given, wrong


def _flags_of(
    words: list[bytes],
    first: int = 2,
    *,
    too_many: bytes = b"CLIENT_ERROR options flags too long",
    invalid: bytes = b"",
) -> Flags:
    """
    Return the flags of a line.

    Args:
        words: The line.
        first: Which word the first flag is.
        too_many: The error if there are too many words.
        invalid: The error of any flag but an opaque; empty: each has its own.

    Raises:
        LineError: They cannot be accepted.
    """
    if len(words) < 2:  # noqa: PLR2004
        raise LineError(b"ERROR")
    key = checked_key(words[1])
    if len(words) > _WORDS_MAX:
        raise LineError(too_many)
    flags = words[first:]
    given, wrong = _read_flags(key, flags)
    if wrong:
        raise LineError(invalid or wrong)
    if any(word[:1] == b"O" and len(word) > _OPAQUE_BYTES_MAX for word in flags):
        raise LineError(b"CLIENT_ERROR opaque token too long")
    return Flags(given.get(b"b", key), flags, given)


# --- Commands ------------------------------------------------------------------------


@answers_errors
def _parse_get(words: list[bytes]) -> Command:
    flags = _flags_of(words, too_many=b"CLIENT_ERROR options flags are too long")
    exptime = flags.get(b"T")
    vivify = flags.get(b"N")
    if flags.is_before(b"N", b"T"):  # The later one counts.
        vivify = exptime
    return Get(
        "mg",
        flags.key,
        exptime,
        b"v" in flags.given,
        flags.reply(b"Oktscfhl", flags.get(b"C", NO_VERSION)),
        is_peek=b"u" in flags.given,
        vivify=vivify,
        recache=flags.get(b"R"),
        is_recache_late=flags.is_before(b"T", b"R"),
        ttl=flags.wanted_ttl,
    )


@answers_errors
def _parse_put(words: list[bytes]) -> PendingValue:
    if len(words) < 3:  # noqa: PLR2004
        raise LineError(b"ERROR" if len(words) < 2 else BAD_FORMAT)  # noqa: PLR2004
    return PendingValue(size_of(words[2]), _put(words), _BAD_MS_CHUNK)


@answers_errors
def _put(words: list[bytes]) -> Put:
    """Return the command without its value."""
    flags = _flags_of(words, 3)
    mode = _MODES.get(flags.get(b"M", b"S"))
    if mode is None:
        raise LineError(b"CLIENT_ERROR invalid mode for ms M token")
    cas = flags.get(b"C", 0)
    if mode == "add":  # As in memcached, it ignores the version.
        cas = 0
    elif b"C" in flags.given and mode in {"set", "replace"}:
        cas = cas or NO_VERSION
    return Put(
        "ms",
        flags.key,
        mode,
        b"",
        flags.get(b"F", 0),
        flags.get(b"T", 0),
        cas,
        flags.reply(b"Okcs"),
        flags.get(b"N") if mode in EDITS else None,
    )


@answers_errors
def _parse_delete(words: list[bytes]) -> Command:
    flags = _flags_of(words, invalid=_INVALID_OR_DUPLICATE)
    cas = (flags.get(b"C") or NO_VERSION) if b"C" in flags.given else 0
    return Delete("md", flags.key, cas, flags.reply(b"Ok"))


@answers_errors
def _parse_arithmetic(words: list[bytes]) -> Command:
    flags = _flags_of(words, invalid=_INVALID_OR_DUPLICATE)
    is_decrement = _IS_DECREMENT.get(flags.get(b"M", b"I"))
    if is_decrement is None:
        raise LineError(b"CLIENT_ERROR invalid mode for ma M token")
    exptime = flags.get(b"T")
    initial_exptime = flags.get(b"N", 0)
    if exptime is not None and not flags.is_before(b"T", b"N"):  # The later one counts.
        initial_exptime = exptime
    return Arithmetic(
        "ma",
        flags.key,
        flags.get(b"D", 1),
        is_decrement,
        flags.get(b"J", 0) if b"N" in flags.given else None,
        initial_exptime,
        exptime,
        flags.get(b"C", 0),
        flags.reply(b"Oktcv"),
        flags.wanted_ttl,
    )


@answers_errors
def _parse_debug(words: list[bytes]) -> Command:
    key = checked_key(words[1]) if len(words) > 1 else None
    is_base64 = words[2:3] == [b"b"]
    if key and is_base64:
        key = _decoded(key)
    if key is None:
        raise LineError
    reply = MetaReply(is_base64=is_base64, is_debug=True)
    return Get("me", key, None, False, reply, is_peek=True)  # noqa: FBT003


PARSERS: Final[dict[bytes, Callable[[list[bytes]], Command | PendingValue]]] = {
    b"mg": _parse_get,
    b"ms": _parse_put,
    b"md": _parse_delete,
    b"ma": _parse_arithmetic,
    b"me": _parse_debug,
    b"mn": lambda _: answer_line("mn", b"MN"),
}
