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
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.keys import RESERVED_PREFIX, parse_key
from volcache.web import conditional, webdav
from volcache.web.admin import Admin
from volcache.web.lifetimes import Lifetimes
from volcache.web.ranges import requested_range
from volcache.web.responses import (
    OK,
    RecordHeaders,
    etag_of,
    send_empty,
    send_not_modified,
    send_part,
    send_text,
    status_of,
    stored_headers,
)
from volcache.web.uploads import (
    CONTENT_ENCODING_BYTES_MAX,
    CONTENT_TYPE_BYTES_MAX,
    encode_header,
    read_value,
    refuse_part,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.service import FileCache
    from volcache.store import Record

_log: Final = logging.getLogger(__name__)

ALLOW: Final = ("Allow", "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL")

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
        lifetimes: Lifetimes | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Answer from a cache.

        Args:
            cache: Where values are; not closed here.
            key_size_max: The longest key taken, in bytes.
            value_size_max: The longest value taken, in bytes.
            admin_token: Allows `POST /-/flush`; empty allows nobody.
            is_ready: What `/-/ready` answers, asked with each miss; must not raise.
            lifetimes: How long uploads are kept; for ever if not given.
            clock: Nanoseconds since the epoch, of the same clock as the cache's.

        """
        self._admin = Admin(flush=cache.flush, token=admin_token, is_ready=is_ready)
        self._is_ready = is_ready
        self._cache = cache
        self._key_size_max = key_size_max
        self._value_size_max = value_size_max
        self._lifetimes = lifetimes or Lifetimes()
        self._clock = clock
        self._get_record = cache.get
        headers = RecordHeaders(clock)
        self._make_headers = headers.make
        self._dated = headers.dated
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
        try:
            method: str = environ["REQUEST_METHOD"]
            # bjoern leaves it out for CONNECT and for a bare http://host.
            path: str = environ.get("PATH_INFO", "")
            if (
                method == "GET"
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
                    return [record[0]]
                if key == parse_key(path, self._key_size_max):
                    return self._missed(self._dated(start_response))
            return self._answer(method, path, environ, self._dated(start_response))
        except BaseException as error:  # noqa: BLE001 - Nothing may reach bjoern.
            return _fail(error, environ, self._dated(start_response))

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
        headers = self._make_headers(key, record)
        if "HTTP_RANGE" in environ:
            part = requested_range(
                environ, etag_of(record), record.stored_ms // 1000, record.length
            )
            if part is not None:
                return send_part(start_response, headers, record.value, part)
        start_response(OK, headers)
        return [record.value]

    def _head(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        record = self._cache.head(key)
        if record is None:
            return self._missed(start_response, is_head=True)
        if conditional.is_conditional(environ) and self._is_known(environ, record):
            return send_not_modified(start_response, self._make_headers(key, record))
        start_response(OK, self._make_headers(key, record))
        return []

    def _precondition(
        self, environ: WSGIEnvironment, start_response: StartResponse, key: bytes
    ) -> list[bytes] | None:
        """Answer a GET that its conditions decide; None: the value is wanted."""
        record = self._cache.head(key)
        if record is None:
            return self._missed(start_response)
        if self._is_known(environ, record):
            return send_not_modified(start_response, self._make_headers(key, record))
        return None

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
        expires_ms = self._lifetimes.expires_ms(environ, self._clock() // 1_000_000)
        if conditional.is_conditional(environ):
            self._require_for_change(environ, self._cache.head(key))
        record = self._cache.put(
            key,
            value,
            content_type=content_type,
            content_encoding=content_encoding,
            expires_ms=expires_ms,
        )
        start_response(OK, stored_headers(record))
        return [b""]

    def _delete(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        if conditional.is_conditional(environ):
            record = self._cache.head(key)
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
        record = self._cache.head(key)
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
        _log.error("request.failed method=%s path=%r", method, path, exc_info=error)
        text = "internal error; the log of the instance has the cause"
    elif status is HTTPStatus.INSUFFICIENT_STORAGE:
        _log.warning("request.refused method=%s path=%r cause=%r", method, path, text)
        if isinstance(error, OSError):  # Its text names files of the instance.
            text = f"the disk refused: {error.strerror or 'no reason given'}"
    return send_text(start_response, status, text, is_head=method == "HEAD")
