"""What bjoern calls: the application, with what a reload puts in front of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.front import Server
    from volcache.http.app import App
    from volcache.http.responses import WsgiApp


class Entrance:
    """A WSGI application that answers what the loops forward."""

    def __init__(self, app: App) -> None:
        """Let the application answer; there are no loops."""
        self._app = app
        self.loops: Server | None = None
        # Answers in place of `answer`, which it may call.
        self.front: WsgiApp = self.answer

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        return self.front(environ, start_response)

    def answer(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request, without `front`."""
        if self.loops is None:
            return self._app(environ, start_response)
        self.loops.flush()  # The application may be asked for the counters.
        body = self._app(environ, start_response)
        self.loops.set_ready()
        return body
