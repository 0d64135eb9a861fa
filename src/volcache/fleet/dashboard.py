"""
`volcache dashboard`: one page for all instances of a cluster.

The browser talks to this server only. It can only be read, and needs no token: by default
it listens on loopback. As for the page of an instance, requests are answered under
addresses and known names only, and the Content-Security-Policy allows the own script of
the page and nothing else. What instances answer is shown as text.

    /                         the page
    /api/cluster              all figures as JSON; `?since=SECONDS` leaves older points out
    /instances/NAME/          the page of one instance
    /instances/NAME/stats     its JSON, asked for now; also `?volumes=0`
    /instances/NAME/metrics   its metrics
    /healthy                  "ok"

Each connection has a thread and one request. Their number is limited: at the limit, others
wait, and the oldest is closed if it has taken more than two seconds; without others, after
twenty. So clients that are slow or do nothing cannot keep others out.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, unquote

from volcache.errors import ConfigError, InstanceError, ListenError
from volcache.fleet.remote import ask, fetch_stats
from volcache.http.admin import is_own_host, page_response, policy_of
from volcache.text import escape_header, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from volcache.fleet.poller import Poller, Watched

_logger = logging.getLogger("volcache.fleet")

CONNECTIONS_MAX: Final = 64
REQUEST_SECONDS: Final = 20.0  # From the connection to the end of the answer.
PATIENCE_SECONDS: Final = 2.0  # The same while others wait.
_WAIT_SECONDS: Final = 10.0  # For one read or write of the connection.
_TICK_SECONDS: Final = 0.25
_END_SECONDS: Final = 1.0
_BACKLOG: Final = 128
_PORT_MAX: Final = 65535
_SHOWN_MAX: Final = 100
_LINE_MAX: Final = 300
# What an instance answers is kept this long, for all browsers that show it.
_FRESH_SECONDS: Final = 1.0
_FETCH_SECONDS: Final = 5.0
# Instances that are asked for a browser at the same time, and how long others wait.
_FETCHES_MAX: Final = 16
_KEPT_MAX: Final = 64
_ALLOW: Final = ("Allow", "GET, HEAD")

_PAGE: Final = files("volcache.fleet").joinpath("dashboard.html").read_bytes()
_COMMON: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
_SANDBOX: Final = ("Content-Security-Policy", "default-src 'none'; sandbox")
_JSON: Final = "application/json; charset=utf-8"
_TEXT: Final = "text/plain; charset=utf-8"


class Reply(NamedTuple):
    """A response; `headers` are those besides the common ones."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes


def _data(content_type: str, body: bytes) -> Reply:
    headers = (("Content-Type", content_type), ("Cache-Control", "no-store"), _SANDBOX)
    return Reply(HTTPStatus.OK, headers, body)


