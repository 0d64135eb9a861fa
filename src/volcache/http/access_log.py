"""
The access log: WSGI middleware that writes one line per request.

`request_log.py` has the format. Malformed requests, which bjoern answers itself, are not
logged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from volcache.request_log import AccessLine, AccessLines, quoted, word
from volcache.text import escape_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import StartResponse, WSGIEnvironment

    from _typeshed import OptExcInfo

    from volcache.http.responses import Headers

_PATH_LENGTH_MAX: Final = 4096  # Characters of a line.
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
        self._lines = AccessLines(add, as_json=as_json, clock=clock)
        self._timer = timer

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
        ns = self._timer() - started_ns
        size = sum(map(len, body))
        self._lines.write(lambda: _line(environ, status, headers, size, ns))
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
        source: str,
    ) -> None:
        """
        Write the line of a request that C has answered.

        Args:
            remote: The address of the client.
            head: The head of the request, from its first line on; may be cut.
            status: The status line.
            position: Of the record; None without one.
            size: Bytes of the body.
            ns: The duration, in nanoseconds.
            ended_us: When it was answered, microseconds since the epoch.
            source: The tier that a record comes from, or MISS; empty if none was read.
        """
        environ = _environ_of(head)
        environ["REMOTE_ADDR"] = remote
        headers = [("X-Cache", source)] if source else []
        if position:
            headers.append(("X-Position", "{},{},{}".format(*position)))
        self._lines.write(
            lambda: _line(environ, status, headers, size, ns), ended_us * 1000
        )


def _line(
    environ: WSGIEnvironment, status: str, headers: Headers, size: int, ns: int
) -> AccessLine:
    """Return the line of a response."""
    shown = {name: value for name, value in headers if name.startswith("X-")}
    return AccessLine(
        ns,
        word(environ.get("REMOTE_ADDR", "")),
        word(environ.get("REQUEST_METHOD", "")),
        _uri(environ),
        word(environ.get("SERVER_PROTOCOL", "")),
        int(status[:3]),
        size,
        quoted(environ.get("HTTP_REFERER", "")),
        quoted(environ.get("HTTP_USER_AGENT", "")),
        quoted(environ.get("HTTP_X_FORWARDED_FOR", "")),
        shown.get("X-Cache"),
        shown.get("X-Position"),
    )


def _environ_of(head: bytes) -> WSGIEnvironment:
    """Return what a line shows of a request whose head C has checked."""
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


def _uri(environ: WSGIEnvironment) -> str:
    """Return path and query, encoded as in a request line."""
    path = escape_path(environ.get("PATH_INFO", ""), _PATH_LENGTH_MAX)
    query = quoted(environ.get("QUERY_STRING", ""))
    # The query is not decoded, so it has no spaces unless the request is forged.
    return f"{path}?{query.replace(' ', '%20')}" if query else path
