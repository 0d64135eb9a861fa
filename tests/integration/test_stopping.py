"""Graceful shutdown: requests in progress are answered, within a deadline."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from support.process import SHARED, ActivatedServer, ServerProcess
from support.waiting import comes_true, wait_until
from support.wire import (
    Talk,
    connect,
    exchange,
    read_to_the_end,
    request_bytes,
    sending,
)

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration]

SIGNALS: Final = [signal.SIGTERM, signal.SIGINT]
DRAIN_SECONDS: Final = 3
GET: Final = request_bytes("GET", "/key")
PUT: Final = b"PUT /key HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
LARGE: Final = bytes(32 << 20)  # Exceeds all buffers of a socket.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield an instance to be stopped."""
    large = {"volume_size": 2 * len(LARGE), "volume_num": 2}
    settings = large | {"max_value_size": len(LARGE), "sync_mode": "none"}
    with ServerProcess(tmp_path / "data", settings=settings) as running:
        yield running


def ended(server: ServerProcess, *numbers: signal.Signals) -> float:
    """Send signals and wait for a good end; return the seconds that it took."""
    for number in numbers:
        server.send_signal(number)
    began = time.monotonic()
    assert server.wait() == 0
    return time.monotonic() - began


def is_refused(server: ServerProcess) -> bool:
    """Return whether a new connection is refused."""
    try:
        connect(server.port).close()
    except ConnectionError:
        return True
    return False


def test_process_that_was_stopped_and_continued_goes_on(
    server: ServerProcess,
) -> None:
    """As by Ctrl-Z and `fg`, or by a debugger, longer than the drainer waits at a time."""
    server.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped + 0.7, "the end of a wait")
    server.send_signal(signal.SIGCONT)
    assert not comes_true(lambda: is_refused(server), seconds=0.3)
    ended(server, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_idle_connections_do_not_delay_the_end(
    server: ServerProcess, number: signal.Signals
) -> None:
    """Used or not, and whoever answered on them last."""
    with ExitStack() as stack:
        for kind in range(30):
            client = stack.enter_context(Talk(server.port))
            if kind % 3 == 1:
                client.exchange("GET", "/key")
            if kind % 3 == 2:
                client.exchange("PUT", "/other", b"")
        assert ended(server, number) < DRAIN_SECONDS - 1


@pytest.mark.parametrize("number", SIGNALS)
def test_upload_in_progress_is_answered(
    server: ServerProcess, number: signal.Signals
) -> None:
    """On a new connection and on a used one."""
    with Talk(server.port) as used, Talk(server.port) as new:
        used.exchange("GET", "/key")
        time.sleep(0.05)  # Past the tick of the kernel's clock, see `is_idle`.
        for client in (used, new):
            client.send(PUT % 4 + b"v")

        def go_on() -> None:
            for byte in (b"a", b"l", b"u"):
                time.sleep(0.3)  # Longer than a connection is quiet before it is idle.
                for client in (used, new):
                    client.send(byte)

        rest = threading.Thread(target=go_on)
        rest.start()
        time.sleep(0.05)  # The server has read the beginning.
        assert ended(server, number) > 0.5
        rest.join()
        for client in (used, new):
            assert client.read("PUT").status == 200


def test_stalled_clients_are_closed_at_the_deadline(server: ServerProcess) -> None:
    """Not before, and not long after: in a head, in a body, and in an answer."""
    exchange(server.port, "PUT", "/key", LARGE)
    with ExitStack() as stack:
        stalled = [
            stack.enter_context(sending(server.port, data))
            for data in (PUT % 100 + b"part", b"GE", b"GET /key HTTP/1.1\r\n")
        ]
        reader = stack.enter_context(sending(server.port, GET))
        reader.recv(1000)  # The server has read what was sent before.
        seconds = ended(server, signal.SIGTERM)
        assert [read_to_the_end(one) for one in stalled] == [b""] * 3
    assert DRAIN_SECONDS - 0.1 < seconds < DRAIN_SECONDS + 2


def test_slow_reader_gets_the_whole_response(server: ServerProcess) -> None:
    """Also if it exceeds the socket buffers."""
    exchange(server.port, "PUT", "/key", LARGE)
    with sending(server.port, GET) as reader, ThreadPoolExecutor(1) as pool:
        first = reader.recv(1000)
        ending = pool.submit(ended, server, signal.SIGTERM)
        time.sleep(0.5)
        rest = read_to_the_end(reader)
        ending.result()
    assert (first + rest).partition(b"\r\n\r\n")[2] == LARGE


def test_busy_clients_are_closed_between_requests(server: ServerProcess) -> None:
    """Clients that never pause lose at most the request they send at the end."""
    broken: list[bytes] = []

    def hammer(connection: socket.socket) -> None:
        with connection:
            answer = b"HTTP/1.1 "
            while answer.startswith(b"HTTP/1.1 "):
                try:
                    connection.sendall(GET)
                    answer = connection.recv(4096)
                except OSError:
                    return
            if answer:
                broken.append(answer)

    clients = [
        threading.Thread(target=hammer, args=(connect(server.port),)) for _ in range(8)
    ]
    for client in clients:
        client.start()
    assert ended(server, signal.SIGTERM) < DRAIN_SECONDS
    for client in clients:
        client.join()
    assert not broken


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGTERM] * 5,
        [signal.SIGINT] * 5,
        [signal.SIGTERM, signal.SIGINT, signal.SIGINT],
    ],
)
def test_further_signals_and_clients_are_refused(
    server: ServerProcess, numbers: list[signal.Signals]
) -> None:
    """They neither kill the process nor close a connection; a late client need not wait."""
    ready = request_bytes("GET", "/-/ready")
    with (
        sending(server.port, PUT % 5 + b"val") as connection,
        Talk(server.port) as checker,
    ):
        checker.send(ready[:-2])
        time.sleep(0.05)  # The server has read both.
        for number in numbers:
            server.send_signal(number)
            time.sleep(0.1)  # Let each be delivered by itself.
        wait_until(lambda: is_refused(server), "a connection to be refused")
        checker.send(ready[-2:])
        reply = checker.read()
        assert reply.status == 503
        assert b"not ready: the process is stopping" in reply.body
        connection.sendall(b"ue")
        answer = read_to_the_end(connection)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    ended(server)


def test_inherited_socket_stays_open(tmp_path: Path) -> None:
    """Connections between two processes wait for the second."""
    with ActivatedServer(tmp_path / "data", settings=SHARED) as server:
        ended(server, signal.SIGTERM)
        with sending(server.port, GET) as waiting:
            server.start()
            assert waiting.recv(100).startswith(b"HTTP/1.1 404 ")