def _line(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Reply:
    content = (("Content-Type", _TEXT), ("Cache-Control", "no-store"), _SANDBOX)
    return Reply(status, (*content, *headers), f"{text}\n".encode())


class _Kept(NamedTuple):
    """What an instance has answered, and when."""

    at: float
    reply: Reply


class _Overview(NamedTuple):
    """The JSON of all instances, and when it was made."""

    at: float
    body: bytes


class Dashboard:
    """Decides on answers; safe for any number of threads."""

    def __init__(self, poller: Poller, *, hosts: Iterable[str] = ()) -> None:
        """Show what a poller knows, under addresses, localhost and further names."""
        self._poller = poller
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._asking: dict[tuple[str, str], threading.Lock] = {}
        self._overviews: dict[float, _Overview] = {}
        self._overview = threading.Lock()
        self._fetches = threading.BoundedSemaphore(_FETCHES_MAX)

    def respond(self, method: str, target: str, host: str) -> Reply:
        """
        Return the response to a request.

        Args:
            method: Of the request.
            target: Path and query, as sent.
            host: The header `Host`; empty without one.
        """
        path, _, query = target.partition("?")
        if path == "/healthy":
            return _line(HTTPStatus.OK, "ok")
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
        return self._answer(path, query)

    def _answer(self, path: str, query: str) -> Reply:
        if path == "/":
            return Reply(HTTPStatus.OK, _PAGE_HEADERS, _PAGE)
        if path == "/api/cluster":
            return self._cluster(query)
        if path.startswith("/instances/"):
            return self._instance(path.removeprefix("/instances/"), query)
        return _line(
            HTTPStatus.NOT_FOUND,
            "no such path; the paths are /, /api/cluster, /instances/NAME/,"
            " /instances/NAME/stats, /instances/NAME/metrics and /healthy",
        )

    def _cluster(self, query: str) -> Reply:
        since = parse_qs(query).get("since", ["0"])[-1]
        try:
            after = float(since)
        except ValueError:
            after = nan
        if not isfinite(after):
            return _line(
                HTTPStatus.BAD_REQUEST,
                f'since="{escape_header(since, _SHOWN_MAX)}" is not a time; allowed are'
                " seconds since 1970",
            )
        # Made once for all browsers: with hundreds of instances it takes many milliseconds.
        with self._overview:
            now = time.monotonic()
            kept = {
                key: made
                for key, made in self._overviews.items()
                if now - made.at < _FRESH_SECONDS
            }
            if after not in kept:
                body = json.dumps(self._poller.overview(after)).encode()
                kept[after] = _Overview(now, body)
            self._overviews = kept
            return _data(_JSON, kept[after].body)

    def _instance(self, rest: str, query: str) -> Reply:
        """Return the response about one instance."""
        encoded, slash, what = rest.partition("/")
        watched = self._poller.find(unquote(encoded))
        if watched is None:
            return _line(
                HTTPStatus.NOT_FOUND,
                f'no instance is called "{escape_header(unquote(encoded), _SHOWN_MAX)}";'
                " /api/cluster has their names",
            )
        if not slash:
            place = f"{quote(watched.name, safe='')}/"
            return _line(HTTPStatus.MOVED_PERMANENTLY, place, ("Location", place))
        if not what:
            status, headers, body, _ = page_response()
            kept = [header for header in headers if header[0] != "Content-Length"]
            return Reply(HTTPStatus(int(status[:3])), tuple(kept), b"".join(body))
        if what == "stats":
            is_short = parse_qs(query).get("volumes") == ["0"]
            return self._fetched(watched, "short" if is_short else "stats")
        if what == "metrics":
            return self._fetched(watched, "metrics")
        return _line(
            HTTPStatus.NOT_FOUND,
            "no such path; those of an instance are stats and metrics",
        )

    # --- What an instance answers ------------------------------------------------------

    def _fetched(self, watched: Watched, what: str) -> Reply:
        """Ask an instance, once for all who want to know at the same time."""
        if watched.failure:
            # It would only take the time-out to find out again.
            return _unavailable(watched.failure)
        key = (watched.target.url, what)
        with self._lock:
            lock = self._asking.setdefault(key, threading.Lock())
        if not lock.acquire(timeout=_FETCH_SECONDS):
            return _unavailable("others wait for its answer already")
        try:
            kept = self._kept.get(key)
            if kept is None or time.monotonic() - kept.at > _FRESH_SECONDS:
                kept = _Kept(time.monotonic(), self._ask(*key))
                self._keep(key, kept)
            return kept.reply
        finally:
            lock.release()

    def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        """Keep an answer; those that are no longer fresh are forgotten."""
        with self._lock:
            old = [
                other
                for other, found in self._kept.items()
                if kept.at - found.at > _FRESH_SECONDS
            ]
            for other in old:
                del self._kept[other]
                self._asking.pop(other, None)
            if len(self._kept) < _KEPT_MAX:
                self._kept[key] = kept

    def _ask(self, url: str, what: str) -> Reply:
        if not self._fetches.acquire(timeout=_FETCH_SECONDS):
            return _unavailable("too many instances are asked at the same time")
        try:
            if what == "metrics":
                answer = ask(url, "/-/metrics", timeout=_FETCH_SECONDS)
                if answer.status != HTTPStatus.OK:
                    return _unavailable(f"/-/metrics is answered with {answer.status}")
                return _data(_TEXT, answer.body)
            is_long = what == "stats"
            stats = fetch_stats(url, timeout=_FETCH_SECONDS, volumes=is_long)
            return _data(_JSON, json.dumps(stats).encode())
        except InstanceError as error:
            return _unavailable(error.reason)
        finally:
            self._fetches.release()


def _unavailable(reason: str) -> Reply:
    return _line(HTTPStatus.BAD_GATEWAY, one_line(reason, _LINE_MAX))


_PAGE_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-cache"),
    ("Content-Security-Policy", policy_of(_PAGE)),
)


# --- The server ------------------------------------------------------------------------


