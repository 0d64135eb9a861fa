"""
The steps from the floor to volcache: each does one thing more than the one before.

What a request costs at one step and not at the one before is what that thing costs.
Set up by the same functions as volcache, like `floor.py`, which is the lowest step.

    PYTHONPATH=src .venv/bin/python bench/ladder.py PORT STEP KEYS VALUE_BYTES FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google_crc32c import value as crc32c

from volcache.server.bjoern import listen, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    Headers = list[tuple[str, str]]
    StartResponse = Callable[[str, Headers], object]
    Application = Callable[[dict[str, Any], StartResponse], list[bytes]]

HEADERS, DICT, DISK, CHECKSUMS = STEPS = (
    "+ headers",
    "+ dict",
    "+ pread, pwrite",
    "+ checksums",
)
# As many as volcache sends, and as long.
ETAG: Final = ("ETag", '"0-0-40-c638d360"')
POSITION: Final = ("X-Position", "0,64,1090")
DATE: Final = ("Date", "Sat, 21 Nov 2026 12:00:00 GMT")
GET_HEADERS: Final = (
    POSITION,
    ("X-Cache", "DISK"),
    ("Content-Type", "application/octet-stream"),
    ("Accept-Ranges", "bytes"),
    ("Last-Modified", DATE[1]),
    ETAG,
    ("Age", "10"),
    DATE,
)
PUT_HEADERS: Final = (POSITION, ("Content-Length", "0"), ETAG, DATE)
WRITTEN_BYTES: Final = 64 << 20  # Then from the beginning, as a volume is overwritten.
PREFIX_BYTES: Final = 64  # About what stands before a value in a volume.


class Ladder:
    """A store as simple as can be, in one file."""

    def __init__(self, step: str, keys: int, value_bytes: int, folder: Path) -> None:
        """Store the values where GETs of this step look for them."""
        self._step = STEPS.index(step)
        self._value = os.urandom(value_bytes)
        self._checksum = crc32c(self._value)
        self._size = PREFIX_BYTES + value_bytes
        self._get_headers = [*GET_HEADERS, ("Content-Length", str(value_bytes))]
        self._put_headers = list(PUT_HEADERS)
        self._offsets = {b"k%d" % n: n * self._size for n in range(keys)}
        self._end = 0
        flags = os.O_RDWR | os.O_CREAT
        self._file = os.open(folder / "values", flags, 0o600)
        self._prefix = bytes(PREFIX_BYTES)
        for offset in self._offsets.values():
            os.pwritev(self._file, [self._prefix, self._value], offset)

    def application(self) -> Application:
        """Return the application of the step."""
        return (self._headers, self._dict, self._disk, self._checked)[self._step]

    def _headers(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            environ["wsgi.input"].read()
            start("200 OK", self._put_headers)
            return []
        start("200 OK", self._get_headers)
        return [self._value]

    def _dict(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        key = environ["PATH_INFO"][1:].encode("latin-1")
        if environ["REQUEST_METHOD"] == "PUT":
            environ["wsgi.input"].read()
            self._offsets[key] = self._next()
            start("200 OK", self._put_headers)
            return []
        if key not in self._offsets:
            raise KeyError(key)
        start("200 OK", self._get_headers)
        return [self._value]

    def _disk(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        key = environ["PATH_INFO"][1:].encode("latin-1")
        if environ["REQUEST_METHOD"] == "PUT":
            value = environ["wsgi.input"].read()
            offset = self._offsets[key] = self._next()
            os.pwritev(self._file, [self._prefix, value], offset)
            start("200 OK", self._put_headers)
            return []
        data = os.pread(self._file, self._size, self._offsets[key])
        start("200 OK", self._get_headers)
        return [data[PREFIX_BYTES:]]

    def _checked(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        key = environ["PATH_INFO"][1:].encode("latin-1")
        if environ["REQUEST_METHOD"] == "PUT":
            value = environ["wsgi.input"].read()
            crc32c(self._prefix)
            crc32c(value)
            offset = self._offsets[key] = self._next()
            os.pwritev(self._file, [self._prefix, value], offset)
            start("200 OK", self._put_headers)
            return []
        data = os.pread(self._file, self._size, self._offsets[key])
        crc32c(data[:PREFIX_BYTES])
        value = data[PREFIX_BYTES:]
        if crc32c(value) != self._checksum:
            raise ValueError("the value is damaged")
        start("200 OK", self._get_headers)
        return [value]

    def _next(self) -> int:
        offset = self._end
        self._end = (offset + self._size) % WRITTEN_BYTES
        return offset


def main() -> None:
    """Serve until a signal."""
    port, step, keys, value_bytes, folder = sys.argv[1:]
    ladder = Ladder(step, int(keys), int(value_bytes), Path(folder))
    serve(listen("127.0.0.1", int(port)), ladder.application())


if __name__ == "__main__":
    main()
