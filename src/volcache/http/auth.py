"""
Tokens: which requests may read and write, and what becomes of the others.

A client sends a token as `Authorization: Bearer TOKEN`, or as the password of `Basic`,
with any user: build tools have no other field for it. `tokens.py` compares them.

`TokenCheck` wraps the application only if a token is set, so that it costs nothing if none
is. The token of the operator is checked in `admin.py`: by `Bearer` alone, because browsers
add `Basic` to requests that other sites make them send.
"""

from __future__ import annotations

from binascii import a2b_base64
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.http.responses import text_response
from volcache.keys import RESERVED_PREFIX
from volcache.tokens import WRONG_TOKEN

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.access import Access
    from volcache.http.responses import SendResponse, WsgiApp
    from volcache.tokens import Kind, Refusals

# Read by clients in this order; some know the first only, and that is never Bearer.
CHALLENGES: Final = (
    ("WWW-Authenticate", 'Basic realm="volcache", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="volcache"'),
)
_READS: Final = frozenset({"GET", "HEAD", "PROPFIND"})


def given_token(environ: WSGIEnvironment, *schemes: str) -> bytes | None:
    """Return the token of a request; None without one, empty if it is unusable."""
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


def refuse(
    refusals: Refusals, kind: Kind, reason: str, environ: WSGIEnvironment
) -> None:
    """
    Count a request that is refused for its token; see `Refusals.add`.

    Args:
        refusals: Counts and logs it.
        kind: What it wanted.
        reason: Why it was refused, in one word.
        environ: The request.
    """
    refusals.add(
        kind,
        reason,
        address=environ.get("REMOTE_ADDR", ""),
        method=environ.get("REQUEST_METHOD", ""),
        path=environ.get("PATH_INFO", ""),
        forwarded=environ.get("HTTP_X_FORWARDED_FOR", ""),
    )


class TokenCheck:
    """Wraps an application and refuses requests for keys without the right token."""

    def __init__(
        self, wrapped: WsgiApp, send: SendResponse, refusals: Refusals, access: Access
    ) -> None:
        """
        Wrap an application.

        Args:
            wrapped: Answers the other requests; must not raise, neither does the wrapper.
            send: Sends and counts the answers to refused requests; see `App.send`.
            refusals: Counts and logs the refused requests.
            access: The tokens.
        """
        self._wrapped = wrapped
        self._send = send
        self._refusals = refusals
        self._access = access

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        method: str = environ.get("REQUEST_METHOD", "")
        kind: Kind = "read" if method in _READS else "write"
        given = given_token(environ, "bearer", "basic")
        # Load balancers and browsers send OPTIONS without a token; it tells nothing.
        if (
            self._access.allows(kind, given)
            or method == "OPTIONS"
            or environ.get("PATH_INFO", "")[:3] == RESERVED_PREFIX
        ):
            return self._wrapped(environ, start_response)
        reason, begin = ("missing", "") if given is None else ("wrong", WRONG_TOKEN)
        refuse(self._refusals, kind, reason, environ)
        what = {"read": "reading", "write": "writing"}[kind]
        response = text_response(
            HTTPStatus.UNAUTHORIZED,
            f"{begin}{what} needs the {kind}_token; send Authorization: Bearer <token>, or"
            " Basic with it as the password",
            *CHALLENGES,
        )
        return self._send(method, response, start_response)
