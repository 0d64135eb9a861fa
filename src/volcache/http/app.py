"""
The WSGI application: maps the method and path of a request to the cache.

Each method has a handler that returns a `Response`; an error it raises becomes a response
by the table in `responses.py`. `App.__call__` is the one place that catches errors, adds
Date, sends the response, counts the request and logs it if it was slow. No exception
leaves it: on any exception bjoern closes the connection, and SystemExit or
KeyboardInterrupt would end the process. Runs in bjoern's only thread; other threads may use
the cache, so that a conditional change is decided and made within `Cache.exclusive`.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.errors import BadKeyError, KeyTooLongError
from volcache.histogram import NS_PER_SECOND
from volcache.http import webdav
from volcache.http.preconditions import (
    CONDITIONS,
    is_not_modified,
    requested_ranges,
    require_change_allowed,
)
from volcache.http.responses import (
    MISS,
    OK,
    ValueHeaders,
    empty_response,
    miss_response,
    not_modified_response,
    other_response,
    range_response,
    service_worker_response,
    status_of,
    stored_response,
    text_response,
)
from volcache.http.upload import (
    read_expiry,
    read_flags,
    read_stored_headers,
    read_value,
)
from volcache.keys import RESERVED_PREFIX, parse_key, with_query
from volcache.monitoring.requests import READS, TIERS, is_sample
from volcache.slow_log import SlowLog
from volcache.tokens import LOG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.access import Limits
    from volcache.cache import Cache
    from volcache.http.admin import Admin
    from volcache.http.responses import Response
    from volcache.monitoring.requests import RequestStats
    from volcache.ring import OwnKeys

    # Takes the request and its path.
    _Handler = Callable[[WSGIEnvironment, str], Response]

_logger: Final = logging.getLogger(__name__)

ALLOW: Final = ("Allow", "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL")
_NS_PER_MS: Final = 1_000_000
# Those that are refused for keys of other instances.
_RING_METHODS: Final = (*READS, "PUT", "DELETE")
_MISDIRECTED_LINE_NS: Final = int(LOG_SECONDS * NS_PER_SECOND)
_RETRY_SOON: Final = ("Retry-After", "1")


class App:
    """Serves one cache over WSGI; never raises."""

    def __init__(
        self,
        cache: Cache,
        limits: Limits,
        *,
        stats: RequestStats,
        admin: Admin,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """
        Serve a cache.

        Args:
            cache: Holds the values; closed by the caller.
            limits: What is accepted.
            stats: Counts the requests.
            admin: Serves `/-/`.
            clock: Nanoseconds since the epoch, by the same clock as the store's.
            timer: Nanoseconds, monotonic, by the same clock as the histograms'.
        """
        self.stats = stats
        self.cache = cache
        self.limits = limits
        self._admin = admin
        self._slow_log = SlowLog(seconds=0)
        self.slow_ns = self._slow_log.threshold_ns
        self.ring: OwnKeys | None = None  # The keys of this instance; None: all.
        self._misdirected_line_ns = 0  # by `timer`: when the next one may be logged
        self._misdirected_logged = 0
        self.value_headers = ValueHeaders(clock, cache.remaining_ms)
        self._second_ends_ns = 0  # by `timer`
        self._clock = clock
        self._timer = timer
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
        started_ns = self._timer()
        if started_ns >= self._second_ends_ns:
            self._second_ends_ns = started_ns + self.value_headers.update()
        # bjoern omits the path for CONNECT and for `GET http://host`.
        path: str = environ.get("PATH_INFO", "")
        method: str = environ.get("REQUEST_METHOD", "")
        try:
            if path[:3] == RESERVED_PREFIX:
                status, headers, body, source = self._admin.respond(
                    method, path, environ
                )
            else:
                query = environ.get("QUERY_STRING", "")
                path = with_query(path, query, self.limits.query)
                handler = self._handlers.get(method) or self._refuse_method
                if self.ring is not None and _is_misdirected(self.ring, method, path):
                    handler = partial(self._refuse_key, self.ring)
                status, headers, body, source = handler(environ, path)
        except BaseException as error:  # noqa: BLE001 - See the module's docstring.
            status, headers, body, source = _error_response(error, method, path)
        if method == "HEAD":
            body = []  # bjoern would send it.
        headers.append(self.value_headers.date)
        start_response(status, headers)
        took_ns = self._timer() - started_ns
        self.stats.answers[method, status, source].observe(started_ns, took_ns)
        if source in TIERS and is_sample(started_ns + took_ns):
            self.sample(path)
        if took_ns > self.slow_ns:
            self.log_slow(method, path, status, started_ns, took_ns)
        return body

    def set_slow(self, seconds: float) -> None:
        """Log requests that take longer from now on; 0 = none."""
        self._slow_log.set_threshold(seconds)
        self.slow_ns = self._slow_log.threshold_ns

    def send(
        self, method: str, response: Response, start_response: StartResponse
    ) -> list[bytes]:
        """Send and count a response that was made outside, without looking at a key."""
        started_ns = self._timer()
        if started_ns >= self._second_ends_ns:
            self._second_ends_ns = started_ns + self.value_headers.update()
        status, headers, body, source = response
        start_response(status, [*headers, self.value_headers.date])
        took_ns = self._timer() - started_ns
        self.stats.answers[method, status, source].observe(started_ns, took_ns)
        return [] if method == "HEAD" else body

    def log_slow(
        self,
        method: str,
        path: str,
        status: str,
        started_ns: int,
        took_ns: int,
        waited: tuple[int, int] | None = None,
    ) -> None:
        """
        Log a slow request, with what it waited for; times by `timer`.

        `waited` is its time for the disk and for memcached, if other requests used them
        meanwhile.
        """
        disk_ns, hot_ns = waited or self.cache.waited_since(started_ns)
        self._slow_log.log(method, path, status, took_ns, disk_ns, hot_ns)

    def sample(self, path: str) -> None:
        """Count a path whose key was found as a request of that key."""
        # Without the limit, which may be lower than when the value was stored. A path
        # that is not a valid key is found only if something else wrote the volumes.
        with suppress(BadKeyError):
            self.stats.sample(parse_key(path, size_max=len(path)))

    def _refuse_key(
        self, ring: OwnKeys, environ: WSGIEnvironment, path: str
    ) -> Response:
        """Return the response for a key of another instance; log it."""
        stats, now_ns = self.stats, self._timer()
        owner = ring.owner(parse_key(path, size_max=len(path)))
        stats.others[owner] = self._clock() / NS_PER_SECOND
        if now_ns >= self._misdirected_line_ns:
            total = 1 + sum(stats.misdirected().values())  # With this one.
            _logger.info(
                "ring.misdirected requests=%d path=%r owner=%r",
                total - self._misdirected_logged,
                path,
                owner,
            )
            self._misdirected_logged = total
            self._misdirected_line_ns = now_ns + _MISDIRECTED_LINE_NS
        return other_response(owner, is_read=environ["REQUEST_METHOD"] in READS)

    def _get(self, environ: WSGIEnvironment, path: str) -> Response:
        if "HTTP_SERVICE_WORKER" in environ:
            return service_worker_response()
        if environ.keys() & CONDITIONS:
            # The header of the record decides, so a 304 does not read the value.
            response = self._head(environ, path)
            if response[0] != OK:
                return response
        key = parse_key(path, size_max=len(path))
        record = self.cache.get(key)
        if record is None:
            return self._miss(key)
        headers = self.value_headers.make(key, record)
        if "HTTP_RANGE" in environ:
            parts = requested_ranges(environ, record, self.value_headers.second)
            if parts is not None:
                response = range_response(headers, record, parts)
                is_whole = response[0] == OK
                self.stats.bytes_out += (
                    record.length if is_whole else sum(map(len, parts))
                )
                return response
        self.stats.bytes_out += record.length
        return OK, headers, [record.value], record.source

    def _head(self, environ: WSGIEnvironment, path: str) -> Response:
        key = parse_key(path, size_max=len(path))
        record = self.cache.stat(key)
        if record is None:
            return self._miss(key)
        headers = self.value_headers.make(key, record)
        if is_not_modified(environ, record, self.value_headers.second):
            return not_modified_response(headers, record.source)
        return OK, headers, [], record.source

    def _miss(self, key: bytes) -> Response:
        """
        Return the response to a GET or HEAD that found no value.

        Only here is the key limited: a value that was stored when the limit was higher is
        served. While the disk cannot be read, the key may well have a value: the answer is
        a 503 then, and nginx decides whether it becomes a miss or goes to another instance.
        """
        if len(key) > self.limits.key_size:
            raise KeyTooLongError(size=len(key), limit=self.limits.key_size)
        if self.cache.is_ready():
            return miss_response()
        status, headers, body, _ = text_response(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "not ready: the disk cannot be read, so it is unknown whether a value is"
            " stored; try again",
            _RETRY_SOON,
        )
        return status, headers, body, MISS

    def _put(self, environ: WSGIEnvironment, path: str) -> Response:
        key = parse_key(path, self.limits.key_size)
        value = read_value(environ, self.limits.value_size)
        content_type, content_encoding, cache_control = read_stored_headers(environ)
        flags = read_flags(environ)
        expires_ms = read_expiry(
            environ,
            self._clock() // _NS_PER_MS,
            default_ttl=self.limits.default_ttl,
            max_ttl=self.limits.max_ttl,
        )
        if expires_ms:
            expires_ms = self.cache.expiry_of(expires_ms)
        is_conditional = environ.keys() & CONDITIONS
        with self.cache.exclusive() if is_conditional else nullcontext():
            if is_conditional:
                require_change_allowed(environ, self.cache.stat(key))
            record = self.cache.put(
                key,
                value,
                content_type=content_type,
                content_encoding=content_encoding,
                cache_control=cache_control,
                expires_ms=expires_ms,
                flags=flags,
            )
        self.stats.bytes_in += len(value)
        return stored_response(record)

    def _delete(self, environ: WSGIEnvironment, path: str) -> Response:
        key = parse_key(path, self.limits.key_size)
        is_conditional = environ.keys() & CONDITIONS
        with self.cache.exclusive() if is_conditional else nullcontext():
            record = self.cache.stat(key) if is_conditional else None
            if record is not None:  # An absent key is a miss whatever the condition.
                require_change_allowed(environ, record)
            was_stored = self.cache.delete(key)
        return empty_response() if was_stored else miss_response()

    def _options(self, _environ: WSGIEnvironment, _path: str) -> Response:
        return empty_response(ALLOW)

    def _propfind(self, environ: WSGIEnvironment, path: str) -> Response:
        key = parse_key(path, self.limits.key_size) if path != "/" else b""
        if path.endswith("/"):
            depth = environ.get("HTTP_DEPTH", "infinity")
            return webdav.directory_response(
                path, depth, self._clock() // NS_PER_SECOND
            )
        record = self.cache.stat(key)
        if record is None:
            return miss_response()
        return webdav.file_response(path, key, record)

    def _mkcol(self, _environ: WSGIEnvironment, path: str) -> Response:
        if path != "/":
            parse_key(path, self.limits.key_size)
        return empty_response(status="201 Created")

    def _refuse_method(self, environ: WSGIEnvironment, _path: str) -> Response:
        return text_response(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"method {environ['REQUEST_METHOD']} is not allowed; allowed are {ALLOW[1]}",
            ALLOW,
        )


def _is_misdirected(ring: OwnKeys, method: str, path: str) -> bool:
    """Return whether a request is for a key of another instance."""
    if method not in _RING_METHODS:
        return False
    # The longest key may have been lowered since a value was stored.
    key = parse_key(path, size_max=len(path))
    return not (ring.may_read(key) if method in READS else ring.may_write(key))


def _error_response(error: BaseException, method: str, path: str) -> Response:
    """
    Return the response to a request that ended with an exception.

    A mistake of the client is reported to the client only; a failure of the disk also to
    the log; a bug, with its traceback, to the log only.
    """
    status = status_of(error)
    text = str(error)
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        return text_response(status, f"{text}; try again", _RETRY_SOON)
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
