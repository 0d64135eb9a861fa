"""
Tokens: comparing them, and what becomes of wrong ones; for HTTP and memcached alike.

Tokens are compared as bytes, in constant time. They are in no log line and in no answer.
"""

from __future__ import annotations

import hmac
import logging
import math
import threading
import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, Literal

from volcache.text import escape_header, escape_path

if TYPE_CHECKING:
    from collections.abc import Callable

_logger: Final = logging.getLogger(__name__)

_PATH_LENGTH_MAX: Final = 200  # characters of a line
_FIELD_LENGTH_MAX: Final = 60
# Begins the text of an answer to one that is wrong.
WRONG_TOKEN: Final = "the token is wrong: "  # noqa: S105 - A text.
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
        self.forms: Final = forms

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self.forms)

    def is_equal(self, given: bytes) -> bool:
        """Compare, in a time that does not depend on what is right."""
        return any(hmac.compare_digest(given, form) for form in self.forms)


class Refusals:
    """
    Counts requests that are refused for their token, and logs some of them.

    Any thread may use it.
    """

    def __init__(
        self, counts: dict[str, int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Begin.

        Args:
            counts: What is counted, by what was wanted; changed.
            clock: Seconds, monotonic.
        """
        self._counts = counts
        self._clock = clock
        self._lock = threading.Lock()
        self._logged = dict.fromkeys(counts, -math.inf)
        self._left_out = dict.fromkeys(counts, 0)

    def add(
        self,
        kind: Kind,
        reason: str,
        *,
        address: str,
        method: str,
        path: str,
        forwarded: str = "",
    ) -> None:
        """
        Count a request, and log it unless one of its kind was logged lately.

        Args:
            kind: What it wanted.
            reason: Why it was refused, in one word.
            address: Of the client.
            method: Of the request, or the command.
            path: Or the key; one character per byte.
            forwarded: What the client claims about its address.
        """
        now = self._clock()
        with self._lock:
            self._counts[kind] += 1
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
            escape_path(address, _FIELD_LENGTH_MAX) or "-",
            escape_header(forwarded, _FIELD_LENGTH_MAX),
            escape_path(method, _FIELD_LENGTH_MAX) or "-",
            escape_path(path, _PATH_LENGTH_MAX) or "-",
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
