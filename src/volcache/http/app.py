"""
The WSGI application: maps the method and path of a request to the cache.

Each method has a handler that returns a `Response`; an error it raises becomes a response
by the table in `responses.py`. `App.__call__` is the one place that catches errors, adds
Date, sends the response, counts the request and logs it if it was slow. No exception
leaves it: on any exception bjoern closes the connection, and SystemExit or
KeyboardInterrupt would end the process. Runs in bjoern's only thread.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.histogram import NS_PER_SECOND
from volcache.http import webdav
from volcache.http.admin import Admin
from volcache.http.preconditions import (
    is_conditional,
    is_not_modified,
    requested_range,
    require_change_allowed,
)
from volcache.http.responses import (
    OK,
    ValueHeaders,
    date_header,
    empty_response,
    miss_response,
    not_modified_response,
    range_response,
    status_of,
    stored_response,
    text_response,
)
from volcache.http.slow_log import SlowLog
from volcache.http.upload import TtlPolicy, read_content_headers, read_value
from volcache.keys import RESERVED_PREFIX, parse_key
from volcache.monitoring.requests import RequestStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.cache import Cache
    from volcache.http.responses import Response

    # Takes the request, its path, and its time in nanoseconds since the epoch.
    _Handler = Callable[[WSGIEnvironment, str, int], Response]

_logger: Final = logging.getLogger(__name__)

ALLOW: Final = ("Allow", "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL")
_NS_PER_MS: Final = 1_000_000
_RETRY_SOON: Final = ("Retry-After", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the application accepts; as in the settings."""

    key_size: int  # bytes
    value_size: int  # bytes
    default_ttl: int = 0  # seconds; 0 = values do not expire
    max_ttl: int = 0  # seconds; 0 = no limit