def parse_listen(text: str) -> tuple[str, int]:
    """
    Return address and port of `HOST:PORT`.

    Raises:
        ConfigError: It is something else.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_number = port.isascii() and port.isdigit() and len(port) < len("100000")
    if not bare or (":" in bare) == (bare == host) or not is_number:
        raise ConfigError(
            f"--listen {one_line(text, _SHOWN_MAX)}: allowed is ADDRESS:PORT, such as"
            " 127.0.0.1:8090 or [::1]:8090"
        )
    if int(port) > _PORT_MAX:
        raise ConfigError(
            f"--listen {one_line(text, _SHOWN_MAX)}: the port is {port}; allowed are 0"
            f" to {_PORT_MAX}; 0 picks a free one"
        )
    return bare, int(port)


class DashboardServer(ThreadingHTTPServer):
    """Serves a dashboard; see the module."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = _BACKLOG

    def __init__(
        self,
        dashboard: Dashboard,
        host: str,
        port: int,
        *,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        """
        Listen; connections wait until `serve_forever` is called.

        Args:
            dashboard: Decides on the answers.
            host: An address of this machine, or a name of one.
            port: 0 picks a free one.
            request_seconds: After this time a connection is closed.

        Raises:
            ListenError: The address cannot be listened on.
        """
        self.dashboard = dashboard
        self._seconds = request_seconds
        self._open: dict[socket.socket, float] = {}  # since when; the oldest first
        self._changed = threading.Condition()
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            found = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self.address_family, _, _, _, address = found[0]
            super().__init__((str(address[0]), int(address[1])), _Handler)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {shown}: {error.strerror or error}; choose another"
                " address with --listen ADDRESS:PORT"
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self.server_address[:2]
        text = str(host)
        return f"http://[{text}]:{port}/" if ":" in text else f"http://{text}:{port}/"

    def server_bind(self) -> None:
        """Bind, without asking for the name of the address, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - As the base class has it.
        """Serve a connection in a thread, as soon as there is room for one."""
        with self._changed:
            while len(self._open) >= CONNECTIONS_MAX:
                self._cut_before(time.monotonic() - PATIENCE_SECONDS)
                self._changed.wait(_TICK_SECONDS)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - As the base class has it.
        """Forget a connection and close it."""
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close what is late; called several times a second."""
        with self._changed:
            self._cut_before(time.monotonic() - self._seconds)

    def _cut_before(self, limit: float) -> None:
        """End the connections that began before a time; their threads close them."""
        for request, began in self._open.items():
            if began >= limit:
                break
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - As the base class has it.
        """Ignore clients that went away; `_Handler` reports all else."""


def _answerer(name: str) -> Callable[[_Handler], None]:
    def answer(handler: _Handler) -> None:
        handler.answer(name)

    return answer


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    timeout = _WAIT_SECONDS

    def answer(self, method: str) -> None:
        """Answer the request that was read."""
        host = self.headers.get("Host", "")
        try:
            reply = self.server.dashboard.respond(method, self.path, host)
        except Exception:
            _logger.exception("dashboard.failed")
            reply = _line(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        self._send(reply)

    do_GET = _answerer("GET")  # noqa: N815 - The names of the base class.
    do_HEAD = _answerer("HEAD")  # noqa: N815
    do_POST = _answerer("POST")  # noqa: N815
    do_PUT = _answerer("PUT")  # noqa: N815
    do_DELETE = _answerer("DELETE")  # noqa: N815
    do_OPTIONS = _answerer("OPTIONS")  # noqa: N815

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Answer what is no request, as one line of text."""
        del explain
        status = HTTPStatus(code)
        self._send(_line(status, one_line(message or status.phrase, _LINE_MAX)))

    def version_string(self) -> str:
        return "volcache"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in (*reply.headers, *_COMMON):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)


def run(poller: Poller, server: DashboardServer, wait: Callable[[], object]) -> None:
    """
    Poll and serve until `wait` returns; then end, after a second at most.

    Requests that are being answered, and polls that wait, are abandoned: their threads
    end with the process.
    """
    poller.start()
    thread = threading.Thread(
        target=server.serve_forever, args=[_TICK_SECONDS], name="serve", daemon=True
    )
    thread.start()
    try:
        wait()
    finally:
        poller.stop()
        # `shutdown` waits without a limit, for example while there are too many
        # connections. Closing the socket first would make the loop run without a pause.
        threading.Thread(target=server.shutdown, name="end", daemon=True).start()
        thread.join(_END_SECONDS)
        server.socket.close()
