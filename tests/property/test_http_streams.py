"""
Random requests to a real instance: each gets the answer that `App` defines.

A stream is what one client sends on a connection without waiting: a few valid requests,
cut anywhere. Some end with what has to be refused, and with more that must have no effect.
Heads and bodies of any form are in tests/native, and so are clients that disconnect.
"""

from __future__ import annotations

import json
import random
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from select import select
from typing import Any, Final, NamedTuple

import pytest

from support.extent import EXTENT, SEED, Count
from support.http_requests import Request, make_request
from support.machine import Machine
from support.process import ServerProcess
from support.rows import END, HTTP_ROWS, Row, expanded, read_rows
from support.stores import UnsyncedFileSystem
from support.surfaces import KEY_BYTES_MAX, VALUE_BYTES_MAX
from support.wire import Reply, Talk, exchange
from support.wsgi_client import called, make_app
from volcache.access import Limits
from volcache.cache import Cache
from volcache.keys import Query
from volcache.store import Store

pytestmark = [
    pytest.mark.integration,
    pytest.mark.property,
    pytest.mark.slow,
]

SETTINGS: Final[dict[str, Any]] = {
    "volume_size": 16 << 20,
    "volume_num": 4,
    "sync_mode": "none",
}
SAMPLED: Final = 300
ALL: Final = 12_000
CLIENTS: Final = 6
# What a read takes of a record that is not in memory.
READ_SECONDS: Final = 0.001


# --- Requests --------------------------------------------------------------------------


class Stream(NamedTuple):
    """What one client sends; `refused` is the end of it, with more behind."""

    name: str
    requests: Sequence[Request]
    pieces: Sequence[bytes] = ()
    refused: bytes = b""

    def send(self, client: Talk) -> None:
        """Send it, with pauses between small pieces."""
        pieces = self.pieces or [one.sent for one in self.requests]
        for piece in pieces:
            client.send(piece)
            if len(pieces) > 2:
                select([client.socket], [], [], 0.0003)
        if self.refused:
            client.send(AFTER)
        client.socket.shutdown(socket.SHUT_WR)

    def reads(self) -> Stream:
        """Return a stream that reads what this one has stored."""
        puts = [one.sent for one in self.requests if one.method == "PUT"]
        targets = sorted({sent.split(b" ")[1].decode("latin-1") for sent in puts})
        gets = [make_request("GET", target, ["Host: t"]) for target in targets]
        return Stream(f"reads after {self.name}", gets)


AFTER: Final = b"PUT /after HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx"
ROWS: Final = list(read_rows(HTTP_ROWS))
HEADS: Final = [
    END.split(line.partition(";;")[0])
    for row in ROWS
    for mark, line in row.lines
    if mark == ">"
]
# Not those that a store would answer in another way as it changes meanwhile; and no control
# bytes, which the front refuses, and which rows have for the application alone.
NOT_SENT: Final = r"\$|\\x[01]|\\x7f|^(Host|Content-Length|Transfer-Encoding)\b"
FIELDS: Final = sorted(
    {
        expanded(field)
        for _, *fields in HEADS
        for field in fields
        if not re.search(NOT_SENT, field)
    }
    | {
        "Connection: close",
        "Expect: 100-continue",
        "Cookie: \xe9\xff",
        "X_Under: score",
    }
)
# With keys of the stream alone, and some that are not stored.
TARGETS: Final = sorted({line.split(" ")[1] for line, *_ in HEADS if "$k" in line})
ODD_TARGETS: Final = [
    "/",
    "/-/healthy",
    "/-/nothing",
    "/%2D/healthy",
    "/..",
    "/.",
    "/%00",
    "http://t?q",
]
METHODS: Final = [
    *(["GET"] * 40 + ["PUT"] * 40 + ["HEAD"] * 10 + ["DELETE"] * 4),
    *("OPTIONS", "PROPFIND", "MKCOL", "POST", "PATCH", "LOCK", "COPY", "TRACE"),
]


