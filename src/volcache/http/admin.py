"""
The paths under `/-/`: health, readiness, statistics, metrics, the page, flush and purge.

They are never keys. Reading is open to everyone who can reach the port. Flush and purge
need the operator's token, and are off if no token is set. Wrong tokens are counted,
logged, and limited for each client address.

A page of another site can let its name point to the address of an instance (DNS rebinding):
for the browser, the instance is then part of that site. So requests are answered under
addresses and names of the operator only. What load balancers and Prometheus read is
answered under every name: it says nothing about values.

The page is one HTML file. Its Content-Security-Policy allows its own style and script, by
their digests, and requests to its own origin, and nothing else; it also makes browsers
refuse to parse text as HTML.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from volcache.http.auth import GuessLimit, Refusals, Token, bearer_token
from volcache.http.purge import PURGE_PATH, purge
from volcache.http.responses import OK, empty_response, text_response
from volcache.keys import RESERVED_PREFIX
from volcache.monitoring.prometheus import Metrics
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Readiness
from volcache.monitoring.stats_json import encode_stats
from volcache.text import escape_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from wsgiref.types import WSGIEnvironment

    from volcache.cache import Cache
    from volcache.http.responses import Response
    from volcache.monitoring.snapshot import Monitor

ALLOW: Final = ("Allow", "GET, HEAD, OPTIONS")
_ALLOW_ACTION: Final = ("Allow", "POST, OPTIONS")
_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="volcache"')
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")
# Answered under every name.
_OPEN: Final = frozenset({"/-/healthy", "/-/ready", "/-/metrics"})
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")
_SHOWN_MAX: Final = 100


class Admin:
    """Answers the requests under the reserved prefix."""

    def __init__(  # noqa: PLR0913 - The parts, by keyword.
        self,
        cache: Cache,
        *,
        token: str = "",
        hosts: Sequence[str] = (),
        status: Monitor | None = None,
        refusals: Refusals | None = None,
        limit: GuessLimit | None = None,
        key_size: int = 1024,
    ) -> None:
        """
        Serve the paths of one instance.

        Args:
            cache: Is flushed and purged, and tells whether the disk can be read.
            token: The bearer token for actions; empty = they are off.
            hosts: Names under which the paths are answered, besides localhost.
            status: Source of the statistics and of the readiness. Without it there are
                no statistics, and the instance is ready while the disk can be read.
            refusals: Counts and logs requests without the token.
            limit: Of wrong tokens.
            key_size: The longest key that is accepted.
        """
        self._cache = cache
        self._token = Token(token)
        self._hosts = {"localhost", *(_folded(host) for host in hosts)}
        self._refusals = refusals or Refusals(
            status.requests if status else RequestStats()
        )
        self._limit = limit or GuessLimit()
        # What the token is needed for, by path: called if it is right.
        self._actions: dict[str, Callable[[WSGIEnvironment], Response]] = {
            "/-/flush": lambda _environ: self._flush(),
            PURGE_PATH: lambda environ: purge(cache, environ, key_size),
        }
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
        response = self._answer(method, path, environ)
        response[1].append(_NO_SNIFFING)
        return response

    def _answer(self, method: str, path: str, environ: WSGIEnvironment) -> Response:
        host: str = environ.get("HTTP_HOST", "")
        if path not in _OPEN and host and not self._is_known(host):
            return text_response(
                HTTPStatus.MISDIRECTED_REQUEST,
                f'the host name "{escape_header(host, _SHOWN_MAX)}" is not in the setting'
                " admin_hosts; use the address of the instance, or add the name there",
            )
        action = self._actions.get(path)
        if action is not None:
            return self._act(action, method, path, environ)
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
            known = ", ".join([*self._readers, *self._actions])
            return text_response(
                HTTPStatus.NOT_FOUND, f"no such path; the paths are {known}"
            )
        return reader(environ)

    def _is_known(self, host: str) -> bool:
        """Return whether a Host names this instance for certain, not another site."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1]
        try:
            ip_address(name[1:-1] if name.startswith("[") else name)
        except ValueError:
            return _folded(name) in self._hosts
        return True

    def _act(
        self,
        action: Callable[[WSGIEnvironment], Response],
        method: str,
        path: str,
        environ: WSGIEnvironment,
    ) -> Response:
        """Return the response to a request for an action."""
        if method == "OPTIONS":
            return empty_response(_ALLOW_ACTION)
        if method != "POST":
            return text_response(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"method {method} is not allowed for {path}; allowed is POST",
                _ALLOW_ACTION,
            )
        return self._refusal(path, environ) or action(environ)

    def _refusal(self, path: str, environ: WSGIEnvironment) -> Response | None:
        """Return the response to a request without the token; None if it is right."""
        name = path.removeprefix(RESERVED_PREFIX)
        if not self._token:
            return text_response(
                HTTPStatus.FORBIDDEN, f"{name} is off; set admin_token to allow it"
            )
        given = bearer_token(environ)
        address: str = environ.get("REMOTE_ADDR", "")
        seconds = 0 if given is None else self._limit.seconds_left(address)
        if seconds:
            self._refusals.add("admin", "limited", environ)
            return text_response(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"too many wrong tokens from this address; try again in {seconds} s",
                ("Retry-After", str(seconds)),
            )
        if given is not None and self._token.is_equal(given):
            return None
        if given is not None:
            self._limit.add(address)
        self._refusals.add("admin", "missing" if given is None else "wrong", environ)
        return text_response(
            HTTPStatus.UNAUTHORIZED,
            f"{name} needs the header Authorization: Bearer <admin_token>",
            _CHALLENGE,
        )

    def _flush(self) -> Response:
        self._cache.flush()
        return text_response(HTTPStatus.OK, "flushed")

    def _ready(self) -> Response:
        problem = self._readiness.problem()
        if not problem:
            return text_response(HTTPStatus.OK, "ready")
        return text_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {problem}")


def _folded(host: str) -> str:
    """Return a host name in the form in which names are compared."""
    return host.lower().removesuffix(".")


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
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


def page_response() -> Response:
    """Return the 200 with the page."""
    return OK, list(_PAGE_HEADERS), [_PAGE], ""
