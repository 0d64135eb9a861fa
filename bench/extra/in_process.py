"""
CPU of GETs and PUTs of 1 KiB without a network: calls of the WSGI application.

    .venv/bin/python -m bench.extra.in_process
"""

from __future__ import annotations

import io
import os
import time
from typing import TYPE_CHECKING, Any, Final

from bench.extra.script import make_parser, measuring
from bench.report import table
from volcache.cache import Cache
from volcache.http.app import App, RequestLimits
from volcache.http.native_app import with_fast_path
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS: Final = 20_000
ROUNDS: Final = 9
VALUE: Final = os.urandom(1024)


def request(method: str, path: str, body: bytes = b"") -> dict[str, Any]:
    """Return what bjoern passes for a request."""
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "wsgi.input": io.BytesIO(body),
        "CONTENT_LENGTH": str(len(body)),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "127.0.0.1:1234",
        "HTTP_USER_AGENT": "wrk",
    }


def ignore(_status: str, _headers: list[tuple[str, str]]) -> None:
    """Stand in for `start_response`."""


def lowest_us(run: Callable[[], None]) -> float:
    """Return the CPU of a run, in microseconds for each of its calls: the lowest."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        run()
        found.append((time.process_time_ns() - began) / KEYS / 1000)
    return min(found)


def main() -> None:
    """Measure and print."""
    options = make_parser(__doc__).parse_args()
    with measuring(options.directory) as (stack, work):
        store = Store.open(str(work / "store"), volume_size=2**28, volume_num=2)
        stack.callback(store.close)
        limits = RequestLimits(key_size=1024, value_size=2**20)
        app = with_fast_path(App(Cache(store), limits), is_merged=True)
        paths = [f"/thumbs/{number:08}/picture" for number in range(KEYS)]
        puts = [request("PUT", path, VALUE) for path in paths]
        gets = [request("GET", path) for path in paths]

        def answer(requests: list[dict[str, Any]]) -> None:
            for environ in requests:
                app(environ, ignore)  # type: ignore[arg-type]

        put = lowest_us(lambda: answer(puts))
        get = lowest_us(lambda: answer(gets))
        fd = os.open(work / "store" / "data" / "0", os.O_RDONLY)
        stack.callback(os.close, fd)

        def read() -> None:
            for number in range(KEYS):
                os.pread(fd, 1_120, 64 + 1_100 * number)

        rows = [
            [name, f"{us:.2f}"]
            for name, us in {
                "GET": get,
                "PUT": put,
                "os.pread": lowest_us(read),
            }.items()
        ]
    print(table(["call", "CPU us"], rows))


if __name__ == "__main__":
    main()