class Writer:
    """Draws the requests of one stream; the same for the same number and seed."""

    def __init__(self, number: int) -> None:
        """Use a folder of its own."""
        self.dice = random.Random(f"{SEED} {number}")  # noqa: S311 - Repeatable.
        self.name = f"seed {SEED} number {number}"
        self.folder = f"s{SEED}x{number}x"

    def stream(self) -> Stream:
        """Return requests up to one that closes the connection, cut anywhere."""
        requests: list[Request] = []
        for _ in range(self.dice.choice((1, 1, 2, 3, 4, 6))):
            requests.append(self._request())
            if requests[-1].closes:
                break
        refused = b""
        if not requests[-1].closes and self.dice.random() < 0.2:
            refused = self.dice.choice(REFUSED).replace(b"$k", self.folder.encode())
        data = b"".join(one.sent for one in requests) + refused
        return Stream(self.name, requests, self._pieces(data), refused)

    def _request(self) -> Request:
        dice = self.dice
        method = dice.choice(METHODS)
        fields = dice.choices(FIELDS, k=dice.choice((0, 0, 0, 1, 1, 2, 3)))
        body, encoded = b"", None
        if method == "PUT" or dice.random() < 0.15:
            size = dice.choice((0, 1, 5, 100, 100, 1000, 5000, 17_000, 70_000))
            if dice.random() < 0.01:
                size = VALUE_BYTES_MAX - dice.randrange(2)
            body = dice.randbytes(size)
            if dice.random() < 0.6:
                framing = f"Content-Length: {size:0{dice.choice((1, 1, 1, 20))}}"
            else:
                names = ("Transfer-Encoding: chunked", "transfer-encoding:CHUNKED ")
                framing, encoded = dice.choice(names), self._chunked(body)
            fields.append(framing)
        version = "HTTP/1.0" if encoded is None and dice.random() < 0.05 else "HTTP/1.1"
        dice.shuffle(fields)
        fields.insert(dice.randrange(len(fields) + 1), "Host: t")
        return make_request(
            method, self._target(), fields, body, encoded=encoded, version=version
        )

    def _target(self) -> str:
        dice = self.dice
        if dice.random() < 0.06:
            return dice.choice(ODD_TARGETS)
        name = dice.choice("aaab")
        if dice.random() < 0.7:
            return f"/{self.folder}/{name}"
        return expanded(dice.choice(TARGETS).replace("$k", f"{self.folder}/{name}"))

    def _chunked(self, body: bytes) -> bytes:
        dice, written, at = self.dice, [], 0
        while at < len(body):
            size = min(dice.choice((1, 3, 50, 4096, 20_000, 100_000)), len(body) - at)
            size = max(size, min(50, len(body) - at)) if len(body) > 1000 else size
            line = dice.choice((b"%x", b"%X", b"%04x")) % size
            line += dice.choice((b"",) * 9 + (b";a", b";a=b", b';c="d"', b" "))
            written.append(line + b"\r\n" + body[at : at + size] + b"\r\n")
            at += size
        last = dice.choice((b"0", b"00", b"0;z")) + b"\r\n"
        trailers = dice.choice((b"",) * 9 + (b"T: u\r\n", b"T: u\r\nV:\r\n"))
        return b"".join([*written, last, trailers, b"\r\n"])

    def _pieces(self, data: bytes) -> list[bytes]:
        dice, draw = self.dice, self.dice.random()
        if draw < 0.4:
            return [data]
        ends = [found.end() - dice.randrange(3) for found in re.finditer(b"\r\n", data)]
        cuts: Iterable[int] = dice.sample(ends, min(len(ends), 6))
        if draw < 0.45 and len(data) < 250:
            cuts = range(len(data))
        elif draw > 0.6:
            cuts = dice.choices(range(len(data) + 1), k=dice.randrange(1, 7))
        places = sorted({0, len(data), *cuts})
        return [data[first:end] for first, end in pairwise(places)]


def refused_by(row: Row) -> bytes:
    """Return the bytes of a row if they are all of it, and end the connection."""
    (mark, sent), *answers = row.lines
    is_last = mark == ">>" and re.search(
        r"^[<f] [45].*;Connection: close", answers[0][0] + " " + answers[0][1]
    )
    text = expanded(END.sub(r"\\r\\n", sent)) if is_last else ""
    return text.encode("latin-1")


# request_test and http_fuzz have more.
REFUSED: Final = [data for data in map(refused_by, ROWS) if data]


# --- An instance and what it has to answer ---------------------------------------------

_MAX_AGE: Final = re.compile(r"max-age=\d+")
_STORED: Final = re.compile(r'"[0-9a-f]+-')
_TIMES: Final = re.compile(
    rb"<D:(?:getlastmodified|creationdate|getetag)>[^<]*|(?<=entity tag )\"[0-9a-f]+-"
)


def comparable(
    status: int, headers: Iterable[tuple[str, str]], body: bytes
) -> tuple[int, dict[str, str], bytes]:
    """Return what of an answer is the same at any time; no header is there twice."""
    pairs = list(headers)
    kept = dict(pairs)
    assert len(kept) == len(pairs), pairs
    for name in ("Date", "Last-Modified", "Connection"):
        kept.pop(name, None)
    for name, pattern in (("Cache-Control", _MAX_AGE), ("ETag", _STORED)):
        if name in kept:
            kept[name] = pattern.sub("", kept[name])
    if kept.get("Content-Type", "").startswith("application/xml"):
        del kept["Content-Length"]  # That of a tag may differ.
        body = _TIMES.sub(b"", body)
    kept["Content-Type"], _, boundary = kept.get("Content-Type", "").partition(
        "; boundary="
    )
    body = body.replace(boundary.encode(), b"") if boundary else body
    return status, kept, _TIMES.sub(b"", body) if status == 412 else body


