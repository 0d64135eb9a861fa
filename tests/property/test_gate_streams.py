"""
Random byte streams to a real instance: each gets the answers that h11 and `App` define.

`support/streams.py` says what a stream is, and what an instance may refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from support.extent import EXTENT, Count, step
from support.machine import Machine
from support.process import ServerProcess
from support.stores import UnsyncedFileSystem
from support.streams import (
    CORPUS,
    VALUE_BYTES_MAX,
    Discrepancy,
    Judge,
    Stream,
    make_stream,
    send_stream,
)
from support.wire import exchange
from volcache.store import Store

pytestmark = [
    pytest.mark.integration,
    pytest.mark.property,
    pytest.mark.slow,
]

VOLUME_SIZE: Final = 16 << 20
VOLUME_NUM: Final = 4
SAMPLED: Final = 300
ALL: Final = 12_000
# Changed files are read again after so many.
READ_AFTER: Final = 40
CLIENTS: Final = 6
# What a read takes of a record that is not in memory.
READ_SECONDS: Final = 0.001


class Pair:
    """An instance, and the application that knows its answers."""

    def __init__(
        self, server: ServerProcess, judge: Judge, machine: Machine | None
    ) -> None:
        """Begin with two empty stores; with a machine, each record is cold once."""
        self.server = server
        self.judge = judge
        self._machine = machine

    def check(self, streams: Iterable[Stream]) -> None:
        """Send streams one after the other; read what they have changed."""
        for stream in streams:
            self._send(stream)
            if len(self.judge.changed) >= READ_AFTER:
                self.read_changed()
        self.read_changed()
        assert self.server.is_running

    def check_at_once(self, streams: Iterator[Stream]) -> None:
        """Send streams over several connections at a time."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            while some := list(islice(streams, READ_AFTER)):
                all_heard = pool.map(partial(send_stream, self.server.port), some)
                for stream, heard in zip(some, all_heard, strict=True):
                    self.judge.judge(stream, heard)
                self.read_changed()
        assert self.server.is_running

    def _send(self, stream: Stream) -> None:
        if self._machine is not None:
            self._machine.slow_down("/data/", READ_SECONDS)
        try:
            heard = send_stream(self.server.port, stream)
        except ConnectionRefusedError as error:
            raise Discrepancy(
                f"the instance ended with {self.server.exit_code} before {stream.name}:"
                f" {self.server.stderr[-2000:]}"
            ) from error
        self.judge.judge(stream, heard)

    def read_changed(self) -> None:
        """Read each file that was changed."""
        targets = sorted(self.judge.changed)
        requests = [b"GET %b HTTP/1.1\r\nHost: t\r\n\r\n" % name for name in targets]
        self.judge.changed.clear()
        self._send(Stream("what was changed", tuple(requests), pauses=False))


@contextmanager
def instance(
    folder: Path, machine: Machine | None = None, *, has_order: bool = True
) -> Iterator[Pair]:
    """Start an instance, and open a store of the same form."""
    settings = {
        "volume_size": VOLUME_SIZE,
        "volume_num": VOLUME_NUM,
        "max_value_size": VALUE_BYTES_MAX,
        "sync_mode": "none",
    }
    store = Store.open(
        str(folder / "oracle"),
        volume_size=VOLUME_SIZE,
        volume_num=VOLUME_NUM,
        sync_mode="none",
        fs=UnsyncedFileSystem(),
    )
    server = ServerProcess(
        folder / "store",
        settings=settings,
        environment=machine.environment if machine else {},
    )
    try:
        with server:
            yield Pair(server, Judge(store, has_order=has_order), machine)
            assert "Traceback" not in server.stderr
    finally:
        store.close()


