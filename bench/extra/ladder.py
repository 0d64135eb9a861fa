"""
The CPU of each step from the floor to volcache: headers, index, disk, checksums.

Each application does one thing more than the one before; the difference of two is the
cost of that thing. The first, `bench.apps.floor`, answers a constant.

    .venv/bin/python -m bench.extra.ladder
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google_crc32c import value as crc32c

from bench.extra.script import make_parser, measuring
from bench.load import Load, measure_rounds
from bench.machine import MIB
from bench.report import Result, section
from bench.servers import (
    FLOOR,
    IP,
    PYTHON_PATH,
    Contender,
    Contenders,
    Dataset,
    Server,
)
from volcache.server.bjoern import listen, serve

if TYPE_CHECKING:
    from bench.apps import StartResponse

HEADERS, INDEX, DISK, CHECKSUMS = STEPS = (
    "+ headers",
    "+ dict",
    "+ pread, pwrite",
    "+ checksums",
)
# As many headers as volcache sends, of the same length.
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
WRITTEN_BYTES: Final = 64 << 20  # Then from the beginning, as volumes are overwritten.
PREFIX_BYTES: Final = 64  # About what precedes a value in a volume.


class Ladder:
    """A minimal store in one file, as the application of one of the steps."""

    def __init__(self, step: str, dataset: Dataset, folder: Path) -> None:
        """Store the dataset in a file of the folder."""
        level = STEPS.index(step)
        self._has_index = level >= STEPS.index(INDEX)
        self._has_disk = level >= STEPS.index(DISK)
        self._has_checksums = level >= STEPS.index(CHECKSUMS)
        self._value = dataset.value
        self._checksum = crc32c(self._value)
        self._size = PREFIX_BYTES + dataset.value_bytes
        self._get_headers = [*GET_HEADERS, ("Content-Length", str(dataset.value_bytes))]
        self._put_headers = list(PUT_HEADERS)
        self._offsets = {
            key.encode(): number * self._size for number, key in enumerate(dataset.keys)
        }
        self._end = 0
        flags = os.O_RDWR | os.O_CREAT
        self._file = os.open(folder / "values", flags, 0o600)
        self._prefix = bytes(PREFIX_BYTES)
        for offset in self._offsets.values():
            os.pwritev(self._file, [self._prefix, self._value], offset)

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> list[bytes]:
        """Answer a PUT, or a GET of a stored key."""
        key = environ["PATH_INFO"][1:].encode("latin-1") if self._has_index else b""
        if environ["REQUEST_METHOD"] == "PUT":
            self._put(key, environ["wsgi.input"].read())
            start("200 OK", self._put_headers)
            return []
        value = self._get(key) if self._has_index else self._value
        start("200 OK", self._get_headers)
        return [value]

    def _put(self, key: bytes, value: bytes) -> None:
        if self._has_checksums:
            crc32c(self._prefix)
            crc32c(value)
        if self._has_index:
            offset = self._offsets[key] = self._end
            self._end = (offset + self._size) % WRITTEN_BYTES
            if self._has_disk:
                os.pwritev(self._file, [self._prefix, value], offset)

    def _get(self, key: bytes) -> bytes:
        offset = self._offsets[key]
        if not self._has_disk:
            return self._value
        data = os.pread(self._file, self._size, offset)
        value = data[PREFIX_BYTES:]
        if self._has_checksums:
            crc32c(data[:PREFIX_BYTES])
            if crc32c(value) != self._checksum:
                raise ValueError("the checksum of the value is wrong")
        return value


def serve_step(port: str, step: str, count: str, value_bytes: str, folder: str) -> None:
    """Serve one step until a signal; what a new process is started for."""
    dataset = Dataset(count=int(count), value_bytes=int(value_bytes))
    serve(listen(IP, int(port)), Ladder(step, dataset, Path(folder)))


def started(step: str, contenders: Contenders) -> Contender:
    """Start one step."""
    folder = contenders.path(step)
    folder.mkdir()
    dataset = contenders.dataset
    sizes = str(dataset.count), str(dataset.value_bytes)
    server = Server(
        lambda port: (
            *(sys.executable, "-m", "bench.extra.ladder", "serve"),
            *(str(port), step, *sizes, folder),
        ),
        lambda _: PYTHON_PATH,
    )
    return Contender(server=contenders.started(server))


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="in which all take turns (5)")
    add("--seconds", type=float, default=1, help="of load in each turn (1)")
    add("--keys", type=int, default=40_000, help="of 1 KiB (40000)")
    options = parser.parse_args()
    small = Dataset(count=options.keys, value_bytes=1024, volume_size=64 * MIB)
    with measuring(options.directory) as (stack, work):
        contenders = Contenders(stack, work / "ladder", small)
        running = {
            "volcache": contenders.get("volcache"),
            **{step: started(step, contenders) for step in reversed(STEPS)},
            FLOOR: contenders.get(FLOOR),
        }
        for kind in ("get", "put"):
            load = Load(
                kind=kind, dataset=small, seconds=options.seconds, connections=20
            )
            measure_rounds(running, load, rounds=1)  # A warm-up.
            rounds = measure_rounds(running, load, rounds=options.rounds)
            text = (
                f"{kind.upper()} of 1 KiB; each row does one thing more than the next"
            )
            result = Result(name=f"ladder-{kind}", text=text, rounds=rounds)
            print(f"\n{section(result)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_step(*sys.argv[2:])
    else:
        main()