class Pair:
    """An instance, and the application that knows its answers; both begin empty."""

    def __init__(
        self, server: ServerProcess, store: Store, machine: Machine | None, query: Query
    ) -> None:
        """With a machine, the first read of a record by a stream is by a thread."""
        self.server = server
        self.tally: Counter[object] = Counter()
        # Not if streams are sent at the same time: then records have other positions.
        self.has_order = True
        limits = Limits(key_size=KEY_BYTES_MAX, value_size=VALUE_BYTES_MAX, query=query)
        self._app = make_app(Cache(store), limits)
        self._machine = machine

    def ask(self, stream: Stream) -> list[Reply]:
        """Send a stream; return the answers."""
        if self._machine is not None:
            self._machine.slow_down("/data/", READ_SECONDS)
        methods = [one.method for one in stream.requests]
        methods += ["-"] if stream.refused else []
        replies = []
        with Talk(self.server.port) as client, ThreadPoolExecutor(1) as sender:
            sending = sender.submit(stream.send, client)
            for method in methods:
                replies.append(client.read(method))
                while replies[-1].status == 100:
                    replies[-1] = client.read(method)
            assert client.has_ended()
            sending.result()
        return replies

    def check(self, stream: Stream, replies: Sequence[Reply]) -> None:
        """Compare answers with those of the application."""
        if stream.refused:
            *replies, refusal = replies
            assert refusal.status >= 400
            assert refusal.headers["Connection"] == "close"
            assert refusal.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert refusal.body.count(b"\n") == 1
            self.tally["refused"] += 1
        for request, reply in zip(stream.requests, replies, strict=True):
            self._compare(request, reply)

    def _compare(self, request: Request, reply: Reply) -> None:
        status, headers, body = called(self._app, request.environ)
        known = comparable(int(status[:3]), headers, b"".join(body))
        seen = comparable(reply.status, reply.headers.items(), reply.body)
        if not self.has_order:
            known[1].pop("X-Position", None)
            seen[1].pop("X-Position", None)
        is_admin = request.environ["PATH_INFO"].startswith("/-/")
        assert seen == known or (is_admin and seen[0] == known[0])
        assert (reply.headers.get("Connection") == "close") == request.closes
        self.tally.update(("answers", reply.status))

    def send(self, stream: Stream) -> None:
        """Send a stream, check the answers, and read what it has stored."""
        try:
            self.check(stream, self.ask(stream))
            self.check(stream.reads(), self.ask(stream.reads()))
        except Exception as error:
            error.add_note(f"{stream.name}: {[one[:3000] for one in stream.pieces]}")
            raise


@contextmanager
def instance(
    folder: Path, machine: Machine | None = None, query: Query = "ignore"
) -> Iterator[Pair]:
    """Start an instance, and open a store of the same form."""
    store = Store.open(str(folder / "oracle"), fs=UnsyncedFileSystem(), **SETTINGS)
    server = ServerProcess(
        folder / "store",
        settings=SETTINGS
        | {"threads": 2, "max_value_size": VALUE_BYTES_MAX, "query": query},
        environment=machine.environment if machine else {},
    )
    try:
        with server:
            yield Pair(server, store, machine, query)
            assert exchange(server.port, "GET", "/after").status == 404
            assert "Traceback" not in server.stderr
    finally:
        store.close()


@pytest.mark.disk
@pytest.mark.parametrize(("is_cold", "query"), [(False, "ignore"), (True, "key")])
def test_any_stream_gets_the_answers_of_the_application(
    tmp_path: Path, record_property: Count, *, is_cold: bool, query: Query
) -> None:
    """In order, whichever thread reads a record, and whatever follows meanwhile."""
    number = SAMPLED * EXTENT or ALL
    machine = Machine(tmp_path / "machine") if is_cold else None
    with instance(tmp_path, machine, query) as pair:
        for one in range(is_cold * number, number + is_cold * number):
            pair.send(Writer(one).stream())
        stats = exchange(pair.server.port, "GET", "/-/stats").body
    assert min(pair.tally["answers"], pair.tally["refused"]) > number // 20
    assert {200, 400, 404, 405, 412} <= set(pair.tally)
    assert not is_cold or json.loads(stats)["server"]["cold_reads"] > number // 10
    record_property("http_streams", number)


def test_streams_sent_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    """Each has keys of its own, and gets the answers that it gets alone."""
    number = SAMPLED * EXTENT or ALL
    with instance(tmp_path) as pair, ThreadPoolExecutor(CLIENTS) as pool:
        pair.has_order = False
        for first in range(2 * number, 3 * number, CLIENTS):
            streams = [Writer(first + n).stream() for n in range(CLIENTS)]
            for stream, replies in zip(
                streams, pool.map(pair.ask, streams), strict=True
            ):
                pair.check(stream, replies)
            for stream in streams:
                pair.send(stream.reads())
