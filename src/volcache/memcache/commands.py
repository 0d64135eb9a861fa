"""
Commands and results: what is between the protocols and the executor.

A protocol makes one of these commands from what a client sent. The executor returns a
result, from which the protocol makes the reply. Neither knows the other. A command for
several keys becomes a command for each, so that only one value at a time is in memory.

`name` is the command as memcached's text protocol calls it, for metrics and logs; `reply`
makes the bytes of the reply from the command and its result. The executor uses neither.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from volcache.store import Record

# What clients get for "version": the one that is followed. They compare it with versions of
# memcached, and some take the numbers after its last "-" for it.
VERSION: Final = "1.6.18"
# Sizes that memcached allows.
KEY_BYTES_MAX: Final = 250
NUMBER_MAX: Final = 2**64 - 1
# Times to live up to this are from now; longer ones are seconds since the epoch.
RELATIVE_SECONDS_MAX: Final = 60 * 60 * 24 * 30

# Whether `Result.ttl` is wanted: as it was before or is after the command.
TtlWanted = Literal["", "before", "after"]
Mode = Literal["set", "add", "replace", "append", "prepend"]
EDITS: Final = ("append", "prepend")


class Encoder(Protocol):
    """Makes the bytes of a reply."""

    def __call__(self, command: Any, result: Result, /) -> bytes:  # noqa: ANN401
        """Return the reply to a command; empty for none."""


class WireLimits(NamedTuple):
    """What is read from a connection; as in the settings."""

    key_size: int  # bytes
    value_size: int  # bytes; longer values are skipped


def silent(_command: Command, _result: Result) -> bytes:
    """Answer nothing, as memcached does after "noreply"."""
    return b""


class Get(NamedTuple):
    """Return a record: `Result(HIT, record)` or `Result(MISS)`."""

    name: str
    key: bytes
    exptime: int | None = None  # Set the time to live, as "gat" does.
    wants_value: bool = True  # Without, the value of the record may be empty.
    reply: Encoder = silent
    is_peek: bool = False  # It is not counted as a read of the record.
    # Of the meta commands only.
    vivify: int | None = None  # Store an empty value for this time if there is none.
    recache: int | None = None  # Win if the record expires within this time.
    is_recache_late: bool = False  # It counts from `exptime`.
    ttl: TtlWanted = ""


class Put(NamedTuple):
    """
    Store a value: STORED with the record, NOT_STORED, EXISTS or NOT_FOUND.

    "append" and "prepend" keep flags and expiry of the record there is. With a `cas`
    other than 0, the value is stored only if it is the version of the record there is.
    """

    name: str
    key: bytes
    mode: Mode
    value: bytes
    flags: int = 0
    exptime: int = 0
    cas: int = 0
    reply: Encoder = silent
    # With "append" and "prepend": store the value if there is none ("N" of "ms").
    vivify: int | None = None
    # The value was longer than the limit and is not here: TOO_LARGE, and "set" deletes
    # the record there is, so that no client gets the value that was to be replaced.
    is_too_large: bool = False


class Arithmetic(NamedTuple):
    """
    Add to a number, or subtract.

    STORED with the record and its number, NON_NUMERIC, EXISTS or NOT_FOUND. A sum above
    64 bits wraps around; a difference below 0 is 0.
    """

    name: str
    key: bytes
    delta: int
    is_decrement: bool = False
    initial: int | None = None  # Store this number if there is none; None: do not.
    initial_exptime: int = 0
    exptime: int | None = None  # Set the time to live, as "T" of "ma" does.
    cas: int = 0
    reply: Encoder = silent
    ttl: TtlWanted = ""


class Delete(NamedTuple):
    """Delete a key: DELETED, EXISTS (of another version) or NOT_FOUND."""

    name: str
    key: bytes
    cas: int = 0
    reply: Encoder = silent


class Touch(NamedTuple):
    """Set the time to live: TOUCHED with the record or NOT_FOUND."""

    name: str
    key: bytes
    exptime: int
    reply: Encoder = silent


class FlushAll(NamedTuple):
    """
    Make everything stored before a time a miss: OK or FORBIDDEN.

    The time is in `exptime` seconds, or a time since the epoch, as with `Put`.
    """

    name: str
    exptime: int = 0
    reply: Encoder = silent


class Statistics(NamedTuple):
    """Return statistics: OK with `pairs`, or NOT_FOUND for an unknown argument."""

    name: str
    argument: bytes = b""
    reply: Encoder = silent


class Authenticate(NamedTuple):
    """Check a user's token: AUTHENTICATED or DENIED. The user may be any."""

    name: str
    user: bytes
    password: bytes
    reply: Encoder = silent


class Simple(NamedTuple):
    """
    Do nothing in the cache: OK.

    For "version", "verbosity", "mn", the end of a command for several keys, and errors
    that the protocol has found: whatever the protocol answers by itself. `is_error` is
    for metrics. After "quit", or an error after which nothing can be understood, the
    connection is closed when `reply` was sent.
    """

    name: str
    reply: Encoder = silent
    is_error: bool = False
    closes: bool = False


Command = (
    Get
    | Put
    | Arithmetic
    | Delete
    | Touch
    | FlushAll
    | Statistics
    | Authenticate
    | Simple
)


class Status(Enum):
    """What became of a command; the values are those of the metrics."""

    HIT = "hit"
    MISS = "miss"
    STORED = "stored"
    NOT_STORED = "not_stored"
    EXISTS = "exists"
    NOT_FOUND = "not_found"
    NON_NUMERIC = "non_numeric"
    DELETED = "deleted"
    TOUCHED = "touched"
    OK = "ok"
    AUTHENTICATED = "authenticated"
    DENIED = "denied"  # A wrong token.
    UNAUTHORIZED = "unauthorized"  # The command needs a token.
    FORBIDDEN = "forbidden"  # The settings do not allow it.
    BAD_KEY = "bad_key"  # No key over HTTP; only for what stores.
    TOO_LARGE = "too_large"
    FAILED = "failed"  # The disk refused; `text` says why.


class Result(NamedTuple):
    """What became of a command."""

    status: Status
    record: Record | None = None  # Its `stored_us` is the cas unique.
    number: int = 0  # of `Arithmetic`
    text: str = ""  # of BAD_KEY, FORBIDDEN and FAILED: one line without a line end
    pairs: tuple[tuple[str, str], ...] = ()  # of `Statistics`
    ttl: int = 0  # seconds until the record expires, at least 0; -1 = it does not
    # Of `Get`: b"W" if the client has won the right to store a new value,
    # b"Z" if another has, or empty.
    token: bytes = b""
    idle: int = -1  # seconds since the record was read last; -1 = unknown
