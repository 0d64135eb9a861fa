"""
The paths under `/-/`: health, readiness, statistics, metrics, the page, and actions.

They are never keys. Reading is open to everyone who can reach the port, but for the list of
keys. That and the actions flush, purge and reload need the operator's token, and are off if
no token is set. Wrong tokens are counted, logged, and limited for each client address.

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
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from volcache.errors import ConfigError
from volcache.http.auth import given_token, refuse
from volcache.http.compression import BYTES_MIN, accepts_gzip, compress
from volcache.http.key_list import KEYS_PATH, list_keys
from volcache.http.purge import PURGE_PATH, purge
from volcache.http.responses import OK, empty_response, text_response
from volcache.keys import RESERVED_PREFIX
from volcache.monitoring.prometheus import MetricsRenderer
from volcache.monitoring.stats_json import encode_stats
from volcache.text import escape_header
from volcache.tokens import WRONG_TOKEN, GuessLimit, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from wsgiref.types import WSGIEnvironment

    from volcache.http.responses import Response
    from volcache.monitoring.history import History
    from volcache.monitoring.snapshot import Monitor
    from volcache.tokens import Refusals

ALLOW: Final = ("Allow", "GET, HEAD, OPTIONS")
_ALLOW_ACTION: Final = ("Allow", "POST, OPTIONS")
_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="volcache"')
_NO_SNIFFING: Final = ("X-Content-Type-Options", "nosniff")
# Answered under every name.
_OPEN: Final = frozenset({"/-/healthy", "/-/ready", "/-/metrics"})
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")
_SHOWN_MAX: Final = 100
_STALL_SECONDS_MAX: Final = 30.0


class Admin:
    """Answers the requests under the reserved prefix."""

    def __init__(
        self,
        status: Monitor,
        *,
        history: History,
        refusals: Refusals,
        key_size: int,
        metrics_volumes: bool,
        reload: Callable[[], str],
    ) -> None:
        """
        Serve the paths of one instance; see `set_access` for the actions.

        Args:
            status: Of the instance, and its cache, which is flushed and purged.
            history: Of the statistics.
            refusals: Counts and logs requests without the token.
            key_size: The longest key that is accepted.
            metrics_volumes: Show the metrics of each volume to Prometheus.
            reload: Reads the settings again, and returns a line or raises `ConfigError`.
        """
        self._cache = status.cache
        # For how many seconds the memcached protocol has not got on.
        self.stalled: Callable[[], float] = lambda: 0.0
        self.set_access("", ())
        self._refusals, self._limit = refusals, GuessLimit()
        # What the token is needed for, by path: called if it is right.
        self._actions: dict[str, Callable[[WSGIEnvironment], Response]] = {
            "/-/flush": lambda _environ: self._flush(),
            PURGE_PATH: lambda environ: purge(status.cache, environ, key_size),
            "/-/reload": lambda _environ: _reload(reload),
        }
        metrics = MetricsRenderer(partial(status.snapshot, volumes=metrics_volumes))
        self._readers: dict[str, Callable[[WSGIEnvironment], Response]] = {
            "/-/": lambda _environ: page_response(),
            "/-/healthy": lambda _environ: self._healthy(),
            "/-/ready": lambda _environ: _ready(status),
            KEYS_PATH: self._keys,
            "/-/stats": partial(_stats, status),
            "/-/metrics": partial(_metrics, metrics),
            "/-/history": lambda environ: _json(environ, history.encoded()),
        }

    def set_access(self, token: str, hosts: Sequence[str]) -> None:
        """
        Let actions need this token, and answer under these names, from now on.

        Args:
            token: Of the operator; empty = actions are off.
            hosts: Names besides localhost.
        """
        self._token = Token(token)
        self._hosts = {"localhost", *(_folded(host) for host in hosts)}

    def respond(self, method: str, path: str, environ: WSGIEnvironment) -> Response:
        """Return the response to one request; that to a HEAD has the body of a GET."""
        response = self._answer(method, path, environ)
        response[1].append(_NO_SNIFFING)
        return response

    def _answer(self, method: str, path: str, environ: WSGIEnvironment) -> Response:
        host: str = environ.get("HTTP_HOST", "")
        if path not in _OPEN and host and not _is_own_host(host, self._hosts):
            return text_response(
                HTTPStatus.MISDIRECTED_REQUEST,
                f'the host name "{escape_header(host, _SHOWN_MAX)}" is not in the setting'
                " admin_hosts; use the address of the instance, or add the name there",
            )
        action = self._actions.get(path)
        allow = _ALLOW_ACTION if action else ALLOW
        if method == "OPTIONS":
            return empty_response(allow)
        if method not in allow[1].split(", "):
            where = f"under /-/, where no keys are stored; allowed are {ALLOW[1]}"
            if action:
                where = f"for {path}; allowed is POST"
            text = f"method {method} is not allowed {where}"
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, text, allow)
        answer = action or self._readers.get(path)
        if answer is None:
            known = ", ".join([*self._readers, *self._actions])
            text = f"no such path; the paths are {known}"
            return text_response(HTTPStatus.NOT_FOUND, text)
        needs_token = action is not None or path == KEYS_PATH
        refusal = self._refusal(path, environ) if needs_token else None
        return refusal or answer(environ)

    def _refusal(self, path: str, environ: WSGIEnvironment) -> Response | None:
        """Return the response to a request without the token; None if it is right."""
        name = path.removeprefix(RESERVED_PREFIX)
        if not self._token:
            return text_response(
                HTTPStatus.FORBIDDEN, f"{name} is off; set admin_token to allow it"
            )
        given = given_token(environ, "bearer")
        address: str = environ.get("REMOTE_ADDR", "")
        seconds = 0 if given is None else self._limit.seconds_left(address)
        if seconds:
            refuse(self._refusals, "admin", "limited", environ)
            return text_response(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"too many wrong tokens from this address; try again in {seconds} s",
                ("Retry-After", str(seconds)),
            )
        if given is not None and self._token.is_equal(given):
            return None
        if given is not None:
            self._limit.add(address)
        reason, begin = ("missing", "") if given is None else ("wrong", WRONG_TOKEN)
        refuse(self._refusals, "admin", reason, environ)
        return text_response(
            HTTPStatus.UNAUTHORIZED,
            f"{begin}{name} needs the header Authorization: Bearer <admin_token>",
            _CHALLENGE,
        )

    def _keys(self, environ: WSGIEnvironment) -> Response:
        page = list_keys(self._cache.store, environ.get("QUERY_STRING", ""))
        return _data_response(
            environ, "application/x-ndjson", page, vary="Accept-Encoding, Authorization"
        )

    def _flush(self) -> Response:
        self._cache.flush()
        return text_response(HTTPStatus.OK, "flushed")

    def _healthy(self) -> Response:
        seconds = self.stalled()
        if seconds < _STALL_SECONDS_MAX:
            return text_response(HTTPStatus.OK, "ok")
        return text_response(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the memcached protocol has not got on for {seconds:.0f} seconds; see the log",
        )


def _ready(status: Monitor) -> Response:
    problem = status.problem()
    if not problem:
        return text_response(HTTPStatus.OK, "ready")
    return text_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {problem}")


def _stats(status: Monitor, environ: WSGIEnvironment) -> Response:
    """Return the statistics; without the list of volumes for the query `volumes=0`."""
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    wanted = query.get("volumes", ["1"])
    if wanted not in (["0"], ["1"]):
        return text_response(
            HTTPStatus.BAD_REQUEST,
            "bad value of the parameter volumes; allowed are 0, without the list of"
            " volumes, and 1, with it",
        )
    return _json(environ, encode_stats(status.snapshot(volumes=wanted == ["1"])))


def _metrics(metrics: MetricsRenderer, environ: WSGIEnvironment) -> Response:
    content_type, body = metrics.render(environ.get("HTTP_ACCEPT", ""))
    return _data_response(environ, content_type, body, vary="Accept, Accept-Encoding")


def _is_own_host(host: str, names: Container[str]) -> bool:
    """
    Return whether a Host names this server for certain, not another site.

    Args:
        host: The header, with or without a port.
        names: Allowed besides addresses: names in lower case.
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1]
    try:
        ip_address(name[1:-1] if name.startswith("[") else name)
    except ValueError:
        return _folded(name) in names
    return True


