"""
C on the wire: what it passes to bjoern, refuses, and answers itself.

`tests/property/test_http_streams.py` compares any requests, in any pieces, with the
application; `tests/native/request_test.c` has all forms of a head and of a chunk.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from support.process import MIB, SHARED, ServerProcess, Servers
from support.waiting import wait_until
from support.wire import (
    ANSWER_SECONDS,
    BY_APP,
    KEPT,
    Talk,
    answer_to,
    connect,
    exchange,
    read_to_the_end,
    request_bytes,
    reset,
)

pytestmark = pytest.mark.integration

KIB: Final = 1 << 10
ALLOW: Final = "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"
PUT: Final = b"PUT /kept HTTP/1.1\r\nHost: t\r\n"
LENGTH: Final = b"Content-Length: "
LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z [A-Z]+ +volcache")
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[ServerProcess]:
    """Yield an instance, which still runs at the end."""
    with servers.server() as running:
        yield running


@pytest.fixture
def kept(server: ServerProcess) -> Iterator[int]:
    """Return the port of an instance that has `/kept`, and still has it at the end."""
    assert exchange(server.port, "PUT", "/kept", b"kept").status == 200
    yield server.port
    assert exchange(server.port, "GET", "/kept").body == b"kept"


# --- One request at a time -------------------------------------------------------------


def test_continue_is_sent_when_it_is_asked_for(kept: int) -> None:
    """Once, before the body; not by HTTP/1.0, and not if the body is there."""
    head = b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    chunked = head.replace(LENGTH + b"5\r\n\r\n", CHUNKED)
    with Talk(kept) as client:
        # C collects the body, or bjoern reads it.
        for one, body in ((head, b"value"), (chunked, b"5\r\nvalue\r\n0\r\n\r\n")):
            client.send(b"PUT /asked HTTP/1.1\r\nHost: t\r\n" + one)
            assert client.read("PUT").status == 100
            client.send(body)
            assert client.read("PUT").status == 200
        client.send(b"PUT /asked HTTP/1.1\r\nHost: t\r\n" + head + b"value")
        assert client.read("PUT").status == 200
        client.send(b"PUT /asked HTTP/1.0\r\n" + head)
        client.send(b"value")
        assert client.read("PUT").status == 200
        assert client.has_ended()


# --- What is refused -------------------------------------------------------------------


class Refused(NamedTuple):
    """The status, a word of the reason, and bytes that are no request."""

    status: int
    word: bytes
    data: bytes


END: Final = b" HTTP/1.1\r\nHost: t\r\n\r\n"
NO_HOST: Final = Refused(400, b"no Host", b"GET /kept HTTP/1.1\r\n\r\n")
TWO_LENGTHS: Final = Refused(
    400, b"two Content-Length", PUT + (LENGTH + b"1\r\n") * 2 + b"\r\nx"
)
GZIP: Final = Refused(501, b"chunked", PUT + b"Transfer-Encoding: gzip\r\n\r\nx")
LARGE_BODY: Final = Refused(413, b"0 to 1048576", PUT + LENGTH + b"1048577\r\n\r\n")
HUGE_CHUNK: Final = Refused(
    400, b"chunk is too large", PUT + CHUNKED + b"10000000000000005\r\nvalue\r\n"
)
HTTP2: Final = Refused(505, b"HTTP/1.1", b"GET /kept HTTP/2.0\r\nHost: t\r\n\r\n")
REPORT: Final = Refused(405, ALLOW.encode(), b"REPORT /kept" + END)
TLS: Final = Refused(400, b"TLS", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03")
REFUSED: Final = [
    *(NO_HOST, TWO_LENGTHS, GZIP, LARGE_BODY, HUGE_CHUNK, HTTP2, REPORT, TLS),
    Refused(417, b"100-continue", PUT + b"Expect: 200-ok\r\n" + LENGTH + b"1\r\n\r\nx"),
    Refused(431, b"32768 bytes", b"GET /" + b"x" * 33_000),
]


def assert_refused(received: bytes, case: Refused) -> None:
    """Check that an answer is one line of text, and the only one."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert lines[0].startswith(f"HTTP/1.1 {case.status} "), case
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Content-Length"] == str(len(body))
    assert headers["Connection"] == "close"
    assert headers["Date"].endswith(" GMT")
    assert headers.get("Allow") == (ALLOW if case.status == 405 else None)
    assert body.endswith(b"\n")
    assert body.count(b"\n") == 1
    assert case.word in body, case


