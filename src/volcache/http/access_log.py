"""
The access log: WSGI middleware that writes one line per request.

Lines have nginx's format `main` with three fields more, or are JSON. Everything that comes
from a client is escaped, so no client can end a field or a line. Malformed requests, which
bjoern answers itself, are not logged.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from volcache.histogram import NS_PER_SECOND
from volcache.http.responses import MISS
from volcache.log_writer import LineTime
from volcache.text import escape_header, escape_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from _typeshed import OptExcInfo

    from volcache.http.responses import Headers

_logger: Final = logging.getLogger(__name__)
_PATH_LENGTH_MAX: Final = 4096  # Characters of a line.
_FIELD_LENGTH_MAX: Final = 200
_SHOWN: Final = ("HTTP_REFERER", "HTTP_USER_AGENT", "HTTP_X_FORWARDED_FOR")


class AccessLog:
    """Wraps an application and writes a line for each of its responses."""

    def __init__(
        self,
        app: Callable[[WSGIEnvironment, StartResponse], list[bytes]],
        add: Callable[[str], None],
        *,
        as_json: bool = False,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """
        Wrap an application.

        Args:
            app: Must not raise; neither does the wrapper.
            add: Takes a line with its line feed; must not block.
            as_json: Write one JSON object per line.
            clock: Nanoseconds since the epoch.
            timer: Nanoseconds, monotonic.
        """
        self._app = app
        self._add = add
        self._format = self._as_json if as_json else self._as_text
        self._clock = clock
        self._timer = timer
        self._time = LineTime()
        self._now_ns = 0  # of the line, if it is not now

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        started_ns = self._timer()
        status = ""
        headers: Headers = []

        def start(
            status_: str, headers_: Headers, error: OptExcInfo | None = None, /
        ) -> Callable[[bytes], object]:
            nonlocal status, headers
            status, headers = status_, headers_
            return start_response(status_, headers_, error)

        body = self._app(environ, start)
        try:
            ns = self._timer() - started_ns
            self._add(
                self._format(environ, status, headers, sum(map(len, body)), ns) + "\n"
            )
        except Exception:
            _logger.exception("access.line_failed")
        return body

    def add_native(  # noqa: PLR0913, PLR0917 - Called from C.
        self,
        remote: str,
        head: bytes,
        status: str,
        position: tuple[int, int, int] | None,
        size: int,
        ns: int,
        ended_us: int,
    ) -> None:
        """
        Write the line of a GET that the gate has answered.

        Args:
            remote: The address of the client.
            head: The head of the request, from its first line on; may be cut.
            status: The status line.
            position: Of the record; None for a miss.
            size: Bytes of the body.
            ns: The duration, in nanoseconds.
            ended_us: When it was answered, microseconds since the epoch.
        """
        headers = [("X-Cache", "DISK" if position else MISS)]
        if position:
            headers.append(("X-Position", "{},{},{}".format(*position)))
        environ = _environ_of(head)
        environ["REMOTE_ADDR"] = remote
        self._now_ns = ended_us * 1000
        try:
            self._add(self._format(environ, status, headers, size, ns) + "\n")
        except Exception:
            _logger.exception("access.line_failed")
        self._now_ns = 0

    def _as_text(
        self,
        environ: WSGIEnvironment,
        status: str,
        headers: Headers,
        size: int,
        ns: int,
    ) -> str:
        """Return a line in nginx's format `main`, with three fields more."""
        cache, position = _cache_and_position(headers)
        return (
            f"{_word(environ, 'REMOTE_ADDR')} - - [{self._time.text(self._now())}]"
            f' "{_word(environ, "REQUEST_METHOD")} {_uri(environ)}'
            f' {_word(environ, "SERVER_PROTOCOL")}"'
            f' {status[:3]} {size} "{_field(environ, "HTTP_REFERER")}"'
            f' "{_field(environ, "HTTP_USER_AGENT")}"'
            f' "{_field(environ, "HTTP_X_FORWARDED_FOR")}"'
            f" cache={cache or '-'} position={position or '-'}"
            f" seconds={ns / NS_PER_SECOND:.6f}"
        )

    def _as_json(
        self,
        environ: WSGIEnvironment,
        status: str,
        headers: Headers,
        size: int,
        ns: int,
    ) -> str:
        """Return a JSON object; absent fields are null."""
        cache, position = _cache_and_position(headers)
        return json.dumps(
            {
                "time": self._time.json(self._now()),
                "remote": _word(environ, "REMOTE_ADDR"),
                "method": _word(environ, "REQUEST_METHOD"),
                "uri": _uri(environ),
                "protocol": _word(environ, "SERVER_PROTOCOL"),
                "status": int(status[:3]),
                "bytes": size,
                "referer": _optional(environ, "HTTP_REFERER"),
                "agent": _optional(environ, "HTTP_USER_AGENT"),
                "forwarded": _optional(environ, "HTTP_X_FORWARDED_FOR"),
                "cache": cache,
                "position": position,
                "seconds": round(ns / NS_PER_SECOND, 6),
            }
        )

    def _now(self) -> int:
        return self._now_ns or self._clock()


def _environ_of(head: bytes) -> WSGIEnvironment:
    """Return what a line shows of a request whose head the gate has checked."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = (*first.split(" ", 2), "", "")[:3]
    path, _, query = target.partition("?")
    if not path.startswith("/"):  # http://host/path
        path = "/" + path.partition("://")[2].partition("/")[2]
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": unquote_to_bytes(path.encode("latin-1")).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": version,
    }
    for line in lines:
        name, _, value = line.partition(":")
        name = "HTTP_" + name.upper().replace("-", "_")
        if name in _SHOWN:
            value = value.strip(" \t")
            environ[name] = f"{environ[name]}, {value}" if name in environ else value
    return environ


def _cache_and_position(headers: Headers) -> tuple[str | None, str | None]:
    """Return X-Cache and X-Position of a response."""
    cache = position = None
    for name, value in headers:
        if name == "X-Cache":
            cache = value
        elif name == "X-Position":
            position = value
    return cache, position


def _word(environ: WSGIEnvironment, name: str) -> str:
    """Return a field without quotes; `-` if it is absent."""
    return escape_path(environ.get(name, ""), _FIELD_LENGTH_MAX) or "-"


def _optional(environ: WSGIEnvironment, name: str) -> str | None:
    """Return a header for a field in quotes; None if it is absent."""
    text: str = environ.get(name, "")
    return escape_header(text, _FIELD_LENGTH_MAX) if text else None


def _field(environ: WSGIEnvironment, name: str) -> str:
    """Return a header for a field in quotes; `-` if it is absent."""
    return _optional(environ, name) or "-"


def _uri(environ: WSGIEnvironment) -> str:
    """Return path and query, encoded as in a request line."""
    path = escape_path(environ.get("PATH_INFO", ""), _PATH_LENGTH_MAX)
    query: str = environ.get("QUERY_STRING", "")
    if not query:
        return path
    # The query is not decoded, so it has no spaces unless the request is forged.
    query = escape_header(query, _FIELD_LENGTH_MAX).replace(" ", "%20")
    return f"{path}?{query}"
