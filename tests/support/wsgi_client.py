"""A client that calls the application as bjoern does, without a server."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from volcache.http.admin import Admin
from volcache.http.app import App, RequestLimits
from volcache.http.responses import format_date
from volcache.keys import Query
from volcache.monitoring.history import History
from volcache.monitoring.snapshot import Monitor

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


class Client:
    """Calls an application as bjoern does, and checks what bjoern does not check."""

    def __init__(  # noqa: PLR0913 - The settings, by keyword.
        self,
        cache: Any,
        *,
        clock: Callable[[], int] | None = None,
        timer: Callable[[], int] | None = None,
        admin_token: str = "",
        admin_hosts: Sequence[str] = (),
        status: Monitor | None = None,
        history: History | None = None,
        metrics_volumes: bool = False,
        query: Query = "ignore",
    ) -> None:
        """
        Create an application for a cache.

        The machine of both has a clock in milliseconds, by default that of a `FakeCache`.
        """
        self.cache = cache
        self._clock = clock or (lambda: cache.machine_ms)
        self.app = App(
            cache,
            RequestLimits(
                key_size=KEY_SIZE_MAX, value_size=VALUE_SIZE_MAX, query=query
            ),
            admin=Admin(
                cache,
                token=admin_token,
                hosts=admin_hosts,
                status=status,
                history=history,
                metrics_volumes=metrics_volumes,
            ),
            clock=lambda: self.now_ms * 1_000_000,
            # Each request is in a second of its own, so it reads the clock.
            timer=timer or count(step=1_000_000_000).__next__,
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