def test_bad_request_is_refused_in_one_line(kept: int) -> None:
    """
    The reason and what is allowed; then the connection is closed, in order.

    The body of a client that is still sending is read and dropped: it is not reset.
    """
    for case in REFUSED:
        assert_refused(answer_to(kept, case.data), case)
    for case in (TWO_LENGTHS, GZIP, LARGE_BODY, HUGE_CHUNK):
        assert_refused(answer_to(kept, case.data + b"x" * 8 * MIB), case)


# --- The answers of C are those of the application --------------------------------------


class Answer(NamedTuple):
    """What is the same from both, but for the time."""

    status: int
    headers: dict[str, str]
    body: bytes


def by_both(port: int, method: str, path: str, more: str = "") -> list[Answer]:
    """Return the answers of C and of the application."""
    found, dates = [], []
    for way in ("", BY_APP):
        status, headers, body = exchange(
            port, method, path, None, f"{more}\n{way}".strip()
        )
        fields = dict(headers.items())
        assert len(fields) == len(headers)
        dates.append(parsedate_to_datetime(fields.pop("Date")))
        fields["Cache-Control"] = fields.get("Cache-Control", "").partition(",")[2]
        found.append(Answer(status, fields, body))
    assert dates[0] <= dates[1] < dates[0] + timedelta(minutes=1)
    return found


