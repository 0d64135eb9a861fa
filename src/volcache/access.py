"""Who may do what, and what is stored, for HTTP and the memcached protocol alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from volcache.tokens import Token

if TYPE_CHECKING:
    from volcache.keys import Query
    from volcache.tokens import Kind


class Limits(NamedTuple):
    """What clients may store; as in the settings."""

    key_size: int  # bytes
    value_size: int  # bytes
    query: Query = "ignore"  # of HTTP
    default_ttl: int = 0  # seconds; 0 = values do not expire
    max_ttl: int = 0  # seconds; 0 = no limit


class Access:
    """The tokens in effect, and what the one that a client gave allows."""

    def __init__(self, *, read: str = "", write: str = "") -> None:
        """
        Use tokens.

        Args:
            read: Needed to read; empty = everyone may. The one for writing will do, too.
            write: Needed to write; empty = everyone may.
        """
        read_token, write_token = Token(read), Token(write)
        # The right ones, by what is wanted; none: everyone may.
        self._tokens: dict[Kind, list[Token]] = {
            "read": [read_token, write_token] if read else [],
            "write": [write_token] if write else [],
        }
        self.needs_token = bool(read or write)

    def allows(self, kind: Kind, given: bytes | None) -> bool:
        """Return whether a client may do something with the token that it gave."""
        tokens = self._tokens[kind]
        if not tokens:
            return True
        return given is not None and any(token.is_equal(given) for token in tokens)

    def forms(self, kind: Kind) -> list[bytes]:
        """Return what is right, as bytes that clients send; empty = everyone may."""
        return [form for token in self._tokens[kind] for form in token.forms]

    def is_right(self, given: bytes) -> bool:
        """Return whether this is one of the tokens; without tokens, all are."""
        return self.allows("read" if self._tokens["read"] else "write", given)