def cut_streams(name: str, data: bytes) -> Iterator[Stream]:
    """Yield a stream in two pieces, cut at many places."""
    for at in range(1, len(data), (len(data) // 120 + 1) * step(12)):
        yield Stream(f"{name} cut at {at}", (data[:at], data[at:]), pauses=True)


def byte_by_byte(name: str, data: bytes) -> Stream:
    """Return a stream whose bytes arrive one by one."""
    single = tuple(data[at : at + 1] for at in range(len(data)))
    return Stream(f"{name} byte by byte", single, pauses=True)


def test_known_streams_are_answered_in_any_pieces(tmp_path: Path) -> None:
    """Those that some servers have misread, whole and cut."""
    with instance(tmp_path) as pair:
        for number, text in enumerate(CORPUS):
            data = text.replace(b"NS", b"known%d" % number)
            name = f"known stream {number}"
            pair.check([Stream(name, (data,), pauses=False)])
            pair.check(cut_streams(name, data))
            if len(data) < 400 and number % step(4) == 0:
                pair.check([byte_by_byte(name, data)])


DATE: Final = "Sat, 21 Nov 2026 09:00:00 GMT"
# Values of fields; "|" is between two of them.
VALUES: Final = {
    "Range": "bytes=0-1|bytes=1-|bytes=-2|bytes=9999999-|x||bytes=0-1,3-4",
    "Service-Worker": "script",
    "If-Range": '"x"',
    "If-None-Match": '"x"|*||W/"x"',
    "If-Match": '"x"|*|',
    "If-Modified-Since": f"{DATE}|x||Sat, 21 Nov 1996 09:00:00 GMT",
    "If-Unmodified-Since": f"{DATE}|x|Sat, 21 Nov 1996 09:00:00 GMT",
    "Cache-Control": f"max-age=5|no-cache|max-age=50, public, immutable|{'c' * 256}"
    "|max-age=0|max-age=x|max-age=99999999999|",
    "Expires": f"{DATE}|0|Fri, 31 Dec 9999 23:59:59 GMT",
    "Content-Range": "bytes 0-1/2",
    "Content-Type": f"|text/plain|text/\xe9\xff\xa0| x |x: y, z|{'t' * 255}|{'t' * 256}"
    "|a\x85b|a\tb",
    "Content-Encoding": f"|gzip|{'e' * 64}|{'e' * 65}|br, gzip",
    "Authorization": "Bearer x|Basic eDp4|x|",
}
FIELDS: Final = [
    f"{name}: {value}" for name, found in VALUES.items() for value in found.split("|")
]
WORDS: Final = (
    "/a /a/b.json /.git /x/.git /a. /a..b /a.PNG // /0 /a/ /a//b /- /-a /--/ /-."
    " /../-/x /a/../b /./a /.. /a/. /a/.. / /a%20b /a%ff /%80 /gr%c3%bcn.txt /%00 /a%0a"
    " /a%0d%0a /a%7f /a%1f /a?b=c"
)
PATHS: Final = [*WORDS.split(), *("/" + "k" * (1024 + more) for more in (-1, 0, 1))]


def asked(method: str, path: str, *fields: str) -> bytes:
    """Return a request; a PUT or POST has a body."""
    body = b"value" if method in {"PUT", "POST"} else b""
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/1.1", "Host: t", *fields, *length, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def test_any_path_and_any_field_are_answered_alike(tmp_path: Path) -> None:
    """With every method; of a key with a value, and of one without."""
    methods = ("PUT", "GET", "HEAD", "DELETE", "GET", "HEAD")
    with instance(tmp_path) as pair:
        for path in PATHS:
            requests = tuple(asked(method, path) for method in methods)
            pair.check([Stream(f"path {path}", requests, pauses=False)])
        for field in FIELDS:
            for kept in ([], ["Content-Type: a/b", "Content-Encoding: gzip"]):
                requests = (
                    asked("PUT", "/a.json", *kept),
                    *(asked(method, "/a.json", field) for method in ("GET", "HEAD")),
                    *(asked(method, "/a.json", field) for method in methods),
                )
                pair.check([Stream(f"field {field}", requests, pauses=False)])
        answers = pair.judge.tally["answers"]
        assert answers > 7 * len(FIELDS) + 3 * len(PATHS)


def check_random_streams(pair: Pair, numbers: range, count: Count) -> None:
    """Send random streams; all kinds must have been drawn."""
    pair.check(map(make_stream, numbers))
    tally = pair.judge.tally
    assert min(tally["answers"], tally["refused"]) > len(numbers) // 40
    assert {"incomplete", "200", "400", "404", "405", "412"} <= set(tally)
    count("gate_streams", len(numbers))


def test_any_stream_gets_the_answers_of_the_application(
    tmp_path: Path, record_property: Count
) -> None:
    """Valid requests are answered in order, others refused; nothing else is stored."""
    with instance(tmp_path) as pair:
        check_random_streams(pair, range(SAMPLED * EXTENT or ALL), record_property)


@pytest.mark.disk
def test_any_stream_gets_the_same_answers_from_a_cold_disk(
    tmp_path: Path, record_property: Count
) -> None:
    """
    Whichever thread reads a record, and whatever follows meanwhile.

    The first read of a record by a stream is by a thread.
    """
    number = SAMPLED * EXTENT or ALL
    with instance(tmp_path, Machine(tmp_path / "machine")) as pair:
        check_random_streams(pair, range(number, 2 * number), record_property)
        stats = exchange(pair.server.port, "GET", "/-/stats").body
    assert json.loads(stats)["server"]["cold_reads"] > number // 10


def test_streams_sent_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    """Each has keys of its own, and gets the answers that it gets alone."""
    number = SAMPLED * EXTENT or ALL
    with instance(tmp_path, has_order=False) as pair:
        pair.check_at_once(map(make_stream, range(2 * number, 3 * number)))
