"""
`volcache dashboard`: one page for all instances of a cluster.

The browser talks to this server only. It can only be read, and needs no token: by default
it listens on loopback. As for the page of an instance, requests are answered under
addresses and known names only, and the Content-Security-Policy allows the own script of
the page and nothing else. What instances answer is shown as text.

    /                         the page
    /api/cluster              all figures as JSON
    /instances/NAME/          the page of one instance
    /instances/NAME/stats     its last answer, with its volumes if it was wanted before
    /instances/NAME/metrics   leads to the metrics of the instance itself
    /healthy                  "ok"

It is served like an instance: by bjoern, behind the front. One thread answers, and waits
for no instance.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http import HTTPStatus
from importlib.resources import files
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote, urlsplit

from volcache.errors import ConfigError
from volcache.fleet.report import as_json, worst_first
from volcache.front import Readers
from volcache.http.admin import is_own_host, page_response, policy_of
from volcache.http.app import RequestLimits
from volcache.http.compression import BYTES_MIN, accepts_gzip, compress
from volcache.http.responses import OK, Headers, text_response
from volcache.monitoring.requests import RequestStats
from volcache.server.addresses import Addresses
from volcache.server.front import Front, Timeouts, raise_descriptor_limit
from volcache.store.files import OsFileSystem
from volcache.store.native import Index
from volcache.store.stats import StoreStats
from volcache.text import escape_header, one_line
from volcache.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from socket import socket
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.fleet.collector import FleetCollector, Watched
    from volcache.http.app import App

    Reply = tuple[str, Headers, list[bytes]]

_logger = logging.getLogger("volcache.fleet")

_CONNECTIONS_MAX: Final = 256
_BODIES_BYTES: Final = 1 << 20
_MEMORY_BYTES: Final = 64 << 20
_TIMEOUTS: Final = Timeouts(head=10.0, idle=60.0, transfer=10.0)
_SHOWN_MAX: Final = 100
_LINE_MAX: Final = 300
_ALLOW: Final = ("Allow", "GET, HEAD")

_PAGE: Final = files("volcache.fleet").joinpath("dashboard.html").read_bytes()
_PAGE_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", policy_of(_PAGE)),
)
_COMMON: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
_SANDBOX: Final = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; sandbox"),
)
_DATA_HEADERS: Final = (
    ("Content-Type", "application/json; charset=utf-8"),
    *_SANDBOX,
)


class Dashboard:
    """The WSGI application; called by one thread."""

    def __init__(self, collector: FleetCollector, *, hosts: Iterable[str] = ()) -> None:
        """Show what a collector knows, under addresses, localhost and further names."""
        self._collector = collector
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        try:
            status, headers, body = self._respond(environ)
        except Exception:
            _logger.exception("dashboard.failed")
            status, headers, body = _line(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"
            )
        accepted = environ.get("HTTP_ACCEPT_ENCODING", "")
        if len(body[0]) >= BYTES_MIN and accepts_gzip(accepted):
            body = [compress(body[0])]
            headers = [*headers, ("Content-Encoding", "gzip")]
        length = ("Content-Length", str(len(body[0])))
        more = (("Vary", "Accept-Encoding"), ("Date", formatdate(usegmt=True)))
        kept = [header for header in headers if header[0] != length[0]]
        start_response(status, [*kept, *_COMMON, *more, length])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else body

    def _respond(self, environ: WSGIEnvironment) -> Reply:
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        if path == "/healthy":
            return _line(HTTPStatus.OK, "ok")
        if refusal := self._refusal(environ):
            return refusal
        if path == "/":
            return OK, list(_PAGE_HEADERS), [_PAGE]
        if path == "/api/cluster":
            return self._cluster()
        if path.startswith("/instances/"):
            return self._instance(path.removeprefix("/instances/"))
        return _line(
            HTTPStatus.NOT_FOUND,
            "no such path; the paths are /, /api/cluster, /instances/NAME/,"
            " /instances/NAME/stats, /instances/NAME/metrics and /healthy",
        )

    def _refusal(self, environ: WSGIEnvironment) -> Reply | None:
        """Return the response for another host name or method."""
        host, method = environ.get("HTTP_HOST", ""), environ["REQUEST_METHOD"]
        if host and not is_own_host(host, self._hosts):
            return _line(
                HTTPStatus.MISDIRECTED_REQUEST,
                f'the host name "{escape_header(host, _SHOWN_MAX)}" is not known; use the'
                " address of the dashboard, or start it with --host NAME",
            )
        if method not in {"GET", "HEAD"}:
            return _line(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"method {one_line(method, _SHOWN_MAX)} is not allowed; allowed are"
                f" {_ALLOW[1]}",
                _ALLOW,
            )
        return None

    def _cluster(self) -> Reply:
        collector = self._collector
        rows = worst_first(collector.instances())
        found = as_json(rows) | {
            "version": __version__,
            "now": collector.now(),
            "interval_seconds": collector.interval,
            "sources": [one_line(one, _LINE_MAX) for one in collector.sources[:20]],
            "list_problem": collector.list_problem or None,
        }
        return OK, list(_DATA_HEADERS), [json.dumps(found).encode()]

    def _instance(self, rest: str) -> Reply:
        """Return the response about one instance."""
        name, _, what = rest.rpartition("/")
        watched = self._collector.find(name)
        if watched is None and self._collector.find(rest) is not None:
            place = f"{quote(rest, safe='')}/"
            return _line(HTTPStatus.MOVED_PERMANENTLY, place, ("Location", place))
        if watched is None:
            return _line(
                HTTPStatus.NOT_FOUND,
                f'no instance is called "{escape_header(name or rest, _SHOWN_MAX)}";'
                " /api/cluster has their names",
            )
        if not what:
            self._collector.want(watched)
            return page_response()[:3]
        if what == "stats":
            return self._stats(watched)
        if what == "metrics":
            place = quote(f"{watched.target.url}/-/metrics", safe=":/[]%?=&")
            return _line(HTTPStatus.FOUND, place, ("Location", place))
        return _line(
            HTTPStatus.NOT_FOUND,
            "no such path; those of an instance are stats and metrics",
        )

    def _stats(self, watched: Watched) -> Reply:
        """Return the last answer of an instance, which is asked for its volumes now."""
        if watched.failure or not watched.body:
            reason = watched.failure or watched.health.problem
            return _line(HTTPStatus.BAD_GATEWAY, reason)
        self._collector.want(watched)
        return OK, list(_DATA_HEADERS), [watched.body]


def _line(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Reply:
    return text_response(status, text, *headers, *_SANDBOX)[:3]


def parse_listen(text: str) -> tuple[str, int]:
    """
    Return address and port of `HOST:PORT`.

    Raises:
        ConfigError: It is something else.
    """
    host, port = None, None
    with suppress(ValueError):
        found = urlsplit(f"//{text}")
        if found.netloc == text and "@" not in text:
            host, port = found.hostname, found.port
    if not host or port is None:
        raise ConfigError(
            f"--listen {one_line(text, _SHOWN_MAX)}: allowed is ADDRESS:PORT, such as"
            " 127.0.0.1:8090 or [::1]:8090, with a port up to 65535; 0 picks a free one"
        )
    return host, port


@contextmanager
def served(listener: socket) -> Iterator[Front]:
    """Yield a front that forwards every request that is well-formed."""
    raise_descriptor_limit()
    stats = StoreStats()
    index = Index(OsFileSystem(), bytes(16), volume_bytes=1 << 24, volumes=1)
    readers = Readers(index, threads=1)
    # Without a store: the loops answer nothing themselves.
    store = SimpleNamespace(stats=stats, clock=None)
    cache = SimpleNamespace(
        store=store, hot_keys=None, hot_client=None, promote=None, memory_first=False
    )
    limits = RequestLimits(key_size=0, value_size=_BODIES_BYTES)
    app = SimpleNamespace(cache=cache, stats=RequestStats(), limits=limits, ring=None)
    front = Front(
        cast("App", app),
        addresses=Addresses(listener, is_inherited=False, admin=None, memcache=None),
        threads=1,
        timeouts=_TIMEOUTS,
        readers=readers,
        connections=_CONNECTIONS_MAX,
        memory=_MEMORY_BYTES,
    )
    try:
        yield front
    finally:
        front.close()
        readers.close()
