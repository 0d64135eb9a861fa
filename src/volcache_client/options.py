"""Options of both clients, with their defaults and limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from volcache_client.errors import InvalidArgumentError, InvalidKeyError
from volcache_client.keys import checked_ttl, encode_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from volcache_client.nodes import NodeEvent

OnError = Literal["raise", "miss"]
WritesWhenDown = Literal["raise", "drop"]


class OptionArguments(TypedDict, total=False):
    """The same as `Options`, for the signatures of the clients."""

    token: str
    admin_token: str
    signing_key: str
    ssl_context: ssl.SSLContext | None
    connect_timeout: float
    timeout: float
    connections_max: int
    max_value_size: int
    prefix: str
    default_ttl: float | timedelta | None
    on_error: OnError
    writes_when_down: WritesWhenDown | None
    failures: int
    backoff: tuple[float, float]
    probe_timeout: float
    refresh_seconds: float
    lease_seconds: float
    batch: bool
    on_event: Callable[[NodeEvent], object] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """
    Options of a client.

    Attributes:
        token: Sent as `Authorization: Bearer`; empty = none.
        admin_token: For `purge`.
        signing_key: Of `serializer="pickle"`, a secret.
        ssl_context: For https; None = the default of Python: certificates of the system.
        connect_timeout: For a connection, seconds.
        timeout: For an operation with one request, connection included, seconds; of a
            stream, between two parts.
        connections_max: Connections to one node; they are opened when they are needed, and
            kept. Further operations wait for one, at most `timeout`.
        max_value_size: Bytes of a value that is read, but not by `stream`; a longer one
            is a `ValueTooLargeError` before it is in memory.
        prefix: Put before each key.
        default_ttl: Seconds until a value expires, if its `put` does not say; None = as the
            service decides.
        on_error: "miss": an outage is a miss, or a write that returns None; see
            `errors.py`. "raise": it is raised.
        writes_when_down: While a node is down, a write is an error ("raise") or returns
            None ("drop"). None: as `on_error`.
        failures: Failures in a row after which a node is down.
        backoff: The first and the longest time for which a node is down, seconds; it
            doubles with each failure.
        probe_timeout: For the answer to `/-/ready` of a node that was down, seconds.
        refresh_seconds: How long a list of nodes from a file or a function is used.
        lease_seconds: How long others wait for the one that makes a value in `get_or_set`,
            whole seconds; afterwards another one makes it.
        batch: Of AsyncClient: what tasks `get` in one turn of the loop is sent in a row.
        on_event: Called with changes of the nodes, one at a time and in their order, in a
            thread or task that notices one; what it raises is logged and ignored.
    """

    # Not in its repr, which may be logged.
    token: str = field(default="", repr=False)
    admin_token: str = field(default="", repr=False)
    signing_key: str = field(default="", repr=False)
    ssl_context: ssl.SSLContext | None = None
    connect_timeout: float = 0.5
    timeout: float = 2.0
    connections_max: int = 32
    max_value_size: int = 64 << 20
    prefix: str = ""
    default_ttl: float | timedelta | None = None
    on_error: OnError = "raise"
    writes_when_down: WritesWhenDown | None = None
    failures: int = 3
    backoff: tuple[float, float] = (0.5, 30.0)
    probe_timeout: float = 0.5
    refresh_seconds: float = 10.0
    lease_seconds: float = 10.0
    batch: bool = False
    on_event: Callable[[NodeEvent], object] | None = None

    def __post_init__(self) -> None:
        """
        Check the values.

        Raises:
            InvalidArgumentError: One is wrong; the text names it and what is allowed.
        """
        for names, is_allowed, allowed in _RULES:
            for name in names:
                value = getattr(self, name)
                if not is_allowed(value):
                    shown = f": a {type(value).__name__} that is not shown"
                    shown = shown if name in _SECRET else f"={value!r}"
                    raise InvalidArgumentError(f"{name}{shown}; allowed: {allowed}")
        if self.default_ttl is not None:
            checked_ttl(self.default_ttl, "default_ttl")
        try:
            encode_key(f"{self.prefix}x")
        except InvalidKeyError as error:
            raise InvalidArgumentError(
                f"prefix={self.prefix!r}: it makes a bad key: {error}"
            ) from None

    @property
    def drops_writes(self) -> bool:
        """Whether a write to a node that is down returns None."""
        if self.writes_when_down is None:
            return self.on_error == "miss"
        return self.writes_when_down == "drop"


def _is_time(value: Any) -> bool:  # noqa: ANN401 - It is checked.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and bool(0 < value <= _SECONDS_MAX)


def _is_backoff(value: Any) -> bool:  # noqa: ANN401 - It is checked.
    is_pair = isinstance(value, tuple) and len(value) == 2  # noqa: PLR2004
    return is_pair and all(map(_is_time, value)) and value[0] <= value[1]


def _is_token(value: Any) -> bool:  # noqa: ANN401 - It is checked.
    is_text = isinstance(value, str) and value.isascii() and value.isprintable()
    return is_text and " " not in value


_SECRET: Final = ("token", "admin_token", "signing_key")  # Not shown.
_SECONDS_MAX: Final = 1e9
_TIME: Final = "seconds above 0 and up to 1e9"
_RULES: Final[tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...]] = (
    (("connect_timeout", "timeout", "probe_timeout", "refresh_seconds", "lease_seconds"),
     _is_time, _TIME),
    (("lease_seconds",), lambda value: value >= 1, "numbers from 1"),
    (("connections_max", "failures", "max_value_size"),
     lambda value: type(value) is int and value > 0,
     "integers from 1"),
    (("on_error",), lambda value: value in ("raise", "miss"), "'raise', 'miss'"),
    (("writes_when_down",), lambda value: value in (None, "raise", "drop"),
     "None, 'raise', 'drop'"),
    (("backoff",), _is_backoff,
     "a tuple of two times up to 1e9, such as (0.5, 30.0), the second not below the first"),
    (("ssl_context",), lambda value: isinstance(value, ssl.SSLContext | None),
     "an ssl.SSLContext, and None"),
    (("batch",), lambda value: isinstance(value, bool), "True, False"),
    (("on_event",), lambda value: value is None or callable(value),
     "a function, and None"),
    (("prefix", "signing_key"), lambda value: isinstance(value, str), "text"),
    (("token", "admin_token"), _is_token, "text of printable ASCII without spaces"),
)  # fmt: skip


def make_options(arguments: OptionArguments) -> Options:
    """
    Return the options given by keyword.

    Raises:
        InvalidArgumentError: One is unknown or wrong.
    """
    known = [option.name for option in fields(Options)]
    for name in arguments:
        if name not in known:
            from difflib import get_close_matches  # noqa: PLC0415 - For errors only.

            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidArgumentError(
                f"unknown option {name}{hint}; the options are {', '.join(known)}"
            )
    return Options(**arguments)