LARGE: Final = b"0123456789abcdef" * (MIB // 16)
VALUES: Final = {
    "plain": ("", b"value"),
    "style.CSS": ("", b"a{}"),
    "typed-latin": ("Content-Type: \xe4\xf6", b"typed"),
    "typed-long": (f"Content-Type: {'t' * 255}\nContent-Encoding: {'e' * 64}", b"long"),
    "encoded.js": ("Content-Encoding: br", b"\x0b"),
    "expiring": ("Cache-Control: max-age=5000", b"soon gone"),
    "empty": ("", b""),
    "large": ("", LARGE),
    "%C3%A4%20%ff": ("", b"encoded"),
}


@pytest.fixture(scope="module")
def stored(server: ServerProcess) -> int:
    """Store `VALUES`; return the port when they have a Last-Modified."""
    for name, (headers, value) in VALUES.items():
        reply = exchange(server.port, "PUT", f"/{name}", value, headers)
        assert reply.status == 200, name
    last = f"/{name}"
    wait_until(
        lambda: "Last-Modified" in exchange(server.port, "HEAD", last).headers,
        "the end of the second",
    )
    return server.port


def test_answer_is_that_of_the_application(stored: int) -> None:
    """For any type, encoding, length and key, with and without conditions."""
    absent = {"absent": 404, "k" * 1024: 404, "k" * 1025: 400}
    for name in (*VALUES, *absent):
        headers = exchange(stored, "HEAD", f"/{name}").headers
        tag, date = headers.get("ETag", '"x"'), headers.get("Last-Modified", "x")
        for condition, expected in (
            ("", 200),
            (f"If-None-Match: {tag}", 304),
            (f"If-None-Match: W/{tag}", 304),
            (f'If-None-Match: "x"\nIf-Modified-Since: {date}', 200),
            (f'If-None-Match: {tag}, "x"', 304),
            (f"If-Modified-Since: {date}", 304),
            ("If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT", 200),
            ("If-Modified-Since: Sat, 01 Jan 2050 00:00:00 GMT", 200),
            ("If-None-Match: *", 304),
        ):
            for method in ("GET", "HEAD"):
                by_gate, by_app = by_both(stored, method, f"/{name}", condition)
                assert by_gate == by_app
                assert by_gate.status == absent.get(name, expected)
                if (method, by_gate.status) == ("GET", 200):
                    assert by_gate.body == VALUES[name][1]


def test_value_of_this_second_has_no_last_modified(stored: int) -> None:
    """It would be in the future."""

    def is_without() -> bool:
        exchange(stored, "PUT", "/new", b"new")
        by_gate, by_app = by_both(stored, "GET", "/new")
        return by_gate == by_app and "Last-Modified" not in by_gate.headers

    wait_until(is_without, "a PUT and two GETs within a second")


def logged(path: Path, count: int) -> list[str]:
    """Return the lines of an access log when there are enough."""

    def lines() -> list[str]:
        return [line for line in path.read_text().splitlines() if "/-/" not in line]

    wait_until(lambda: len(lines()) >= count, f"{count} lines")
    found = lines()
    assert len(found) == count
    return found


def test_ipv6_is_served(tmp_path: Path) -> None:
    """With the address of the client in the access log."""
    path = tmp_path / "access.log"
    settings = {**SHARED, "ip": "::1", "log_access": str(path)}
    with (
        ServerProcess(tmp_path / "data", settings=settings) as server,
        socket.create_connection(("::1", server.port), ANSWER_SECONDS) as client,
    ):
        client.sendall(request_bytes("PUT", "/key", b"value"))
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(request_bytes("GET", "/key") * 2)
        client.shutdown(socket.SHUT_WR)
        assert read_to_the_end(client).count(b"\r\n\r\nvalue") == 2
        lines = logged(path, 3)
    assert [line.startswith("::1 - - [") for line in lines[1:]] == [True] * 2


# --- Clients that disconnect, or wait --------------------------------------------------


def test_clients_that_reset_leave_nothing_behind(
    stored: int, server: ServerProcess
) -> None:
    """
    In the middle of a head, of a body, of an answer, and between requests.

    Standard error has the lines of the log and nothing else.
    """
    at_first = server.descriptors()
    halves = [
        b"",
        b"GET /pla",
        PUT + b"Content-Length: 9\r\n\r\nhalf",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        request_bytes("GET", "/large"),
        request_bytes("GET", "/large") * 20,
        *(
            request_bytes("GET", "/large", None, more) * 2
            for more in (BY_APP, "Range: bytes=0-", "If-Match: *")
        ),
        request_bytes("GET", "/plain") * 50,
        TWO_LENGTHS.data,
    ]
    exchange(stored, "PUT", "/kept", b"kept")
    for half in halves * 10:
        for waits in (False, True):
            client = connect(stored)
            client.sendall(half)
            if waits and half[:3] == b"GET" and half[-4:] == b"\r\n\r\n":
                client.recv(100)
            reset(client)
    wait_until(
        lambda: server.descriptors() <= at_first + KEPT, "all connections to be closed"
    )
    assert exchange(stored, "GET", "/kept").body == b"kept"
    assert exchange(stored, "GET", "/large").body == LARGE
    lines = server.stderr.splitlines()
    assert lines
    assert [line for line in lines if not LOG_LINE.match(line)] == []


def test_last_answer_with_bytes_after_its_request_is_complete(
    stored: int,
) -> None:
    """A socket that is closed with unread bytes loses what it has not sent."""
    for headers in ("Connection: close", f"{BY_APP}\nConnection: close") * 20:
        with connect(stored, buffer=32 * KIB) as client:
            request = request_bytes("GET", "/large", None, headers)
            client.sendall(request + b"x" * 100 * KIB)
            received = read_to_the_end(client)
        assert received.partition(b"\r\n\r\n")[2] == LARGE
