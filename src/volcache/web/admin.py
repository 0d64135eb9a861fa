"""
What is under `/-/`: the operator's own paths, never keys.

Only reads are answered; nothing here can change what is stored.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.web.responses import send_empty, send_text

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

ALLOW: Final = ("Allow", "GET, HEAD, OPTIONS")


def answer_admin(method: str, path: str, start_response: StartResponse) -> list[bytes]:
    """
    Answer a request whose path begins with the reserved prefix.

    Args:
        method: The verb; only GET, HEAD and OPTIONS do something.
        path: As WSGI has it, beginning with `/-/`.
        start_response: As WSGI gives it.

    """
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
    return send_text(
        start_response,
        HTTPStatus.NOT_FOUND,
        "nothing here; under /-/ there is /-/healthy",
        is_head=is_head,
    )
