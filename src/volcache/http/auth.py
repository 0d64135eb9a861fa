"""
Tokens: which requests may read and write, and what becomes of the others.

A client sends a token as `Authorization: Bearer TOKEN`, or as the password of `Basic`,
with any user: build tools have no other field for it. Tokens are compared as bytes, in
constant time. They are in no log line and in no answer.

`TokenCheck` wraps the application only if a token is set, so that it costs nothing if none
is. The token of the operator is checked in `admin.py`: by `Bearer` alone, because browsers
add `Basic` to requests that other sites make them send.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from binascii import a2b_base64
from collections import OrderedDict
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, Literal

from volcache.http.responses import text_response
from volcache.keys import RESERVED_PREFIX
from volcache.monitoring.requests import REFUSED_KINDS
from volcache.text import escape_header, escape_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.http.app import App
    from volcache.http.native_app import WsgiApp
    from volcache.monitoring.requests import RequestStats

_logger: Final = logging.getLogger(__name__)

# Read by clients in this order; some know the first only, and that is never Bearer.
CHALLENGES: Final = (
    ("WWW-Authenticate", 'Basic realm="volcache", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="volcache"'),
)
_READS: Final = frozenset({"GET", "HEAD", "PROPFIND"})
_PATH_LENGTH_MAX: Final = 200  # characters of a line
_FIELD_LENGTH_MAX: Final = 60
LOG_SECONDS: Final = 10.0
GUESSES_MAX: Final = 10
GUESS_SECONDS: Final = 60.0
ADDRESSES_MAX: Final = 1024
_NETWORK_BITS: Final = 64  # of IPv6: what one client has

Kind = Literal["read", "write", "admin"]


class Token:
    """A token, for comparison with what clients send; empty = none is right."""

    def __init__(self, text: str) -> None:
        """Accept the text as UTF-8, and as latin-1 if possible: clients send either."""
        forms = [text.encode("utf-8", "surrogateescape")] if text else []
        if text and not text.isascii() and max(text) <= "\xff":
            forms.append(text.encode("latin-1"))
        self._forms = forms

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._forms)

    def is_equal(self, given: bytes) -> bool:
        """Compare, in a time that does not depend on what is right."""
        return any(hmac.compare_digest(given, form) for form in self._forms)


def bearer_token(environ: WSGIEnvironment) -> bytes | None:
    """Return the token of a `Bearer`; None without one, empty if it is unusable."""
    return _token_of(environ, {"bearer"})


def given_token(environ: WSGIEnvironment) -> bytes | None:
    """Return the token of a request; None without one, empty if it is unusable."""
    return _token_of(environ, {"bearer", "basic"})


def _token_of(environ: WSGIEnvironment, schemes: set[str]) -> bytes | None:
    text: str = environ.get("HTTP_AUTHORIZATION", "")
    scheme, _, rest = text.partition(" ")
    scheme, rest = scheme.lower(), rest.strip(" \t")
    if scheme not in schemes:
        return b"" if text else None
    try:
        if scheme == "bearer":
            return rest.encode("latin-1")
        _, _, password = a2b_base64(rest, strict_mode=True).partition(b":")
    except ValueError:
        return b""
    return password


class Refusals:
    """Counts requests that are refused for their token, and logs some of them."""

    def __init__(
        self, stats: RequestStats, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Begin.

        Args:
            stats: Its `refused` is counted.
            clock: Seconds, monotonic.
        """
        self._counts = stats.refused
        self._clock = clock
        self._logged = dict.fromkeys(REFUSED_KINDS, -math.inf)
        self._left_out = dict.fromkeys(REFUSED_KINDS, 0)

    def add(self, kind: Kind, reason: str, environ: WSGIEnvironment) -> None:
        """
        Count a request, and log it unless one of its kind was logged lately.

        Args:
            kind: What it wanted.
            reason: Why it was refused, in one word.
            environ: The request.
        """
        self._counts[kind] += 1
        now = self._clock()
        if now - self._logged[kind] < LOG_SECONDS:
            self._left_out[kind] += 1
            return
        left_out, self._left_out[kind] = self._left_out[kind], 0
        self._logged[kind] = now
        _logger.warning(
            "request.unauthorized kind=%s reason=%s address=%s forwarded=%r method=%s"
            " path=%s left_out=%d",
            kind,
            reason,
            escape_path(environ.get("REMOTE_ADDR", ""), _FIELD_LENGTH_MAX) or "-",
            escape_header(environ.get("HTTP_X_FORWARDED_FOR", ""), _FIELD_LENGTH_MAX),
            escape_path(environ.get("REQUEST_METHOD", ""), _FIELD_LENGTH_MAX) or "-",
            escape_path(environ.get("PATH_INFO", ""), _PATH_LENGTH_MAX) or "-",
            left_out,
        )


