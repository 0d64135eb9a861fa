"""
The paths under `/-/`: health, readiness, statistics, metrics, the page, and flush.

They are never keys. Reading is open to everyone who can reach the port. Flush needs the
operator's token, and is off if no token is set.

The page is one HTML file. Its Content-Security-Policy allows its own style and script, by
their digests, and requests to its own origin, and nothing else; it also makes browsers
refuse to parse text as HTML.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from volcache.http.responses import OK, empty_response, text_response
from volcache.monitoring.prometheus import Metrics
from volcache.monitoring.snapshot import Readiness
from volcache.monitoring.stats_json import encode_stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import WSGIEnvironment

    from volcache.cache import Cache
    from volcache.http.responses import Response
    from volcache.monitoring.snapshot import Monitor

ALLOW: Final = ("Allow", "GET, HEAD, OPTIONS")
_ALLOW_FLUSH: Final = ("Allow", "POST, OPTIONS")
_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="volcache"')


class Admin:
    """Answers the requests under the reserved prefix."""

    def __init__(
        self, cache: Cache, *, token: str = "", status: Monitor | None = None
    ) -> None:
        """
        Serve the paths of one instance.

        Args:
            cache: Is flushed, and tells whether the disk can be read.
            token: The bearer token for flush; empty = flush is off.
            status: Source of the statistics and of the readiness. Without it there are
                no statistics, and the instance is ready while the disk can be read.
        """
        self._cache = cache
        self._token = token.encode()
        self._readiness = status.readiness if status else Readiness(cache.is_ready)
        self._readers: dict[str, Callable[[WSGIEnvironment], Response]] = {
            "/-/": lambda _environ: page_response(),
            "/-/healthy": lambda _environ: text_response(HTTPStatus.OK, "ok"),
            "/-/ready": lambda _environ: self._ready(),
        }
        if status:
            metrics = Metrics(status.snapshot)
            self._readers["/-/stats"] = lambda _environ: _data_response(
                "application/json; charset=utf-8", encode_stats(status.snapshot())
            )
            self._readers["/-/metrics"] = lambda environ: _data_response(
                *metrics.render(environ.get("HTTP_ACCEPT", "")), ("Vary", "Accept")
            )

    def respond(self, method: str, path: str, environ: WSGIEnvironment) -> Response:
        """Return the response to one request; that to a HEAD has the body of a GET."""
        if path == "/-/flush":
            return self._flush(method, environ)
        if method == "OPTIONS":
            return empty_response(ALLOW)
        if method not in {"GET", "HEAD"}:
            return text_response(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"method {method} is not allowed under /-/, where no keys are stored;"
                f" allowed are {ALLOW[1]}",
                ALLOW,
            )
        reader = self._readers.get(path)
        if reader is None:
            known = ", ".join(self._readers)
            return text_response(
                HTTPStatus.NOT_FOUND,
                f"no such path; the paths are {known} and /-/flush",
            )
        return reader(environ)

    def _flush(self, method: str, environ: WSGIEnvironment) -> Response:
        if method == "OPTIONS":
            return empty_response(_ALLOW_FLUSH)
        if method != "POST":
            return text_response(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"method {method} is not allowed for /-/flush; allowed is POST",
                _ALLOW_FLUSH,
            )
        if not self._token:
            return text_response(
                HTTPStatus.FORBIDDEN, "flush is off; set admin_token to allow it"
            )
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() != "bearer" or not is_right:
            return text_response(
                HTTPStatus.UNAUTHORIZED,
                "flush needs the header Authorization: Bearer <admin_token>",
                _CHALLENGE,
            )
        self._cache.flush()
        return text_response(HTTPStatus.OK, "flushed")

    def _ready(self) -> Response:
        problem = self._readiness.problem()
        if not problem:
            return text_response(HTTPStatus.OK, "ready")
        return text_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {problem}")


def _data_response(
    content_type: str, body: bytes, *headers: tuple[str, str]
) -> Response:
    """Return a 200 that must not be cached."""
    return (
        OK,
        [
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            *headers,
        ],
        [body],
        "",
    )


_PAGE: Final = files("volcache.http").joinpath("page.html").read_bytes()


def _digests(tag: bytes) -> str:
    """Return the digests of the elements with a tag, as a policy lists them."""
    texts: list[bytes] = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), _PAGE, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(t).digest()).decode()}'" for t in texts)


_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        f"script-src {_digests(b'script')}",
        f"style-src {_digests(b'style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_PAGE_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Length", str(len(_PAGE))),
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


def page_response() -> Response:
    """Return the 200 with the page."""
    return OK, list(_PAGE_HEADERS), [_PAGE], ""
