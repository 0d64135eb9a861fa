"""
CORS: which pages of other origins may use the cache from a browser.

A browser lets a page see an answer only if a header names the page's origin, and asks with
OPTIONS first (a preflight) whether the page may send a PUT, a DELETE, or its own headers.
The browser enforces this: a request is answered whether or not its origin is known.

`Cors` wraps the application only if there are origins. C adds the same headers to
what it answers. The paths of the operator never have them.

The protocol is https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.http.app import ALLOW
from volcache.keys import RESERVED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from wsgiref.types import StartResponse, WSGIEnvironment

    from _typeshed import OptExcInfo

    from volcache.http.responses import Headers, WsgiApp

ANY: Final = "*"
_VARY: Final = ("Vary", "Origin")
# All that an answer may have but those a page may always see.
_EXPOSED: Final = (
    "Access-Control-Expose-Headers",
    (
        "Accept-Ranges, Content-Encoding, Content-Length, Content-Range, Date, ETag,"
        " Retry-After, WWW-Authenticate, X-Cache, X-Flags, X-Owner, X-Position"
    ),
)
_PREFLIGHT: Final = (
    ("Access-Control-Allow-Methods", ALLOW[1]),
    # Those that have a meaning, for browsers that take the star for a name; the star
    # stands for all but Authorization.
    (
        "Access-Control-Allow-Headers",
        (
            "Authorization, Cache-Control, Content-Encoding, Content-Type, Expires,"
            " If-Match, If-Modified-Since, If-None-Match, If-Range, If-Unmodified-Since,"
            " Range, *"
        ),
    ),
    # Browsers keep it for two hours at most.
    ("Access-Control-Max-Age", "7200"),
)
_LOCAL: Final = ("Access-Control-Allow-Private-Network", "true")


class CorsHeaders:
    """The headers by origin."""

    def __init__(self, origins: Sequence[str]) -> None:
        """
        Prepare the headers.

        Args:
            origins: As browsers send them, or `*` alone; empty = CORS is off.
        """
        self._is_any = ANY in origins
        # The same for all requests, or caches between would have to tell them apart.
        self.common: Headers = []
        self.by_origin: dict[str, Headers] = {}
        if self._is_any:
            self.common = [("Access-Control-Allow-Origin", ANY), _EXPOSED]
        elif origins:
            self.common = [_VARY]
            self.by_origin = {
                origin: [("Access-Control-Allow-Origin", origin), _EXPOSED, _VARY]
                for origin in origins
            }

    def __bool__(self) -> bool:
        """Whether CORS is on."""
        return bool(self.common)

    def of(self, environ: WSGIEnvironment) -> Headers:
        """Return the headers for the answer to a request for a key."""
        origin: str = environ.get("HTTP_ORIGIN", "")
        headers = self.by_origin.get(origin, self.common)
        if (
            environ.get("REQUEST_METHOD") == "OPTIONS"
            and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ
            and (self._is_any or headers is not self.common)
        ):
            headers = [*headers, *_PREFLIGHT]
            if environ.get("HTTP_ACCESS_CONTROL_REQUEST_PRIVATE_NETWORK") == "true":
                headers.append(_LOCAL)
        return headers


def header_lines(headers: Headers) -> str:
    """Return headers as C sends them, each after a line end."""
    return "".join(f"\r\n{name}: {value}" for name, value in headers)


class Cors:
    """Wraps an application and adds the headers to its answers."""

    def __init__(self, wrapped: WsgiApp, headers: CorsHeaders) -> None:
        """Wrap an application that must not raise; neither does the wrapper."""
        self._wrapped = wrapped
        self._headers = headers

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        if environ.get("PATH_INFO", "")[:3] == RESERVED_PREFIX:
            return self._wrapped(environ, start_response)
        added = self._headers.of(environ)

        def start(
            status: str, headers: Headers, error: OptExcInfo | None = None, /
        ) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *added], error)

        return self._wrapped(environ, start)