class GuessLimit:
    """
    Limits how often a client may send a wrong token; others are not affected.

    Clients are told apart by their address, those of IPv6 by its network. Only the
    `ADDRESSES_MAX` of them that began to guess last are remembered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin; the clock has seconds and is monotonic."""
        self._clock = clock
        # The end of a period and the wrong tokens in it, in the order of the ends.
        self._periods: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many clients are remembered."""
        return len(self._periods)

    def seconds_left(self, address: str) -> int:
        """Return for how long tokens are not compared; 0 if they are."""
        end, guesses = self._periods.get(_client_of(address), (0.0, 0))
        left = end - self._clock()
        return math.ceil(left) if guesses >= GUESSES_MAX and left > 0 else 0

    def add(self, address: str) -> None:
        """Count a wrong token."""
        client, now = _client_of(address), self._clock()
        end, guesses = self._periods.get(client, (0.0, 0))
        if end <= now:
            end, guesses = now + GUESS_SECONDS, 0
            self._periods.pop(client, None)
        self._periods[client] = end, guesses + 1
        if len(self._periods) > ADDRESSES_MAX:
            self._periods.popitem(last=False)


def _client_of(address: str) -> str:
    """Return what a client cannot change about its address."""
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address) or found.ipv4_mapped:
        return str(getattr(found, "ipv4_mapped", found))
    return f"{int(found) >> _NETWORK_BITS:x}"


class TokenCheck:
    """Wraps an application and refuses requests for keys without the right token."""

    def __init__(
        self, wrapped: WsgiApp, app: App, refusals: Refusals, *, read: str, write: str
    ) -> None:
        """
        Wrap an application.

        Args:
            wrapped: Answers the other requests; must not raise, neither does the wrapper.
            app: Sends and counts the refusals.
            refusals: Counts and logs them.
            read: The token for reading; empty = everyone may. The one for writing will
                do, too.
            write: The token for writing; empty = everyone may.
        """
        self._wrapped = wrapped
        self._app = app
        self._refusals = refusals
        read_token, write_token = Token(read), Token(write)
        self._read_tokens = [read_token, write_token] if read else []
        self._write_tokens = [write_token] if write else []

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        method: str = environ.get("REQUEST_METHOD", "")
        is_read = method in _READS
        tokens = self._read_tokens if is_read else self._write_tokens
        # Load balancers and browsers send OPTIONS without a token; it tells nothing.
        if (
            not tokens
            or method == "OPTIONS"
            or environ.get("PATH_INFO", "")[:3] == RESERVED_PREFIX
        ):
            return self._wrapped(environ, start_response)
        given = given_token(environ)
        if given and any(token.is_equal(given) for token in tokens):
            return self._wrapped(environ, start_response)
        reason = "missing" if given is None else "wrong"
        self._refusals.add("read" if is_read else "write", reason, environ)
        what = (
            "reading needs the read_token"
            if is_read
            else "writing needs the write_token"
        )
        response = text_response(
            HTTPStatus.UNAUTHORIZED,
            f"{what}; send Authorization: Bearer <token>, or Basic with it as the password",
            *CHALLENGES,
        )
        return self._app.send(method, response, start_response)
