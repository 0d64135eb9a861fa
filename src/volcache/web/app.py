"""
The WSGI application: which verb on which path does what.

Everything is caught at its edge: an exception that escapes makes bjoern close the
connection, SystemExit and KeyboardInterrupt would end it. Runs in bjoern's one thread.
Knows HTTP's verbs; headers and statuses are in `responses.py`, what an upload must be
in `uploads.py`, what a value is in the service.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.keys import RESERVED_PREFIX, parse_key
from volcache.web.admin import Admin
from volcache.web.responses import (
    OK,
    RecordHeaders,
    send_empty,
    send_text,
    status_of,
    stored_headers,
)
from volcache.web.uploads import (
    CONTENT_ENCODING_BYTES_MAX,
    CONTENT_TYPE_BYTES_MAX,
    encode_header,
    read_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.service import FileCache

_log: Final = logging.getLogger(__name__)

ALLOW: Final = ("Allow", "GET, HEAD, PUT, DELETE, OPTIONS")

# Misses are as frequent as hits, so their answer is made once.
_MISS_TEXT: Final = b"no value is stored under this key\n"
_MISS_HEADERS: Final = (
    ("X-Cache", "MISS"),
    ("Content-Type", "text/plain; charset=utf-8"),
    ("Content-Length", str(len(_MISS_TEXT))),
)


class App:
    """Answers requests from one cache; never raises."""

    def __init__(
        self,
        cache: FileCache,
        *,
        key_size_max: int,
        value_size_max: int,
        admin_token: str = "",
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Answer from a cache.

        Args:
            cache: Where values are; not closed here.
            key_size_max: The longest key taken, in bytes.
            value_size_max: The longest value taken, in bytes.
            admin_token: Allows `POST /-/flush`; empty allows nobody.
            is_ready: What `/-/ready` answers; must not raise.

        """
        self._admin = Admin(flush=cache.flush, token=admin_token, is_ready=is_ready)
        self._cache = cache
        self._key_size_max = key_size_max
        self._value_size_max = value_size_max
        self._get_record = cache.get
        self._make_headers = RecordHeaders().make
        self._verbs: dict[
            str, Callable[[WSGIEnvironment, StartResponse, str], list[bytes]]
        ] = {
            "GET": self._get,
            "HEAD": self._head,
            "PUT": self._put,
            "DELETE": self._delete,
            "OPTIONS": self._options,
        }

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request: `[]` or one `bytes` of exactly Content-Length."""
        try:
            method: str = environ["REQUEST_METHOD"]
            # bjoern leaves it out for CONNECT and for a bare http://host.
            path: str = environ.get("PATH_INFO", "")
            if method == "GET" and path[:1] == "/" and path[:3] != RESERVED_PREFIX:
                # Look first, check the path after: what is stored was put under a key
                # that had been checked, so what is found needs no check. `_answer` does
                # it all in order; a hit, the most frequent request, is spared it.
                key = path[1:].encode("latin-1")
                record = self._get_record(key)
                if record is not None:
                    start_response(OK, self._make_headers(key, record))
                    return [record[0]]
            return self._answer(method, path, environ, start_response)
        except BaseException as error:  # noqa: BLE001 - Nothing may reach bjoern.
            return _fail(error, environ, start_response)

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

    def _get(
        self, _environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        if key == path[1:].encode("latin-1"):
            return _miss(start_response)  # It has just been looked for.
        record = self._get_record(key)
        if record is None:
            return _miss(start_response)
        start_response(OK, self._make_headers(key, record))
        return [record.value]

    def _head(
        self, _environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
        record = self._cache.head(key)
        if record is None:
            return _miss(start_response, is_head=True)
        start_response(OK, self._make_headers(key, record))
        return []

    def _put(
        self, environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        key = parse_key(path, self._key_size_max)
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
        record = self._cache.put(
            key, value, content_type=content_type, content_encoding=content_encoding
        )
        start_response(OK, stored_headers(record))
        return [b""]

    def _delete(
        self, _environ: WSGIEnvironment, start_response: StartResponse, path: str
    ) -> list[bytes]:
        if not self._cache.delete(parse_key(path, self._key_size_max)):
            return _miss(start_response)
        return send_empty(start_response)

    def _options(
        self, _environ: WSGIEnvironment, start_response: StartResponse, _path: str
    ) -> list[bytes]:
        return send_empty(start_response, ALLOW)


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
