"""
The least bjoern can do: the floor volcache is measured against.

Set up by the same functions as volcache, but the application answers a GET with a
constant and a PUT, once its body is read, with an empty answer.

    PYTHONPATH=src .venv/bin/python bench/floor.py PORT VALUE_BYTES [STATUS]

STATUS is that of a GET, such as "404 Not Found".
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from volcache.server.bjoern import listen, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    StartResponse = Callable[[str, list[tuple[str, str]]], object]


def make_application(
    value_bytes: int,
    status: str = "200 OK",
) -> Callable[[dict[str, Any], StartResponse], list[bytes]]:
    """Make the WSGI application; its GETs are answered with so many bytes."""
    value = b"x" * value_bytes
    get_headers = [("Content-Length", str(value_bytes))]
    put_headers = [("Content-Length", "0")]

    def application(
        environ: dict[str, Any], start_response: StartResponse
    ) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            environ["wsgi.input"].read()
            start_response("200 OK", put_headers)
            return []
        start_response(status, get_headers)
        return [value]

    return application


def main() -> None:
    """Serve until a signal."""
    port, value_bytes, *status = sys.argv[1:]
    application = make_application(int(value_bytes), *status)
    serve(listen("127.0.0.1", int(port)), application)


if __name__ == "__main__":
    main()