def _reload(reload: Callable[[], str]) -> Response:
    try:
        return text_response(HTTPStatus.OK, reload())
    except ConfigError as error:
        return text_response(HTTPStatus.CONFLICT, f"nothing has changed: {error}")


def _folded(host: str) -> str:
    """Return a host name in the form in which names are compared."""
    return host.lower().removesuffix(".")


def _json(environ: WSGIEnvironment, body: bytes) -> Response:
    content_type = "application/json; charset=utf-8"
    return _data_response(environ, content_type, body, vary="Accept-Encoding")


def _data_response(
    environ: WSGIEnvironment, content_type: str, body: bytes, *, vary: str
) -> Response:
    """Return a 200 that must not be cached, compressed if the client accepts it."""
    headers = [
        ("Content-Type", content_type),
        ("Cache-Control", "no-store"),
        ("Vary", vary),
    ]
    accepted = environ.get("HTTP_ACCEPT_ENCODING", "")
    if len(body) >= BYTES_MIN and accepts_gzip(accepted):
        body = compress(body)
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Content-Length", str(len(body))))
    return OK, headers, [body], ""


_PAGE: Final = files("volcache.http").joinpath("page.html").read_bytes()


def _policy_of(page: bytes) -> str:
    """Return the Content-Security-Policy of a page: its own style and script only."""

    def digests(tag: bytes) -> str:
        texts: list[bytes] = re.findall(
            rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL
        )
        made = [b64encode(sha256(text).digest()).decode() for text in texts]
        return " ".join(f"'sha256-{digest}'" for digest in made)

    return (
        f"default-src 'none'; script-src {digests(b'script')};"
        f" style-src {digests(b'style')}; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )


_PAGE_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Length", str(len(_PAGE))),
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", _policy_of(_PAGE)),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


def page_response() -> Response:
    """Return the 200 with the page."""
    return OK, list(_PAGE_HEADERS), [_PAGE], ""