class App:
    """Serves one cache over WSGI; never raises."""

    def __init__(
        self,
        cache: Cache,
        limits: Limits,
        *,
        stats: RequestStats | None = None,
        admin: Admin | None = None,
        slow_log: SlowLog | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Serve a cache.

        Args:
            cache: Holds the values; closed by the caller.
            limits: What is accepted.
            stats: Counts the requests; by default in an object of its own.
            admin: Serves `/-/`; by default without a token and without statistics.
            slow_log: Logs slow requests; by default none.
            clock: Nanoseconds since the epoch, by the same clock as the store's.
        """
        self.stats = stats or RequestStats()
        self._cache = cache
        self._limits = limits
        self._admin = admin or Admin(cache)
        self._slow_log = slow_log or SlowLog(seconds=0)
        self._value_headers = ValueHeaders()
        self._ttl = TtlPolicy(default_ttl=limits.default_ttl, max_ttl=limits.max_ttl)
        self._clock = clock
        self._handlers: dict[str, _Handler] = {
            "GET": self._get,
            "HEAD": self._head,
            "PUT": self._put,
            "DELETE": self._delete,
            "OPTIONS": self._options,
            "PROPFIND": self._propfind,
            "MKCOL": self._mkcol,
        }

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request: `[]` or one `bytes` of exactly Content-Length."""
        started_ns = perf_counter_ns()
        now_ns = self._clock()
        # bjoern omits the path for CONNECT and for `GET http://host`.
        path: str = environ.get("PATH_INFO", "")
        method: str = environ.get("REQUEST_METHOD", "")
        try:
            if path[:3] == RESERVED_PREFIX:
                status, headers, body = self._admin.respond(method, path, environ)
            else:
                handler = self._handlers.get(method) or self._refuse_method
                status, headers, body = handler(environ, path, now_ns)
        except BaseException as error:  # noqa: BLE001 - See the module's docstring.
            status, headers, body = _error_response(error, method, path)
        if method == "HEAD":
            body = []  # bjoern would send it.
        headers.append(date_header(now_ns // NS_PER_SECOND))
        start_response(status, headers)
        took_ns = perf_counter_ns() - started_ns
        self.stats.answers[method, status].observe(started_ns, took_ns)
        if took_ns > self._slow_log.threshold_ns:
            disk_ns, memcached_ns = self._cache.waited_since(started_ns)
            self._slow_log.log(method, path, status, took_ns, disk_ns, memcached_ns)
        return body

    def _get(self, environ: WSGIEnvironment, path: str, now_ns: int) -> Response:
        key = parse_key(path, self._limits.key_size)
        if is_conditional(environ):
            # The record's header decides, so a 304 or a 412 does not read the value.
            record = self._cache.stat(key)
            if record is None:
                return self._miss()
            if is_not_modified(environ, record):
                self.stats.count_hit(key, record.source, 0)
                return not_modified_response(
                    self._value_headers.make(key, record, now_ns)
                )
        record = self._cache.get(key)
        if record is None:
            return self._miss()
        headers = self._value_headers.make(key, record, now_ns)
        if "HTTP_RANGE" in environ:
            part = requested_range(environ, record)
            if part is not None:
                self.stats.count_hit(key, record.source, len(part))
                return range_response(headers, record.value, part)
        self.stats.count_hit(key, record.source, record.length)
        return OK, headers, [record.value]

    def _head(self, environ: WSGIEnvironment, path: str, now_ns: int) -> Response:
        key = parse_key(path, self._limits.key_size)
        record = self._cache.stat(key)
        if record is None:
            return self._miss()
        is_known = is_conditional(environ) and is_not_modified(environ, record)
        self.stats.count_hit(key, record.source, 0)
        headers = self._value_headers.make(key, record, now_ns)
        return not_modified_response(headers) if is_known else (OK, headers, [])

    def _miss(self) -> Response:
        """
        Count a GET or HEAD that found no value, and return its response.

        While the disk cannot be read, the key may well have a value: the answer is a 503
        then, and nginx decides whether it becomes a miss or goes to another instance.
        """
        self.stats.misses += 1
        if self._cache.is_ready():
            return miss_response()
        return text_response(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "not ready: the disk cannot be read, so it is unknown whether a value is"
            " stored; try again",
            _RETRY_SOON,
        )

    def _put(self, environ: WSGIEnvironment, path: str, now_ns: int) -> Response:
        key = parse_key(path, self._limits.key_size)
        value = read_value(environ, self._limits.value_size)
        content_type, content_encoding = read_content_headers(environ)
        expires_ms = self._ttl.expires_ms(environ, now_ns // _NS_PER_MS)
        if is_conditional(environ):
            # Requests are handled one at a time, so nothing changes before the put.
            require_change_allowed(environ, self._cache.stat(key))
        record = self._cache.put(
            key,
            value,
            content_type=content_type,
            content_encoding=content_encoding,
            expires_ms=expires_ms,
        )
        self.stats.bytes_in += len(value)
        return stored_response(record)

    def _delete(self, environ: WSGIEnvironment, path: str, _now_ns: int) -> Response:
        key = parse_key(path, self._limits.key_size)
        if is_conditional(environ):
            record = self._cache.stat(key)
            if record is not None:  # An absent key is a miss whatever the condition.
                require_change_allowed(environ, record)
        return empty_response() if self._cache.delete(key) else miss_response()

    def _options(self, _environ: WSGIEnvironment, _path: str, _now_ns: int) -> Response:
        return empty_response(ALLOW)

    def _propfind(self, _environ: WSGIEnvironment, path: str, now_ns: int) -> Response:
        if path == "/":
            return webdav.directory_response(path, now_ns // NS_PER_SECOND)
        key = parse_key(path, self._limits.key_size)
        if webdav.is_directory(path):
            return webdav.directory_response(path, now_ns // NS_PER_SECOND)
        record = self._cache.stat(key)
        if record is None:
            return miss_response()
        return webdav.file_response(path, key, record)

    def _mkcol(self, _environ: WSGIEnvironment, path: str, _now_ns: int) -> Response:
        if path != "/":
            parse_key(path, self._limits.key_size)
        return webdav.created_response()

    def _refuse_method(
        self, environ: WSGIEnvironment, _path: str, _now_ns: int
    ) -> Response:
        return text_response(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"method {environ['REQUEST_METHOD']} is not allowed; allowed are {ALLOW[1]}",
            ALLOW,
        )


def _error_response(error: BaseException, method: str, path: str) -> Response:
    """
    Return the response to a request that ended with an exception.

    A mistake of the client is reported to the client only; a failure of the disk also to
    the log; a bug, with its traceback, to the log only.
    """
    status = status_of(error)
    text = str(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        _logger.error("request.failed method=%s path=%r", method, path, exc_info=error)
        text = "internal error; see the log of the instance"
    elif status is HTTPStatus.INSUFFICIENT_STORAGE:
        _logger.warning(
            "request.refused method=%s path=%r error=%r", method, path, text
        )
        if isinstance(error, OSError):  # Its text names files of the instance.
            text = f"the disk refused: {error.strerror or 'no reason given'}"
    return text_response(status, text)
