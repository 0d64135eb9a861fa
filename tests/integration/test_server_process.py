"""The web part under real bjoern: what goes over the wire, and how it ends."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support.process import SOURCE
from support.waiting import wait_until
from support.web_process import (
    END_SECONDS,
    KEY_SIZE_MAX,
    RESTORED,
    VALUE_SIZE_MAX,
    WebProcess,
)
from volcache.web.server import listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

SIGNALS = [signal.SIGTERM, signal.SIGINT]
GET = b"GET /key HTTP/1.1\r\nHost: test\r\n\r\n"
PUT = b"PUT /key HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[WebProcess]:
    """Share one server among the tests that do not end it."""
    with WebProcess() as running:
        yield running


@pytest.fixture
def client(server: WebProcess) -> Iterator[http.client.HTTPConnection]:
    """Return a connection that is kept alive over a test, as its end proves."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, END_SECONDS)
    connection.connect()
    opened = connection.sock
    yield connection
    # http.client drops its socket when an answer says close or a length is wrong.
    assert connection.sock is opened
    connection.request("GET", "/-/healthy")
    assert connection.getresponse().read() == b"ok\n"
    connection.close()


def ask(
    client: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send one request and read the whole answer."""
    client.request(method, path, body, headers)
    response = client.getresponse()
    return response.status, response.headers, response.read()


def read_to_end(connection: socket.socket) -> bytes:
    """Return everything that comes until the connection is closed."""
    with connection:
        chunks = []
        while chunk := connection.recv(1 << 20):
            chunks.append(chunk)
        return b"".join(chunks)


def is_refused(server: WebProcess) -> bool:
    """Tell whether a new connection is refused."""
    try:
        server.connect().close()
    except ConnectionError:
        return True
    return False


# --- HTTP ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1023, 65_536, 1 << 20, VALUE_SIZE_MAX])
def test_value_of_any_size_comes_back(
    client: http.client.HTTPConnection, size: int
) -> None:
    """Byte for byte, with its exact length, over one connection."""
    value = (b"0123456789abcdef\r\n" * (size // 18 + 1))[:size]
    status, headers, body = ask(client, "PUT", "/some/key.txt", value)
    assert (status, headers["Content-Length"], body) == (200, "0", b"")
    status, got, body = ask(client, "GET", "/some/key.txt?query")
    assert status == 200
    assert body == value
    assert got["Content-Length"] == str(size)
    assert got["Content-Type"] == "text/plain"
    assert got["X-Cache"] == "DISK"
    for name in ("ETag", "X-Position"):
        assert got[name] == headers[name]
    status, head, body = ask(client, "HEAD", "/some/key.txt")
    assert (status, body) == (200, b"")
    for names in (head, got):
        del names["Date"], names["Age"]  # The clock goes on.
    assert head.items() == got.items()


def test_delete_makes_a_miss(client: http.client.HTTPConnection) -> None:
    """The second one finds nothing."""
    ask(client, "PUT", "/gone", b"value")
    assert ask(client, "DELETE", "/gone")[0] == 200
    for method in ("DELETE", "GET", "HEAD"):
        status, headers, _ = ask(client, method, "/gone")
        assert (status, headers["X-Cache"]) == (404, "MISS")


@pytest.mark.parametrize("method", ["POST", "PATCH", "TRACE", "LOCK"])
def test_other_verbs_are_not_allowed(
    client: http.client.HTTPConnection, method: str
) -> None:
    """405 with Allow, and the connection goes on."""
    status, headers, body = ask(client, method, "/key")
    assert status == 405
    assert headers["Allow"] == "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"
    assert body.count(b"\n") == 1


@pytest.mark.parametrize(
    "path",
    ["/", "/a%00b", "/a%0D%0AX-Evil:1", "/..", "/%2e%2e/a", "/a/%2E%2E/-/healthy"],
)
def test_bad_key_is_refused(client: http.client.HTTPConnection, path: str) -> None:
    """400 before anything is stored."""
    assert ask(client, "PUT", path, b"value")[0] == 400
    assert ask(client, "GET", path)[0] == 400


def test_key_length_counts_decoded_bytes(client: http.client.HTTPConnection) -> None:
    """The longest key is taken, one byte more is not."""
    assert ask(client, "PUT", "/" + "%61" * KEY_SIZE_MAX, b"")[0] == 200
    assert ask(client, "PUT", "/" + "a" * (KEY_SIZE_MAX + 1), b"")[0] == 400


def test_put_over_the_limit_is_refused(client: http.client.HTTPConnection) -> None:
    """413 with the limit, and the connection goes on."""
    status, _, body = ask(client, "PUT", "/large", bytes(VALUE_SIZE_MAX + 1))
    assert status == 413
    assert str(VALUE_SIZE_MAX).encode() in body
    assert ask(client, "GET", "/large")[0] == 404


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (b"", b"", 411),
        (b"Content-Length: 0\r\n", b"", 200),
        (b"Content-Length: 005\r\n", b"value", 200),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", b"value", 400),
        (b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", 200),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\nva\r\n3\r\nlue\r\n0\r\n\r\n", 200),
        (
            b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            b"5\r\nvalue\r\n0\r\n\r\n",
            400,
        ),
        (b"Content-Length: 5\r\nContent-Type: a\x01b\r\n", b"value", 400),
        (b"Content-Length: 5\r\nExpect: 100-continue\r\n", b"value", 200),
    ],
)
def test_upload_is_stored_whole_or_refused(
    server: WebProcess, headers: bytes, body: bytes, status: int
) -> None:
    """Lengths that are absent, doubled or wrong, as bjoern's parser lets them pass."""
    head = b"PUT /upload HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
    answer = read_to_end(server.connect(head + headers + b"\r\n" + body))
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_server_goes_on_after_requests_that_are_none(server: WebProcess) -> None:
    """No path, no HTTP, or gone before the answer."""
    for data in (
        b"GET http://host HTTP/1.1\r\nHost: host\r\n\r\n",
        b"CONNECT host:1 HTTP/1.1\r\nHost: host\r\n\r\n",
        b"OPTIONS * HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x00\xee\x01\x00\x00\r\n\r\n",
        PUT % 100 + b"part",
        b"GE",
    ):
        server.connect(data).close()
    server.ask(b"GET /-/healthy HTTP/1.1\r\n\r\n").close()


# --- The end ---------------------------------------------------------------------


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_at_once_without_connections(number: signal.Signals) -> None:
    """Exit code 0, and the signals are left as they were found."""
    with WebProcess() as server:
        ending = server.stop(number)
    assert ending.exit_code == 0
    assert ending.seconds < 2
    assert ending.out.strip() == RESTORED


@pytest.mark.parametrize("number", SIGNALS)
def test_idle_connections_do_not_hold_the_end(number: signal.Signals) -> None:
    """Kept alive, or never used: they are closed long before the deadline."""
    with WebProcess(drain=10) as server, ExitStack() as stack:
        for data in [GET] * 30:
            stack.enter_context(server.ask(data))
        for _ in range(20):
            stack.enter_context(server.connect())
        ending = server.stop(number)
    assert ending.exit_code == 0
    assert ending.seconds < 5


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("is_first", [True, False])
def test_upload_on_its_way_gets_its_answer(
    number: signal.Signals,
    is_first: bool,  # noqa: FBT001 - A parameter of pytest.
) -> None:
    """A request that began before the signal is answered, on a used connection too."""
    with WebProcess(drain=10) as server:
        connection = server.connect() if is_first else server.ask(GET)
        if not is_first:
            time.sleep(0.05)  # Past the tick of the kernel's clock, see `is_idle`.
        connection.sendall(PUT % 4 + b"v")

        def go_on() -> None:
            for byte in (b"a", b"l", b"u"):
                time.sleep(0.3)  # Longer than a connection is quiet before it is idle.
                connection.sendall(byte)

        rest = threading.Thread(target=go_on)
        rest.start()
        time.sleep(0.05)  # The server has read the beginning.
        ending = server.stop(number)
        rest.join()
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 OK\r\n")
    assert ending.exit_code == 0
    assert 0.5 < ending.seconds < 5


@pytest.mark.parametrize("data", [PUT % 100 + b"part", b"GE", b"GET /key HTTP/1.1\r\n"])
def test_request_that_stalls_is_cut_at_the_deadline(data: bytes) -> None:
    """Not before, and not long after."""
    with WebProcess(drain=1) as server, server.connect(data) as connection:
        time.sleep(0.05)  # The server has read it.
        ending = server.stop()
        assert read_to_end(connection) == b""
    assert ending.exit_code == 0
    assert 0.9 < ending.seconds < 3


def test_slow_reader_gets_the_whole_answer() -> None:
    """An answer that does not fit the buffers is written while it is read."""
    value = bytes(VALUE_SIZE_MAX)
    with WebProcess(drain=10) as server:
        server.ask(PUT % len(value) + value).close()
        reader = server.connect(GET)
        first = reader.recv(1000)
        got: list[bytes] = []

        def read_later() -> None:
            time.sleep(0.5)
            got.append(read_to_end(reader))

        rest = threading.Thread(target=read_later)
        rest.start()
        ending = server.stop()
        rest.join()
    assert ending.exit_code == 0
    assert (first + got[0]).partition(b"\r\n\r\n")[2] == value


def test_reader_that_stalls_is_cut_at_the_deadline() -> None:
    """It gets what fitted the buffers."""
    value = bytes(VALUE_SIZE_MAX)
    with WebProcess(drain=1) as server:
        server.ask(PUT % len(value) + value).close()
        reader = server.connect(GET)
        reader.recv(1000)
        ending = server.stop()
        reader.close()
    assert ending.exit_code == 0
    assert 0.9 < ending.seconds < 3


def test_busy_clients_are_stopped_between_requests() -> None:
    """Clients that never pause lose at most the request they begin at the very end."""
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
        [signal.SIGINT, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGINT, signal.SIGINT],
    ],
)
def test_further_signals_change_nothing(numbers: list[signal.Signals]) -> None:
    """They neither kill nor cut what is on its way."""
    with WebProcess(drain=10) as server:
        connection = server.connect(PUT % 5 + b"val")
        time.sleep(0.05)  # The server has read it.
        for number in numbers:
            server.send_signal(number)
            time.sleep(0.1)  # Let each be delivered by itself.
        connection.sendall(b"ue")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 OK\r\n")
        ending = server.end()
    assert ending.exit_code == 0
    assert ending.out.strip() == RESTORED


def test_connections_are_refused_while_draining() -> None:
    """A client that comes late is told so at once instead of waiting."""
    with WebProcess(drain=10) as server:
        connection = server.connect(PUT % 5 + b"val")
        time.sleep(0.05)  # The server has read it.
        server.send_signal(signal.SIGTERM)
        wait_until(lambda: is_refused(server), "a connection to be refused")
        connection.sendall(b"ue")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 OK\r\n")
        assert server.end().exit_code == 0


def test_inherited_socket_stays_open() -> None:
    """What comes between two processes waits for the second."""
    with listen("127.0.0.1", 0) as listener:
        with WebProcess(listener=listener) as server:
            server.ask(GET).close()
            assert server.stop().exit_code == 0
            waiting = server.connect(GET)
        with WebProcess(listener=listener) as server, waiting:
            assert waiting.recv(100).startswith(b"HTTP/1.1 404 ")
            assert server.stop().exit_code == 0


def test_port_in_use_is_one_line(tmp_path: Path) -> None:
    """The whole program: exit code 1, and one line that says what to do."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, str(SOURCE)],
            cwd=tmp_path,
            env={"VOLCACHE_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=END_SECONDS,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert not list(tmp_path.iterdir())
