"""Slow, idle and too many connections to a real instance."""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from support.process import MIB, SHARED, ServerProcess, Servers, raise_descriptor_limit
from support.waiting import comes_true, wait_until
from support.wire import (
    ANSWER_SECONDS,
    BY_APP,
    KEPT,
    Talk,
    connect,
    exchange,
    read_to_the_end,
    request_bytes,
    sending,
)

pytestmark = [
    pytest.mark.sampled(3),
    pytest.mark.integration,
    pytest.mark.slow,
]

KIB: Final = 1 << 10
HEAD_TIMEOUT: Final = 1.0
IDLE_TIMEOUT: Final = 1.5
TRANSFER_TIMEOUT: Final = 1.0
# By how much the measured time may exceed a limit: the machine may be busy.
SLACK: Final = 5.0
MANY: Final = 10_000
LIMIT: Final = 120  # of descriptors
LARGE: Final = b"0123456789abcdef" * (MIB // 16)
GET_KEY: Final = request_bytes("GET", "/key")
HALF_BODY: Final = b"PUT /key HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nhalf"


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[ServerProcess]:
    """Yield an instance with short limits, and with `/key` and `/large`."""
    limits = {
        "head_timeout": HEAD_TIMEOUT,
        "idle_timeout": IDLE_TIMEOUT,
        "transfer_timeout": TRANSFER_TIMEOUT,
    }
    with servers.server(**limits) as running:
        exchange(running.port, "PUT", "/key", b"value")
        exchange(running.port, "PUT", "/large", LARGE)
        yield running


@pytest.fixture
def patient(servers: Servers) -> Iterator[ServerProcess]:
    """Yield an instance with the limits of the settings, and with `/key`."""
    with servers.server() as running:
        exchange(running.port, "PUT", "/key", b"value")
        yield running


def connections_of(server: ServerProcess) -> dict[str, Any]:
    """Return what an instance has counted of its connections."""
    found: dict[str, Any] = server.stats()["server"]
    return found


def wait_until_counted(server: ServerProcess, **counts: int) -> None:
    """Wait until an instance counts so many."""
    wait_until(lambda: counts.items() <= connections_of(server).items(), str(counts))


def assert_timed_out(received: bytes) -> None:
    """Check that an answer is a 408 of one line."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"\r\nConnection: close" in head
    assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in head
    assert body.endswith(b"; try again\n")
    assert body.count(b"\n") == 1


def assert_quiet_until(clients: list[socket.socket], limit: float) -> None:
    """Check that nothing is sent to them, nor are they closed, before a time."""
    seconds = limit - 0.1 - time.monotonic()
    assert select.select(clients, [], [], max(0, seconds))[0] == []


# --- Time limits -----------------------------------------------------------------------


def test_head_that_is_not_completed_gets_408(server: ServerProcess) -> None:
    """After the time for a head, counted; on a new connection and on a used one."""
    clients = []
    counted = connections_of(server)["closed"]["head"]
    starts = (b"G", b"\r\nGET /", GET_KEY[:-2], GET_KEY[:-1])
    with ExitStack() as opened:
        began = time.monotonic()
        for start, before in product(starts, (b"", GET_KEY)):
            client = opened.enter_context(Talk(server.port))
            if before:
                client.send(before)
                assert client.read().body == b"value"
            client.send(start)
            clients.append(client.socket)
        assert_quiet_until(clients, began + HEAD_TIMEOUT)
        for one in clients:
            assert_timed_out(read_to_the_end(one))
    assert time.monotonic() - began < HEAD_TIMEOUT + SLACK
    assert connections_of(server)["closed"]["head"] == counted + len(clients)


@pytest.mark.parametrize(
    "start",
    [GET_KEY[:-2] + b"X: ", HALF_BODY.replace(b"9", b"9000")],
    ids=["head", "body"],
)
def test_time_is_not_extended_by_bytes_now_and_then(
    server: ServerProcess, start: bytes
) -> None:
    """A client that sends a byte at a time has no more time than others."""
    with connect(server.port) as client:
        client.sendall(start)
        client.settimeout(0.1)
        received = b""

        def is_answered() -> bool:
            nonlocal received
            with suppress(TimeoutError):
                received = client.recv(1 << 16)
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(b"x")
            return bool(received)

        wait_until(is_answered, "an answer")
    assert_timed_out(received)
    assert exchange(server.port, "GET", "/key").body == b"value"


CHUNKS: Final = b"PUT /key HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES: Final = [
    HALF_BODY,
    HALF_BODY[:-4],
    CHUNKS + b"9\r\nhalf",
    CHUNKS + b"0\r\n",
    b"GET /key HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nhalf",
    HALF_BODY.replace(b"9", b"300000") + b"x" * 200_000,
]


def test_body_that_stops_gets_408_and_is_not_stored(server: ServerProcess) -> None:
    """After the time for a transfer, counted; the old value stays."""
    before = connections_of(server)["closed"]["transfer"]
    with ExitStack() as opened:
        began = time.monotonic()
        clients = [opened.enter_context(sending(server.port, one)) for one in BODIES]
        assert_quiet_until(clients, began + TRANSFER_TIMEOUT)
        for client in clients:
            assert_timed_out(read_to_the_end(client))
    assert time.monotonic() - began < TRANSFER_TIMEOUT + SLACK
    assert connections_of(server)["closed"]["transfer"] == before + len(clients)
    assert exchange(server.port, "GET", "/key").body == b"value"


@pytest.mark.parametrize("header", ["", BY_APP])
def test_client_that_does_not_read_its_answer_is_disconnected(
    server: ServerProcess, header: str
) -> None:
    """By C and by bjoern; it cannot hold its 20 MiB for ever."""
    before = connections_of(server)["closed"]["transfer"]
    requests = request_bytes("GET", "/large", None, header) * 20
    with sending(server.port, requests, buffer=4096) as client:
        wait_until(
            lambda: connections_of(server)["closed"]["transfer"] > before,
            "the connection to be closed",
        )
        received = 0
        with suppress(ConnectionResetError):
            while piece := client.recv(1 << 20):
                received += len(piece)
    assert received < 20 * MIB
    assert exchange(server.port, "GET", "/large").body == LARGE


def test_idle_connection_is_closed_without_a_word(server: ServerProcess) -> None:
    """A new one, one that was used, and one that sent an empty line; all counted."""
    before = connections_of(server)
    with ExitStack() as opened:
        began = time.monotonic()
        clients = [opened.enter_context(Talk(server.port)) for _ in range(3)]
        assert clients[1].exchange("GET", "/key").body == b"value"
        clients[2].send(b"\r\n")
        assert_quiet_until([client.socket for client in clients], began + IDLE_TIMEOUT)
        assert all(client.has_ended() for client in clients)
    assert time.monotonic() - began < IDLE_TIMEOUT + SLACK
    after = connections_of(server)
    assert after["accepted"] == before["accepted"] + 4  # With the statistics.
    assert after["closed"]["idle"] == before["closed"]["idle"] + 3
    assert after["closed"]["room"] == after["turned_away"] == 0


def test_slow_but_steady_client_is_served(server: ServerProcess) -> None:
    """Its body takes longer than the limit, but never pauses so long."""
    with Talk(server.port) as whole, Talk(server.port) as chunked:
        whole.send(b"PUT /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 12000\r\n\r\n")
        chunked.send(CHUNKS.replace(b"key", b"slow2"))
        for _ in range(6):
            whole.send(b"x" * 2000)
            chunked.send(b"7d0\r\n" + b"x" * 2000 + b"\r\n")
            time.sleep(TRANSFER_TIMEOUT / 4)
        chunked.send(b"0\r\n\r\n")
        for client, path in ((whole, "/slow"), (chunked, "/slow2")):
            assert client.read("PUT").status == 200
            assert client.exchange("GET", path).body == b"x" * 12000


@pytest.mark.parametrize("header", ["", BY_APP])
def test_slow_but_steady_reader_gets_everything(
    server: ServerProcess, header: str
) -> None:
    """Four values that fit into no buffer, in more time than the limit."""
    with connect(server.port, buffer=64 * KIB) as client:
        requests = request_bytes("GET", "/large", None, header) * 3
        client.sendall(
            requests + request_bytes("GET", "/large", None, "Connection: close")
        )
        received = bytearray()
        pauses = 0
        while piece := client.recv(64 * KIB):
            received += piece
            if len(received) // (MIB // 2) > pauses:
                pauses += 1
                time.sleep(TRANSFER_TIMEOUT / 4)
    assert pauses >= 8
    answers = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [a.partition(b"\r\n\r\n")[2] == LARGE for a in answers] == [True] * 4


def test_timeouts_of_zero_close_no_connection(tmp_path: Path) -> None:
    limits = dict.fromkeys(("head_timeout", "idle_timeout", "transfer_timeout"), 0)
    with (
        ServerProcess(tmp_path, settings={**SHARED, **limits}) as server,
        Talk(server.port) as idle,
        Talk(server.port) as head,
        Talk(server.port) as body,
    ):
        idle.exchange("PUT", "/key", b"value")
        head.send(GET_KEY[:9])
        body.send(HALF_BODY)
        time.sleep(IDLE_TIMEOUT)
        assert idle.exchange("GET", "/key").body == b"value"
        head.send(GET_KEY[9:])
        assert head.read().body == b"value"
        body.send(b" more")
        assert body.read("PUT").status == 200
        assert idle.exchange("GET", "/key").body == b"half more"


# --- Many connections ------------------------------------------------------------------


def test_thousands_of_connections_are_all_served(patient: ServerProcess) -> None:
    """Each of them twice, while all are open."""
    allowed = raise_descriptor_limit(MANY + 500)
    count = min(MANY, allowed - 500)
    if count < MANY // 4:
        pytest.skip(f"only {allowed} descriptors are allowed here")
    at_first = patient.descriptors()
    with ExitStack() as opened:
        clients = [opened.enter_context(connect(patient.port)) for _ in range(count)]
        for header in ("", BY_APP):
            request = request_bytes("GET", "/key", None, header)
            for first in range(0, count, 100):
                for client in clients[first : first + 100]:
                    client.sendall(request)
                for client in clients[first : first + 100]:
                    received = client.recv(4096)
                    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
                    assert received.endswith(b"\r\n\r\nvalue")
        assert connections_of(patient)["open"] > count
        assert exchange(patient.port, "GET", "/key").body == b"value"
    wait_until(
        lambda: patient.descriptors() <= at_first + KEPT, "all connections to be closed"
    )
    assert "connections.full" not in patient.stderr


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield an instance that has room for some dozens of connections."""
    running = ServerProcess(tmp_path / "data", settings=SHARED)
    running.descriptor_limit = LIMIT
    with running:
        exchange(running.port, "PUT", "/key", b"value")
        yield running
        wait_until(
            lambda: exchange(running.port, "GET", "/key").body == b"value",
            "the connections of the test to be closed",
        )


def arrived(connection: socket.socket) -> bytes | None:
    """Return a byte that has arrived, without taking it; empty: it was closed."""
    connection.settimeout(0)
    try:
        return connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""
    finally:
        connection.settimeout(ANSWER_SECONDS)


def is_closed_or_answered(connection: socket.socket) -> bool:
    """Return whether something has arrived."""
    return arrived(connection) is not None


def test_oldest_idle_connections_make_room_for_new_ones(limited: ServerProcess) -> None:
    """All new ones are served; one line in the log says that there were too many."""
    with ExitStack() as opened:
        clients = []
        for _ in range(2 * LIMIT):
            client = opened.enter_context(Talk(limited.port))
            assert client.exchange("GET", "/key").body == b"value"
            clients.append(client)
        wait_until(lambda: "connections.full" in limited.stderr, "a line in the log")
        closed = [arrived(client.socket) == b"" for client in clients]
        kept = closed.count(False)
        assert closed == [True] * (len(clients) - kept) + [False] * kept
        assert 8 <= kept < LIMIT
        # Those that stay can be used, in any order.
        for client in reversed(clients[-kept:]):
            assert client.exchange("GET", "/key").body == b"value"
        counted = connections_of(limited)
        assert counted["closed"]["room"] >= 2 * LIMIT - kept
        assert counted["open"] <= counted["limit"] == kept
    assert limited.stderr.count("connections.full") == 1


def fill(limited: ServerProcess, opened: ExitStack, data: bytes) -> list[socket.socket]:
    """Open connections that are not idle until one is turned away; return the others."""
    busy: list[socket.socket] = []
    while len(busy) < LIMIT:
        client = opened.enter_context(sending(limited.port, data))
        busy.append(client)
        if comes_true(partial(is_closed_or_answered, client), 0.04):
            break
    turned_away = [client for client in busy if is_closed_or_answered(client)]
    assert turned_away
    return [client for client in busy if client not in turned_away]


@pytest.mark.parametrize("data", [HALF_BODY, GET_KEY[:-2]])
def test_connections_beyond_the_limit_get_503_while_all_others_are_busy(
    limited: ServerProcess, data: bytes
) -> None:
    """Without using the CPU; when one ends, the next is served."""
    with ExitStack() as opened:
        busy = fill(limited, opened, data)
        assert len(busy) >= 8
        for _ in range(50):
            with connect(limited.port) as client:
                answer = read_to_the_end(client)
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nRetry-After: 1\r\n" in answer
            assert b"\r\nConnection: close\r\n" in answer
            assert answer.endswith(b"\r\n\r\ntoo many connections; try again later\n")
        assert cpu_seconds_of_one(limited) < 0.3
        # Without waiting for another request.
        wait_until(lambda: "connections.full" in limited.stderr, "a line in the log")
        assert "turned_away=" in limited.stderr
        busy.pop().close()
        assert comes_true(lambda: is_served(limited)), "a free place is not used"


def is_served(server: ServerProcess) -> bool:
    """Return whether a new connection is answered."""
    with connect(server.port) as client, suppress(ConnectionError):
        client.sendall(GET_KEY)
        return client.recv(4096).endswith(b"value")
    return False


def cpu_seconds_of_one(server: ServerProcess) -> float:
    """Return how many seconds of CPU an instance uses in a second."""

    def used() -> float:
        text = Path(f"/proc/{server.pid}/stat").read_text()
        ticks = text.rpartition(") ")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(1)
    return used() - before


def test_instance_without_connections_uses_no_cpu(patient: ServerProcess) -> None:
    """Nor with idle ones, or with requests whose other half is missing."""
    with ExitStack() as opened:
        for data in (b"", GET_KEY[:-2], HALF_BODY, GET_KEY):
            opened.enter_context(sending(patient.port, data))
        assert exchange(patient.port, "GET", "/key").status == 200
        assert cpu_seconds_of_one(patient) < 0.1


def test_shortage_of_descriptors_lowered_while_serving_is_survived(
    tmp_path: Path,
) -> None:
    """Below what the instance counts with: idle ones are closed, others get 503."""
    with ServerProcess(tmp_path / "data", settings=SHARED) as patient:
        exchange(patient.port, "PUT", "/key", b"value")
        at_first = patient.descriptors()
        limit = at_first + 12
        resource.prlimit(patient.pid, resource.RLIMIT_NOFILE, (limit, limit))
        with ExitStack() as opened:
            for _ in range(40):
                idle = opened.enter_context(Talk(patient.port))
                assert idle.exchange("GET", "/key").body == b"value"
            busy = [opened.enter_context(connect(patient.port)) for _ in range(60)]
            for client in busy:
                with suppress(ConnectionError):
                    client.sendall(HALF_BODY)
            wait_until(
                lambda: sum(map(is_closed_or_answered, busy)) >= 40,
                "them to be turned away",
            )
            assert cpu_seconds_of_one(patient) < 0.3
            wait_until(
                lambda: "connections.full" in patient.stderr, "a line in the log"
            )
        assert comes_true(lambda: is_served(patient)), (
            "connections are no longer accepted"
        )


# --- Memory for bodies -------------------------------------------------------------


CHUNKED_HEAD: Final = (
    b"PUT /%d HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
)
BODY_MEMORY: Final = 8 * MIB


def test_bodies_wait_for_memory_in_their_order(tmp_path: Path) -> None:
    """However many there are: what is received stays below body_memory."""
    # In one loop: of several, each looks for the stalest of its own connections first.
    limits = {"threads": 1, "head_timeout": 2.0, "body_memory": BODY_MEMORY}
    with (
        ServerProcess(tmp_path / "data", settings={**SHARED, **limits}) as server,
        ExitStack() as opened,
    ):
        before = server.memory()
        chunk = b"%x\r\n%b\r\n" % (MIB - 1, bytes(MIB - 1))
        uploads = []
        for number in range(BODY_MEMORY // MIB):
            one = opened.enter_context(connect(server.port))
            one.sendall(CHUNKED_HEAD % number + chunk)
            uploads.append(one)
        wait_until_counted(server, body_bytes=BODY_MEMORY)
        waiting = []
        for number in range(100, 104):
            one = opened.enter_context(connect(server.port))
            one.sendall(b"PUT /%d HTTP/1.1\r\nHost: t\r\n" % number)
            one.sendall(b"Content-Length: %d\r\n\r\n" % MIB + LARGE)
            waiting.append(one)
        wait_until_counted(server, waiting_bodies=4)
        # What needs no room is answered.
        assert exchange(server.port, "GET", "/none").status == 404
        uploads[0].sendall(b"0\r\n\r\n")
        for one in (uploads[0], *waiting):
            assert one.recv(4096).startswith(b"HTTP/1.1 200 OK")
        for one in uploads[2:]:  # What arrives at the same time has no order.
            one.sendall(b"1\r\nx\r\n")
        for number in (200, 201):  # There is room for one of them.
            one = opened.enter_context(connect(server.port))
            one.sendall(CHUNKED_HEAD % number)
            uploads.append(one)
        # After a second, the one that has made no progress for the longest time gives way.
        answer = uploads[1].recv(4096)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1")
        for one in uploads[-2:]:
            one.sendall(b"0\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200 OK")
        assert server.memory("VmHWM") - before < 3 * BODY_MEMORY


def test_body_waiting_while_other_loops_hold_the_memory_is_stored(
    tmp_path: Path,
) -> None:
    """Their stalest connections give way, too."""
    count = BODY_MEMORY // MIB
    limits = {"threads": 2, "body_memory": BODY_MEMORY}
    with (
        ServerProcess(tmp_path / "data", settings={**SHARED, **limits}) as server,
        ExitStack() as opened,
    ):

        def upload(number: int) -> socket.socket:
            # A loop that is busy leaves what is to be accepted to the other one.
            busy.sendall(GET_KEY * 1000)
            one = opened.enter_context(connect(server.port))
            one.sendall(CHUNKED_HEAD % number)
            return one

        busy = opened.enter_context(connect(server.port))
        drained = Thread(target=read_to_the_end, args=(busy,))
        drained.start()
        opened.callback(drained.join)
        opened.callback(busy.shutdown, socket.SHUT_WR)
        stalled = [upload(number) for number in range(count)]
        wait_until_counted(server, body_bytes=BODY_MEMORY)
        waiting = [upload(100 + number) for number in range(count)]
        for one in stalled:
            assert one.recv(4096).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        for one in waiting:
            one.sendall(b"0\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_body_for_the_application_is_counted_until_it_is_answered(
    patient: ServerProcess,
) -> None:
    """From its head on, although it is passed on as it arrives."""
    head = b"PROPFIND /none HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
    with connect(patient.port) as client:
        client.sendall(head % len(LARGE) + LARGE[:-1])
        wait_until_counted(patient, body_bytes=len(LARGE))
        client.sendall(LARGE[-1:])
        assert client.recv(4096).startswith(b"HTTP/1.1 404 ")
        wait_until_counted(patient, body_bytes=0)


def test_large_answers_to_clients_that_do_not_read_need_little_memory(
    tmp_path: Path,
) -> None:
    """They are read from the disk in pieces; what is small is answered."""
    limits = {"max_value_size": 8 * MIB, "body_memory": 20 * MIB}
    with (
        ServerProcess(tmp_path / "data", settings={**SHARED, **limits}) as server,
        ExitStack() as opened,
    ):
        value = bytes(range(256)) * (8 * MIB // 256)
        for path in ("/large", "/small"):
            body = value if path == "/large" else b"small"
            assert exchange(server.port, "PUT", path, body).status == 200
        before = server.memory()
        slow = []
        for _ in range(20):
            get = b"GET /large HTTP/1.0\r\n\r\n"
            one = opened.enter_context(sending(server.port, get, buffer=4096))
            assert one.recv(100)
            slow.append(one)
        assert exchange(server.port, "GET", "/small").body == b"small"
        assert exchange(server.port, "HEAD", "/large").status == 200
        assert server.memory() - before < 20 * MIB
        for one in slow[::10]:
            assert read_to_the_end(one).endswith(value)


def test_memory_of_bodies_that_broke_off_is_given_back(tmp_path: Path) -> None:
    """Of 300 MiB, no more than 64 MiB and a little are kept."""
    limits = {"body_memory": 400 * MIB}
    with ServerProcess(tmp_path / "data", settings={**SHARED, **limits}) as server:
        before = server.memory()
        with ExitStack() as opened:
            for number in range(300):
                one = opened.enter_context(sending(server.port, CHUNKED_HEAD % number))
                for _ in range(15):
                    one.sendall(b"10000\r\n%b\r\n" % bytes(65536))
            wait_until(lambda: server.memory() - before > 250 * MIB, "the bodies")
        wait_until(lambda: server.memory() - before < 80 * MIB, "freed memory")
