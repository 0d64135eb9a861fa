"""What bjoern calls: the application, with what a reload puts in front of it."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.http.responses import text_response
from volcache.keys import RESERVED_PREFIX

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.front import Server
    from volcache.http.app import App
    from volcache.http.responses import WsgiApp


# Whether the client uses the operator's address, in the environ.
ADMIN: Final = "volcache.is_admin"
# What load balancers in front of the keys ask for.
_PUBLIC: Final = frozenset({"/-/healthy", "/-/ready"})
_NOT_ADMIN: Final = (
    "not here: the setting admin_listen serves /-/ at an address of its own; here are"
    " /-/healthy and /-/ready"
)
_ONLY_ADMIN: Final = "not here: this address serves the paths under /-/ only"


class Entrance:
    """A WSGI application that answers what the loops forward."""

    def __init__(self, app: App, *, has_admin: bool) -> None:
        """
        Let the application answer; there are no loops.

        Args:
            app: The application.
            has_admin: Whether the operator's paths have an address of their own.
        """
        self._app = app
        self._has_admin = has_admin
        self.loops: Server | None = None
        # Answers in place of `answer`, which it may call.
        self.front: WsgiApp = self.answer

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request."""
        if self._has_admin:
            path: str = environ.get("PATH_INFO", "")
            is_admin = path.startswith(RESERVED_PREFIX)
            if is_admin != environ[ADMIN] and path not in _PUBLIC:
                reason = _NOT_ADMIN if is_admin else _ONLY_ADMIN
                response = text_response(HTTPStatus.NOT_FOUND, reason)
                method = environ.get("REQUEST_METHOD", "")
                return self._app.send(method, response, start_response)
        return self.front(environ, start_response)

    def answer(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request, without `front`."""
        if self.loops is None:
            return self._app(environ, start_response)
        if environ.get("PATH_INFO", "").startswith(RESERVED_PREFIX):
            self.loops.flush()  # The application may be asked for the counters.
        body = self._app(environ, start_response)
        self.loops.set_ready()
        return body
