"""
The WSGI application: which verb on which path does what.

Everything is caught at its edge: an exception that escapes makes bjoern close the
connection, SystemExit and KeyboardInterrupt would end it. Runs in bjoern's one thread.
Knows HTTP's verbs; headers and statuses are in `responses.py`, conditions and ranges in
`conditional.py` and `ranges.py`, what an upload must be in `uploads.py` and
`lifetimes.py`, what a value is in the service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.http import preconditions as conditional
from volcache.http import webdav
from volcache.http.admin import Admin
from volcache.http.preconditions import requested_range
from volcache.http.responses import (
    OK,
    Answer,
    RecordHeaders,
    etag_of,
    send_empty,
    send_not_modified,
    send_part,
    send_text,
    status_of,
)
from volcache.http.ttl import TtlPolicy
from volcache.http.upload import (
    CONTENT_ENCODING_BYTES_MAX,
    CONTENT_TYPE_BYTES_MAX,
    encode_header,
    read_value,
    refuse_part,
)
from volcache.keys import RESERVED_PREFIX, parse_key
from volcache.monitoring.requests import RequestStats

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.cache import FileCache
    from volcache.monitoring.snapshot import Monitor
    from volcache.store import Record

_logger: Final = logging.getLogger(__name__)

ALLOW: Final = ("Allow", "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL")

OnSlow = Callable[[str, str, int, int, int, int], None]

_NEVER_NS: Final = 1 << 63

# Misses are as frequent as hits, so their answer is made once.
_MISS_TEXT: Final = b"no value is stored under this key\n"
_MISS_HEADERS: Final = (
    ("X-Cache", "MISS"),
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Length", str(len(_MISS_TEXT))),
)


class App:
    """Answers requests from one cache; never raises."""

    def __init__(  # noqa: PLR0913 - Settings, by keyword.
        self,
        cache: FileCache,
        *,
        key_size_max: int,
        value_size_max: int,
        admin_token: str = "",
        is_ready: Callable[[], bool] = lambda: True,
        lifetimes: TtlPolicy | None = None,
        clock: Callable[[], int] = time.time_ns,
        stats: RequestStats | None = None,
        slow_seconds: float = 0,
        on_slow: OnSlow = lambda *_: None,
        status: Monitor | None = None,
    ) -> None:
        """
        Answer from a cache.

        Args:
            cache: Where values are; not closed here.
            key_size_max: The longest key taken, in bytes.
            value_size_max: The longest value taken, in bytes.
            admin_token: Allows `POST /-/flush`; empty allows nobody.
            is_ready: Whether the disk can be read, asked with each miss; must not raise.
            lifetimes: How long uploads are kept; for ever if not given.
            clock: Nanoseconds since the epoch, of the same clock as the cache's.
            stats: Where requests are counted; made here if not given.
            slow_seconds: What takes longer is told to `on_slow`; 0 = nothing is.
            on_slow: Given verb, path, status and the nanoseconds of all, of the disk
                and of memcached; must not raise.
            status: What `/-/stats` and the like show; without it there are none.

        """
        self._admin = Admin(
            flush=cache.flush, token=admin_token, is_ready=is_ready, status=status
        )
        self._is_ready = is_ready
        self._cache = cache
        self._key_size_max = key_size_max
        self._value_size_max = value_size_max
        self._lifetimes = lifetimes or TtlPolicy()
        self._clock = clock
        self._get_record = cache.get
        headers = RecordHeaders(clock)
        self._make_headers = headers.make
        self._dates = headers
        self.stats = stats or RequestStats()
        self._slow_ns = round(slow_seconds * 1e9) or _NEVER_NS
        self._on_slow = on_slow
        self._verbs: dict[
            str, Callable[[WSGIEnvironment, StartResponse, str], list[bytes]]
        ] = {
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
        key = None
        try:
            # bjoern leaves the path out for CONNECT and for a bare http://host.
            path: str = environ.get("PATH_INFO", "")
            if (
                environ["REQUEST_METHOD"] == "GET"
                and path[:1] == "/"
                # The reserved prefix, and what looks like it; one character is not
                # allocated, three are.
                and path[1:2] != "-"
                # Written out: a loop over the names takes three times as long.
                and "HTTP_RANGE" not in environ
                and "HTTP_IF_NONE_MATCH" not in environ
                and "HTTP_IF_MODIFIED_SINCE" not in environ
                and "HTTP_IF_MATCH" not in environ
                and "HTTP_IF_UNMODIFIED_SINCE" not in environ
            ):
                # Look first, check the path after: what is stored was put under a key
                # that had been checked, so what is found needs no check. `_answer` does
                # it all in order; a hit, the most frequent request, is spared it.
                key = path[1:].encode("latin-1")
                record = self._get_record(key)
                if record is not None:
                    start_response(OK, self._make_headers(key, record))
                    took = perf_counter_ns() - started_ns
                    self.stats.count("GET", OK, started_ns, took)
                    self.stats.count_hit(key, record.source, record.length)
                    if took > self._slow_ns:
                        self._log_slow_request("GET", path, OK, started_ns, took)
                    return [record[0]]
        except BaseException as error:  # noqa: BLE001 - Nothing may reach bjoern.
            return self._answer_any(environ, start_response, started_ns, key, error)
        return self._answer_any(environ, start_response, started_ns, key)

    def _answer_any(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        started_ns: int,
        missed: bytes | None,
        error: BaseException | None = None,
    ) -> list[bytes]:
        """
        Answer what is no plain hit, and count it.

        Args:
            environ: The request.
            start_response: As WSGI gives it.
            started_ns: When, by `perf_counter_ns`.
            missed: What was looked for in vain already.
            error: How the search ended, if it did not come to its end.
        """
        answer = Answer(start_response, self._dates)
        method: str = environ.get("REQUEST_METHOD", "")
        path: str = environ.get("PATH_INFO", "")
        try:
            if error is not None:
                body = _fail(error, environ, answer)
            elif missed is not None and missed == parse_key(path, self._key_size_max):
                body = self._missed(answer)
            else:
                body = self._answer(method, path, environ, answer)
        except BaseException as failure:  # noqa: BLE001 - Nothing may reach bjoern.
            body = _fail(failure, environ, answer)
        took = perf_counter_ns() - started_ns
        self.stats.count(method, answer.status, started_ns, took)
        if took > self._slow_ns:
            self._log_slow_request(method, path, answer.status, started_ns, took)
        return body

    def _log_slow_request(
        self, method: str, path: str, status: str, started_ns: int, took: int
    ) -> None:
        """Tell of a request that took long, and where its time went."""
        disk, memcached = self._cache.waited_since(started_ns)
        self._on_slow(method, path, int(status[:3]), took, disk, memcached)

    def _answer(
        self,
        method: str,
        path: str,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> list[bytes]:
        """Answer a request of any kind."""
        if path[:3] == RESERVED_PREFIX:
            return self._admin.answer(method, path, environ, start_response)
        verb = self._verbs.get(method)
        if verb is None:
            return send_text(
                start_response,
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{method} is not allowed; allowed are {ALLOW[1]}",
                ALLOW,
            )
        return verb(environ, start_response, path)

    def _missed(
        self, start_response: StartResponse, *, is_head: bool = False
    ) -> list[bytes]:
        """
        Answer a read that found nothing.

        While the disk cannot be read, that says nothing of the key: it is a 503 then,
        with which nginx makes a miss of it or goes elsewhere, as it was told to.
        """
        self.stats.misses += 1
        if self._is_ready():
            return _miss(start_response, is_head=is_head)
        return send_text(
            start_response,
            HTTPStatus.SERVICE_UNAVAILABLE,
            "not ready: the disk does not answer, so whether there is a value is not"
            " known; ask again",
            ("Retry-After", "1"),
            is_head=is_head,
        )

    def _get(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        if conditional.is_conditional(environ):
            # A condition is about what is known without reading the value.
            answer = self._precondition(environ, start_response, key)
            if answer is not None:
                return answer
        record = self._get_record(key)
        if record is None:
            return self._missed(start_response)
        self._count_hit(record)
        headers = self._make_headers(key, record)
        if "HTTP_RANGE" in environ:
            part = requested_range(
                environ, etag_of(record), record.stored_ms // 1000, record.length
            )
            if part is not None:
                self.stats.bytes_out += len(part)
                return send_part(start_response, headers, record.value, part)
        self.stats.bytes_out += record.length
        start_response(OK, headers)
        return [record.value]

    def _head(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        record = self._cache.stat(key)
        if record is None:
            return self._missed(start_response, is_head=True)
        is_known = conditional.is_conditional(environ) and self._is_known(
            environ, record
        )
        self._count_hit(record)  # As with a GET: not when a condition does not hold.
        if is_known:
            return send_not_modified(start_response, self._make_headers(key, record))
        start_response(OK, self._make_headers(key, record))
        return []

    def _precondition(
        self, environ: WSGIEnvironment, start_response: StartResponse, key: bytes
    ) -> list[bytes] | None:
        """Answer a GET that its conditions decide; None: the value is wanted."""
        record = self._cache.stat(key)
        if record is None:
            return self._missed(start_response)
        if self._is_known(environ, record):
            self._count_hit(record)
            return send_not_modified(start_response, self._make_headers(key, record))
        return None

    def _count_hit(self, record: Record) -> None:
        if record.source == "DISK":
            self.stats.disk_hits += 1
        else:
            self.stats.memc_hits += 1

    def _is_known(self, environ: WSGIEnvironment, record: Record) -> bool:
        """
        Tell whether a reader has the record already.

        Raises:
            PreconditionFailedError: It wants another one.

        """
        tag, modified = etag_of(record), record.stored_ms // 1000
        conditional.require(environ, tag, modified)
        return conditional.is_known(environ, tag, modified)

    def _put(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        refuse_part(environ)
        value = read_value(environ, self._value_size_max)
        content_type = content_encoding = b""
        if environ.get("CONTENT_TYPE"):
            content_type = encode_header(
                "Content-Type", environ["CONTENT_TYPE"], CONTENT_TYPE_BYTES_MAX
            )
        if environ.get("HTTP_CONTENT_ENCODING"):
            content_encoding = encode_header(
                "Content-Encoding",
                environ["HTTP_CONTENT_ENCODING"],
                CONTENT_ENCODING_BYTES_MAX,
            )
        expires_ms = 0
        if self._lifetimes.concern(environ):
            now_ms = self._clock() // 1_000_000
            expires_ms = self._lifetimes.expires_ms(environ, now_ms)
        if conditional.is_conditional(environ):
            self._require_for_change(environ, self._cache.stat(key))
        record = self._cache.put(
            key,
            value,
            content_type=content_type,
            content_encoding=content_encoding,
            expires_ms=expires_ms,
        )
        self.stats.bytes_in += len(value)
        start_response(OK, self._dates.make_stored(record))
        return [b""]

    def _delete(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        if conditional.is_conditional(environ):
            record = self._cache.stat(key)
            if record is not None:  # Else it is a miss, whatever the condition.
                self._require_for_change(environ, record)
        if not self._cache.delete(key):
            return _miss(start_response)
        return send_empty(start_response)

    def _require_for_change(
        self, environ: WSGIEnvironment, record: Record | None
    ) -> None:
        """
        Let a PUT or a DELETE pass whose conditions hold for what is stored.

        Requests come one at a time, so nothing can change it before they are done.

        Raises:
            PreconditionFailedError: They do not; nothing was changed.

        """
        tag = None if record is None else etag_of(record)
        modified = 0 if record is None else record.stored_ms // 1000
        conditional.require(environ, tag, modified)
        conditional.require_absent(environ, tag)

    def _options(
        self, _environ: WSGIEnvironment, start_response: StartResponse, _path: str
    ) -> list[bytes]:
        return send_empty(start_response, ALLOW)

    def _propfind(
        self, _environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        if path == "/":
            return webdav.send_folder(start_response, path, self._clock() // 10**9)
        key = parse_key(path, self._key_size_max)
        if webdav.is_folder(path):
            return webdav.send_folder(start_response, path, self._clock() // 10**9)
        record = self._cache.stat(key)
        if record is None:
            return _miss(start_response)
        return webdav.send_file(start_response, path, key, record)

    def _mkcol(
        self, _environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        if path != "/":
            parse_key(path, self._key_size_max)
        return webdav.send_made(start_response)


def _miss(start_response: StartResponse, *, is_head: bool = False) -> list[bytes]:
    """Answer that there is no value under the key."""
    start_response("404 Not Found", [*_MISS_HEADERS])
    return [] if is_head else [_MISS_TEXT]


def _fail(
    error: BaseException, environ: WSGIEnvironment, start_response: StartResponse
) -> list[bytes]:
    """
    Answer a request that ended with an exception.

    What a client did wrong is said to the client alone, what the disk did also to the
    log, a mistake of ours with its traceback to the log alone.
    """
    status = status_of(error)
    method = environ.get("REQUEST_METHOD", "")
    path = environ.get("PATH_INFO", "")
    text = str(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        _logger.error("request.failed method=%s path=%r", method, path, exc_info=error)
        text = "internal error; the log of the instance has the cause"
    elif status is HTTPStatus.INSUFFICIENT_STORAGE:
        _logger.warning(
            "request.refused method=%s path=%r error=%r", method, path, text
        )
        if isinstance(error, OSError):  # Its text names files of the instance.
            text = f"the disk refused: {error.strerror or 'no reason given'}"
    return send_text(start_response, status, text, is_head=method == "HEAD")
