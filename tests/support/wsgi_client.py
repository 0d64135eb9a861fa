"""A client that calls the application as bjoern does, without a server."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from volcache.access import Limits
from volcache.http.admin import Admin
from volcache.http.app import App
from volcache.http.responses import format_date
from volcache.monitoring.history import History
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.tokens import Refusals

KEY_SIZE_MAX: Final = 20
VALUE_SIZE_MAX: Final = 100
TEXT: Final = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """A response."""

    status: str
    headers: dict[str, str]
    body: bytes


def called(
    app: Any, environ: dict[str, Any]
) -> tuple[str, list[tuple[str, str]], list[bytes]]:
    """Call an application once; return status, headers and body as it gives them."""
    found: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        found.append((status, headers))

    body = app(environ, start_response)
    [(status, headers)] = found
    assert (type(status), type(headers), type(body)) == (str, list, list)
    names = [name for name, _ in headers if name != "WWW-Authenticate"]
    assert len(set(names)) == len(names)
    return status, headers, body


def make_app(  # noqa: PLR0913 - The settings, by keyword.
    cache: Any,
    limits: Limits,
    *,
    status: Monitor | None = None,
    history: History | None = None,
    token: str = "",
    hosts: Sequence[str] = (),
    metrics_volumes: bool = False,
    **clocks: Any,
) -> App:
    """Return an application with the paths of an operator, by default of a new instance."""
    status = status or Monitor(cache, RequestStats(), settings={}, boot_seconds=0)
    admin = Admin(
        status,
        history=history or History(status),
        refusals=Refusals(status.requests.refused),
        key_size=limits.key_size,
        metrics_volumes=metrics_volumes,
        reload=lambda: "nothing has changed",
    )
    admin.set_access(token, hosts)
    return App(cache, limits, stats=status.requests, admin=admin, **clocks)


class Client:
    """Calls an application as bjoern does, and checks what bjoern does not check."""

    def __init__(
        self,
        cache: Any,
        *,
        clock: Callable[[], int] | None = None,
        timer: Callable[[], int] | None = None,
        **more: Any,
    ) -> None:
        """
        Create an application for a cache, as `make_app` does.

        The machine of both has a clock in milliseconds, by default that of a `FakeCache`.
        """
        self.cache = cache
        self._clock = clock or (lambda: cache.machine_ms)
        self.app = make_app(
            cache,
            Limits(KEY_SIZE_MAX, VALUE_SIZE_MAX),
            clock=lambda: self.now_ms * 1_000_000,
            # Each request is in a second of its own, so it reads the clock.
            timer=timer or count(step=1_000_000_000).__next__,
            **more,
        )

    @property
    def now_ms(self) -> int:
        """The time of the machine, milliseconds since the epoch."""
        return self._clock()

    @now_ms.setter
    def now_ms(self, ms: int) -> None:
        self.cache.set_clock(ms)

    def ask(
        self, method: str, path: str | None = "/key", body: bytes = b"", **more: str
    ) -> Answer:
        """Send one request; further arguments are added to environ."""
        environ: dict[str, Any] = {"REQUEST_METHOD": method, **more}
        environ["wsgi.input"] = io.BytesIO(body)
        if path is not None:
            environ["PATH_INFO"] = path
        return self.call(environ)

    def call(self, environ: dict[str, Any]) -> Answer:
        """Call the application and check the form of its response."""
        status, pairs, chunks = called(self.app, environ)
        headers = dict(pairs)
        assert headers["Date"] == format_date(self.now_ms // 1000)
        if environ.get("REQUEST_METHOD") == "HEAD" or status.startswith("304"):
            assert chunks == []
        else:
            assert [type(chunk) for chunk in chunks] == [bytes]
            assert headers["Content-Length"] == str(len(chunks[0]))
        return Answer(status, headers, b"".join(chunks))

    def put(self, path: str, body: bytes, **more: str) -> Answer:
        """Store a value."""
        return self.ask("PUT", path, body, CONTENT_LENGTH=str(len(body)), **more)


def assert_error(answer: Answer, status: int, *words: str) -> None:
    """Check that a response is one line of text that contains some words."""
    assert answer.status.startswith(f"{status} ")
    assert answer.headers["Content-Type"] == TEXT
    assert answer.body.endswith(b"\n")
    assert answer.body.count(b"\n") == 1
    for word in words:
        assert word in answer.body.decode()
