"""Connections: of IPv6, of clients that disconnect, and of those that send too much."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.process import MIB, SHARED, ServerProcess, Servers
from support.waiting import wait_until
from support.wire import (
    ANSWER_SECONDS,
    BY_APP,
    KEPT,
    connect,
    exchange,
    read_to_the_end,
    request_bytes,
    reset,
)

pytestmark = pytest.mark.integration

KIB: Final = 1 << 10
PUT: Final = b"PUT /kept HTTP/1.1\r\nHost: t\r\n"
LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z [A-Z]+ +volcache")


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[ServerProcess]:
    """Yield an instance, which still runs at the end."""
    with servers.server() as running:
        yield running


LARGE: Final = b"0123456789abcdef" * (MIB // 16)


@pytest.fixture
def stored(server: ServerProcess) -> int:
    """Store two values; return the port."""
    for path, value in (("/large", LARGE), ("/plain", b"value")):
        assert exchange(server.port, "PUT", path, value).status == 200
    return server.port


def logged(path: Path, count: int) -> list[str]:
    """Return the lines of an access log when there are enough."""

    def lines() -> list[str]:
        return [line for line in path.read_text().splitlines() if "/-/" not in line]

    wait_until(lambda: len(lines()) >= count, f"{count} lines")
    found = lines()
    assert len(found) == count
    return found


def test_request_to_an_address_of_ipv6_is_answered_and_logged(tmp_path: Path) -> None:
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


def test_reset_at_any_place_leaves_no_connection_behind(
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
        PUT + b"Content-Length: 1\r\n" * 2 + b"\r\nx",
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


def test_last_answer_with_bytes_after_its_request_is_complete(stored: int) -> None:
    """A socket that is closed with unread bytes loses what it has not sent."""
    for headers in ("Connection: close", f"{BY_APP}\nConnection: close") * 20:
        with connect(stored, buffer=32 * KIB) as client:
            request = request_bytes("GET", "/large", None, headers)
            client.sendall(request + b"x" * 100 * KIB)
            received = read_to_the_end(client)
        assert received.partition(b"\r\n\r\n")[2] == LARGE
