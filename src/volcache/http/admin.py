"""
What is under `/-/`: the operator's own paths, never keys.

Reads are for everybody who reaches the port; what drops something needs the operator's
token, and is off without one.

The operator's page: one HTML file, read once, sent with a policy that fits it.

The policy lets through the style and the script that stand in the file, by their
digests, requests to where the page came from, and nothing else. It makes browsers refuse
any text put in as HTML.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.http.responses import OK, send_empty, send_text
from volcache.monitoring.prometheus import Metrics
from volcache.monitoring.snapshot import Readiness
from volcache.monitoring.stats_json import encode_stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.monitoring.snapshot import Monitor

ALLOW: Final = ("Allow", "GET, HEAD, OPTIONS")
_ALLOW_FLUSH: Final = ("Allow", "POST, OPTIONS")
_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="volcache"')


class Page(NamedTuple):
    """What a GET under the prefix is answered with; its status is 200."""

    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()  # besides type, length and no-store


class Admin:
    """Answers requests whose path begins with the reserved prefix."""

    def __init__(
        self,
        *,
        flush: Callable[[], None],
        token: str,
        is_ready: Callable[[], bool],
        status: Monitor | None = None,
    ) -> None:
        """
        Serve the operator.

        Args:
            flush: Drops everything; may raise what a put may raise.
            token: What `Authorization: Bearer` must say; empty allows nobody.
            is_ready: Whether the disk can be read; must not raise.
            status: What there is to know of the instance, and whether requests should
                be sent here. Without it only `is_ready` decides, and nothing is shown.
        """
        self._flush = flush
        self._token = token.encode()
        self._readiness = status.readiness if status else Readiness(is_ready)
        # A path, and what a GET of it is answered with.
        self._pages: dict[str, Callable[[WSGIEnvironment], Page]] = {}
        if status:
            self._pages["/-/stats"] = lambda _environ: Page(
                "application/json; charset=utf-8", encode_stats(status.snapshot())
            )
            metrics = Metrics(status.snapshot)
            self._pages["/-/metrics"] = lambda environ: Page(
                *metrics.render(environ.get("HTTP_ACCEPT", "")), (("Vary", "Accept"),)
            )

    def answer(
        self,
        method: str,
        path: str,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> list[bytes]:
        """Answer one request."""
        if path == "/-/flush":
            return self._answer_flush(method, environ, start_response)
        if path == "/-/" and method in {"GET", "HEAD"}:
            return send_page(start_response, is_head=method == "HEAD")
        return self._answer_read(method, path, environ, start_response)

    def _answer_flush(
        self, method: str, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        if method == "OPTIONS":
            return send_empty(start_response, _ALLOW_FLUSH)
        if method != "POST":
            return send_text(
                start_response,
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{method} is not allowed for /-/flush; allowed is POST",
                _ALLOW_FLUSH,
                is_head=method == "HEAD",
            )
        if not self._token:
            return send_text(
                start_response,
                HTTPStatus.FORBIDDEN,
                "flush is off; set admin_token to allow it",
            )
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() != "bearer" or not is_right:
            return send_text(
                start_response,
                HTTPStatus.UNAUTHORIZED,
                "flush needs the header Authorization: Bearer <admin_token>",
                _CHALLENGE,
            )
        self._flush()
        return send_text(start_response, HTTPStatus.OK, "flushed")

    def _answer_read(
        self,
        method: str,
        path: str,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> list[bytes]:
        """Answer what changes nothing."""
        if method == "OPTIONS":
            return send_empty(start_response, ALLOW)
        if method not in {"GET", "HEAD"}:
            return send_text(
                start_response,
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{method} is not allowed under /-/, which is no place for keys;"
                f" allowed are {ALLOW[1]}",
                ALLOW,
            )
        is_head = method == "HEAD"
        if path == "/-/healthy":
            return send_text(start_response, HTTPStatus.OK, "ok", is_head=is_head)
        if path == "/-/ready":
            return self._answer_ready(start_response, is_head=is_head)
        if path in self._pages:
            page = self._pages[path](environ)
            return _send_page(start_response, page, is_head=is_head)
        there_are = ", ".join(["/-/", "/-/healthy", "/-/ready", *self._pages])
        return send_text(
            start_response,
            HTTPStatus.NOT_FOUND,
            f"nothing here; there are {there_are} and /-/flush",
            is_head=is_head,
        )

    def _answer_ready(
        self, start_response: StartResponse, *, is_head: bool
    ) -> list[bytes]:
        problem = self._readiness.problem()
        if not problem:
            return send_text(start_response, HTTPStatus.OK, "ready", is_head=is_head)
        return send_text(
            start_response,
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"not ready: {problem}",
            is_head=is_head,
        )


def _send_page(
    start_response: StartResponse, page: Page, *, is_head: bool
) -> list[bytes]:
    headers = [
        ("Content-Type", page.content_type),
        ("Content-Length", str(len(page.body))),
        ("Cache-Control", "no-store"),
        *page.headers,
    ]
    start_response(OK, headers)
    return [] if is_head else [page.body]


_PAGE: Final = files("volcache.http").joinpath("page.html").read_bytes()


def _digests(tag: bytes) -> str:
    """Name what stands in elements of one kind, as a policy does."""
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
_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Length", str(len(_PAGE))),
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


def send_page(start_response: StartResponse, *, is_head: bool) -> list[bytes]:
    """Answer 200 with the page; for a HEAD without its body."""
    start_response(OK, list(_HEADERS))
    return [] if is_head else [_PAGE]
