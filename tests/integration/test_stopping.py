"""Graceful shutdown: requests in progress are answered, within a deadline."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.process import run_to_its_end
from support.waiting import comes_true, wait_until
from support.web_process import (
    GET,
    PUT,
    RESTORED,
    VALUE_SIZE_MAX,
    WebProcess,
)
from support.wire import read_to_the_end
from volcache.server.bjoern import listen

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration]

SIGNALS = [signal.SIGTERM, signal.SIGINT]


def is_refused(server: WebProcess) -> bool:
    """Return whether a new connection is refused."""
    try:
        server.connect().close()
    except ConnectionError:
        return True
    return False


def test_a_process_that_was_stopped_and_continued_goes_on() -> None:
    """As by Ctrl-Z and `fg`, or by a debugger, longer than the drainer waits at a time."""
    with WebProcess() as server:
        os.kill(server.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() > stopped + 0.7, "the end of a wait")
        os.kill(server.pid, signal.SIGCONT)
        assert not comes_true(lambda: is_refused(server), seconds=0.3)
        assert server.stop(signal.SIGTERM).exit_code == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_idle_connections_do_not_delay_the_end(number: signal.Signals) -> None:
    """Used or not; exit code 0, and handlers and mask of the signals are restored."""
    with WebProcess(drain=10) as server, ExitStack() as stack:
        for data in [GET] * 30:
            stack.enter_context(server.ask(data))
        for _ in range(20):
            stack.enter_context(server.connect())
        ending = server.stop(number)
    assert (ending.exit_code, ending.out.strip()) == (0, RESTORED)
    assert ending.seconds < 5


@pytest.mark.parametrize("number", SIGNALS)
def test_upload_in_progress_is_answered(number: signal.Signals) -> None:
    """On a new connection and on a used one."""
    with WebProcess(drain=10) as server:
        connections = [server.ask(GET), server.connect()]
        time.sleep(0.05)  # Past the tick of the kernel's clock, see `is_idle`.
        for connection in connections:
            connection.sendall(PUT % 4 + b"v")

        def go_on() -> None:
            for byte in (b"a", b"l", b"u"):
                time.sleep(0.3)  # Longer than a connection is quiet before it is idle.
                for connection in connections:
                    connection.sendall(byte)

        rest = threading.Thread(target=go_on)
        rest.start()
        time.sleep(0.05)  # The server has read the beginning.
        ending = server.stop(number)
        rest.join()
        for connection in connections:
            with connection:
                answer = read_to_the_end(connection)
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert ending.exit_code == 0
    assert 0.5 < ending.seconds < 5


def test_stalled_clients_are_closed_at_the_deadline() -> None:
    """Not before, and not long after: in a head, in a body, and in an answer."""
    value = bytes(VALUE_SIZE_MAX)
    with WebProcess(drain=1) as server, ExitStack() as stack:
        server.ask(PUT % len(value) + value).close()
        stalled = [
            stack.enter_context(server.connect(data))
            for data in (PUT % 100 + b"part", b"GE", b"GET /key HTTP/1.1\r\n")
        ]
        reader = stack.enter_context(server.connect(GET))
        reader.recv(1000)  # The server has read what was sent before.
        ending = server.stop()
        assert [read_to_the_end(one) for one in stalled] == [b""] * 3
    assert ending.exit_code == 0
    assert 0.9 < ending.seconds < 3


def test_slow_reader_gets_the_whole_response() -> None:
    """Also if it exceeds the socket buffers."""
    value = bytes(VALUE_SIZE_MAX)
    with WebProcess(drain=10) as server:
        server.ask(PUT % len(value) + value).close()
        reader = server.connect(GET)
        first = reader.recv(1000)
        got: list[bytes] = []

        def read_later() -> None:
            time.sleep(0.5)
            with reader:
                got.append(read_to_the_end(reader))

        rest = threading.Thread(target=read_later)
        rest.start()
        ending = server.stop()
        rest.join()
    assert ending.exit_code == 0
    assert (first + got[0]).partition(b"\r\n\r\n")[2] == value


def test_busy_clients_are_closed_between_requests() -> None:
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

    with WebProcess(drain=1) as server:
        clients = [
            threading.Thread(target=hammer, args=(server.connect(),)) for _ in range(8)
        ]
        for client in clients:
            client.start()
        ending = server.stop()
        for client in clients:
            client.join()
    assert ending.exit_code == 0
    assert ending.seconds < 3
    assert not broken


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGTERM] * 5,
        [signal.SIGINT] * 5,
        [signal.SIGTERM, signal.SIGINT, signal.SIGINT],
    ],
)
def test_further_signals_and_clients_are_refused(numbers: list[signal.Signals]) -> None:
    """They neither kill the process nor close a connection; a late client need not wait."""
    with WebProcess(drain=10) as server:
        connection = server.connect(PUT % 5 + b"val")
        time.sleep(0.05)  # The server has read it.
        for number in numbers:
            server.send_signal(number)
            time.sleep(0.1)  # Let each be delivered by itself.
        wait_until(lambda: is_refused(server), "a connection to be refused")
        with connection:
            connection.sendall(b"ue")
            answer = read_to_the_end(connection)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        ending = server.end()
    assert (ending.exit_code, ending.out.strip()) == (0, RESTORED)


def test_inherited_socket_stays_open() -> None:
    """Connections between two processes wait for the second."""
    with listen("127.0.0.1", 0) as listener:
        with WebProcess(listener=listener) as server:
            server.ask(GET).close()
            assert server.stop().exit_code == 0
            waiting = server.connect(GET)
        with WebProcess(listener=listener) as server, waiting:
            assert waiting.recv(100).startswith(b"HTTP/1.1 404 ")
            assert server.stop().exit_code == 0


def test_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    """Exit code 1 and the remedy."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        ended = run_to_its_end(tmp_path, {"port": port})
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert not list(tmp_path.iterdir())
