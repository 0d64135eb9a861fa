"""
The naive way: one file for each key, in Python.

Set up by the same functions as volcache; the application opens, reads or writes, and
closes the file that is named like the key. No checksum, no limit, and a file that was
being written when the machine stopped is torn.

    PYTHONPATH=src .venv/bin/python bench/one_file_per_key.py PORT FOLDER
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from volcache.server.bjoern import listen, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    StartResponse = Callable[[str, list[tuple[str, str]]], object]


def make_application(
    folder: str,
) -> Callable[[dict[str, Any], StartResponse], list[bytes]]:
    """Make the WSGI application that serves a folder."""
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


def main() -> None:
    """Serve until a signal."""
    port, folder = sys.argv[1:]
    serve(listen("127.0.0.1", int(port)), make_application(folder))


if __name__ == "__main__":
    main()
