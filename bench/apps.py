"""
Two WSGI applications to compare with, served by bjoern in the same way as volcache.

- `floor` answers a constant: the least any WSGI application can cost. It reads the body
  of a PUT.
- `files` keeps one file for each key: it opens, reads or writes, and closes it. There is
  no checksum and no limit, and a crash leaves files that are cut off.

    python -m bench.apps floor PORT VALUE_BYTES [STATUS]
    python -m bench.apps files PORT FOLDER

STATUS is that of a GET, such as "404 Not Found".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import bjoern

from volcache.server.sockets import listen

StartResponse = Callable[[str, list[tuple[str, str]]], object]
Application = Callable[[dict[str, Any], StartResponse], list[bytes]]


def floor(value_bytes: str, status: str = "200 OK") -> Application:
    """Return the application that answers GETs with `value_bytes` bytes."""
    value = b"x" * int(value_bytes)
    get_headers = [("Content-Length", value_bytes)]
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


def files(folder: str) -> Application:
    """Return the application that keeps a file for each key in `folder`."""
    empty = [("Content-Length", "0")]

    def application(
        environ: dict[str, Any], start_response: StartResponse
    ) -> list[bytes]:
        path = folder + environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "PUT":
            value = environ["wsgi.input"].read()
            with open(path, "wb", buffering=0) as file:  # noqa: PTH123 - the fast way
                file.write(value)
            start_response("200 OK", empty)
            return []
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                value = file.read()
        except FileNotFoundError:
            start_response("404 Not Found", empty)
            return []
        start_response("200 OK", [("Content-Length", str(len(value)))])
        return [value]

    return application


APPLICATIONS: dict[str, Callable[..., Application]] = {"floor": floor, "files": files}


def main() -> None:
    """Serve until a signal."""
    name, port, *arguments = sys.argv[1:]
    bjoern.server_run(listen("127.0.0.1", int(port)), APPLICATIONS[name](*arguments))


if __name__ == "__main__":
    main()
