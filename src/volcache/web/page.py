"""
The operator's page: one HTML file, read once, sent with a policy that fits it.

The policy lets through the style and the script that stand in the file, by their
digests, requests to where the page came from, and nothing else. It makes browsers refuse
any text put in as HTML.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from volcache.web.responses import OK

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

_PAGE: Final = files("volcache.web").joinpath("page.html").read_bytes()


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
