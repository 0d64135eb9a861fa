"""
What is under `/-/`: the operator's own paths, never keys.

Reads are for everybody who reaches the port; what drops something needs the operator's
token, and is off without one.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.web.responses import send_empty, send_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

ALLOW: Final = ("Allow", "GET, HEAD, OPTIONS")
_ALLOW_FLUSH: Final = ("Allow", "POST, OPTIONS")
_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="volcache"')


class Admin:
    """Answers requests whose path begins with the reserved prefix."""

    def __init__(
        self, *, flush: Callable[[], None], token: str, is_ready: Callable[[], bool]
    ) -> None:
        """
        Serve the operator.

        Args:
            flush: Drops everything; may raise what a put may raise.
            token: What `Authorization: Bearer` must say; empty allows nobody.
            is_ready: Whether requests should be sent here; must not raise.
        """
        self._flush = flush
        self._is_ready = is_ready
        self._token = token.encode()

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
        return self._answer_read(method, path, start_response)

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
        self, method: str, path: str, start_response: StartResponse
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
            if self._is_ready():
                return send_text(
                    start_response, HTTPStatus.OK, "ready", is_head=is_head
                )
            return send_text(
                start_response,
                HTTPStatus.SERVICE_UNAVAILABLE,
                "not ready: several reads in a row failed; the log has the cause",
                is_head=is_head,
            )
        return send_text(
            start_response,
            HTTPStatus.NOT_FOUND,
            "nothing here; under /-/ there are /-/healthy, /-/ready and /-/flush",
            is_head=is_head,
        )
