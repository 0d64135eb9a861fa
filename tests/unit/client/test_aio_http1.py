"""Exchanges of whole values by a protocol of asyncio, and the connections they use."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.answers import BROKEN, OK
from support.raw_server import Heard, Memory, RawServer, reply, until
from support.tables import each_row
from volcache_client import AsyncClient, aio_http1
from volcache_client.aio_http1 import (
    Connection,
    Connections,
    ConnectTimeoutError,
)
from volcache_client.http1 import BadAnswerError, Exchanged, NotAnsweredError
from volcache_client.messages import Request
from volcache_client.nodes import parse_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

GET: Final = Request("GET", "/key", {"Accept-Encoding": "identity"})
HEAD: Final = Request("HEAD", "/key", {})
ADD: Final = Request("PUT", "/key", {"If-None-Match": "*"}, b"1", is_repeatable=False)
EMPTY: Final = OK + b"Content-Length: 0\r\n\r\n"
LONG: Final = 60.0
PART: Final = 1 << 16


class Wire(asyncio.Transport):
    """
    Stands for a transport: notes what is written.

    Attributes:
        sent: All of it.
        is_aborted: Whether the connection was closed.
        buffered: How much is reported as not sent yet.
        pauses_at: What `sent` may be before writing is paused, bytes.
    """

    def __init__(self, near: socket.socket) -> None:
        """Take a socket for what needs one."""
        super().__init__()
        near.setblocking(False)  # noqa: FBT003
        self.sent = b""
        self.is_aborted = False
        self.buffered = 0
        self.pauses_at = 1 << 30
        self.connection: Connection | None = None
        self._near = near

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket."""
        return self._near if name == "socket" else default

    def get_write_buffer_size(self) -> int:
        """Return what is not sent."""
        return self.buffered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note it."""
        self.sent += data
        if self.connection is not None and len(self.sent) > self.pauses_at:
            self.connection.pause_writing()

    def abort(self) -> None:
        """Note it."""
        self.is_aborted = True

    def is_closing(self) -> bool:
        """Whether it was aborted."""
        return self.is_aborted


def ignored(_: Connection) -> None:
    """Do nothing when a connection changes."""


@contextmanager
def wired() -> Iterator[tuple[Connection, Wire]]:
    """Return a connection, and the transport that it was given."""
    near, far = socket.socketpair()
    with near, far:
        wire = Wire(near)
        connection = Connection(asyncio.get_running_loop(), ignored)
        wire.connection = connection
        connection.connection_made(wire)
        yield connection, wire
        connection.close()


def ask(
    connection: Connection, request: Request = GET, seconds: float = LONG
) -> asyncio.Future[Exchanged]:
    """Send a request."""
    deadline = asyncio.get_running_loop().time() + seconds
    return connection.exchange(request, "h:1", deadline)


@asynccontextmanager
async def connected(name: str, **options: float) -> AsyncIterator[Connections]:
    """Return connections to a server, and close them."""
    made = Connections(
        parse_address(name), options.get("connect_timeout", LONG), None, bool
    )
    try:
        yield made
    finally:
        await made.close()
        assert made.count == 0


async def get(connections: Connections, request: Request = GET) -> bytes:
    """Return the value."""
    deadline = asyncio.get_running_loop().time() + LONG
    return (await connections.exchange(request, deadline)).body


async def turns(count: int = 20) -> None:
    """Let the loop deliver what was written."""
    for _ in range(count):
        await asyncio.sleep(0)


async def ok(_heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Answer 200."""
    writer.write(reply(b"value"))


# --- Requests -------------------------------------------------------------------------


@each_row("size", [0, 1, PART, PART + 1, 3_000_000])
def test_a_body_is_sent_with_its_length(size: int) -> None:
    """In one write with its head, or in parts."""

    async def run() -> None:
        with wired() as (connection, wire):
            body = bytes(range(256)) * (size // 256 + 1)
            ask(connection, Request("PUT", "/key", {"A": "b"}, body[:size]))
            head = f"PUT /key HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: {size}"
            assert wire.sent == head.encode() + b"\r\n\r\n" + body[:size]

    asyncio.run(run())


def test_a_large_body_waits_while_the_server_does_not_read() -> None:
    """What waits in the transport is bounded; the order is kept."""

    async def run() -> None:
        with wired() as (connection, wire):
            body = bytes(range(256)) * 4000
            answer = ask(connection, Request("PUT", "/key", {}, body))
            ask_sent = len(wire.sent)
            assert ask_sent > len(body)
            connection.data_received(EMPTY)
            await answer
            wire.sent = b""
            wire.pauses_at = 2 * PART
            answer = ask(connection, Request("PUT", "/key", {}, body))
            steps = 0
            while wire.sent.partition(b"\r\n\r\n")[2] != body:
                steps += 1
                assert len(wire.sent) <= wire.pauses_at + PART
                wire.pauses_at = len(wire.sent) + PART
                connection.resume_writing()
            assert steps > 5
            connection.data_received(EMPTY)
            assert (await answer).is_reusable

    asyncio.run(run())


@each_row("is_in_transport", [True, False])
def test_an_answer_before_the_body_was_sent_is_taken(*, is_in_transport: bool) -> None:
    """The rest of the body is not sent, and the connection is not used again."""

    async def run() -> None:
        with wired() as (connection, wire):
            if is_in_transport:
                wire.buffered = 1
            else:
                wire.pauses_at = 0
            answer = ask(connection, Request("PUT", "/key", {}, bytes(5_000_000)))
            connection.data_received(reply(b"no", "413 Too Large"))
            found = await answer
            assert (found.answer.status, found.answer.body) == (413, b"no")
            assert not found.is_reusable
            sent = len(wire.sent)
            connection.resume_writing()
            assert len(wire.sent) == sent

    asyncio.run(run())


def test_a_server_that_refuses_a_body_is_heard() -> None:
    """It reads the head only."""

    async def refuse(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"no", "413 Too Large"))
        with suppress(OSError):
            await writer.drain()
            await asked.wait()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
        name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, connected(name) as connections:
            put = Request("PUT", "/key", {}, bytes(30_000_000))
            deadline = asyncio.get_running_loop().time() + LONG
            answer = await connections.exchange(put, deadline)
            assert (answer.status, answer.body) == (413, b"no")
            assert connections.count == 0
            asked.set()

    asked = asyncio.Event()
    asyncio.run(run())


def test_an_answer_is_taken_from_a_server_that_closes_without_reading() -> None:
    """Writing fails before the answer is read; nothing is logged."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                far, _ = listener.accept()
                while (got := far.recv(1024)) and not got.endswith(bytes(1024)):
                    pass
                far.sendall(reply(b"no", "413 Too Large"))
                far.close()

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            Thread(target=serve, args=[listener], daemon=True).start()
            name = f"127.0.0.1:{listener.getsockname()[1]}"
            async with connected(name) as connections:
                put = Request("PUT", "/key", {}, bytes(5_000_000))
                for _ in range(20):
                    deadline = asyncio.get_running_loop().time() + LONG
                    answer = await connections.exchange(put, deadline)
                    assert (answer.status, answer.body) == (413, b"no")
                    assert connections.count == 0
            listener.shutdown(socket.SHUT_RDWR)

    asyncio.run(run())


@each_row("rest", [reply(b"no", "413 Too Large"), b"", b"HTTP/1.1 413"])
def test_what_is_left_in_the_socket_of_a_broken_connection_is_read(rest: bytes) -> None:
    """A whole answer is one; a part of it is not."""

    async def run() -> None:
        near, far = socket.socketpair()
        with near, far:
            connection = Connection(asyncio.get_running_loop(), ignored)
            connection.connection_made(Wire(near))
            answer = ask(connection, Request("PUT", "/key", {}, bytes(PART)))
            far.send(rest)
            connection.connection_lost(BrokenPipeError())
            if rest.endswith(b"no"):
                assert (await answer).answer.status == 413
            else:
                kind = BrokenPipeError if rest else NotAnsweredError
                with pytest.raises(kind):
                    await answer
            assert not connection.is_open

    asyncio.run(run())


# --- Answers --------------------------------------------------------------------------

ANSWERS: Final = {
    "length": (GET, OK + b"Content-Length: 5\r\n\r\nvalue", 200, b"value"),
    "chunks": (
        GET,
        OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"2;x\r\nva\r\n3\r\nlue\r\n0\r\nT: 1\r\n\r\n",
        200,
        b"value",
    ),
    "interim": (
        GET,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx",
        200,
        b"x",
    ),
    "to HEAD": (HEAD, OK + b"Content-Length: 1024\r\n\r\n", 200, b""),
    "204": (GET, b"HTTP/1.1 204 No\r\n\r\n", 204, b""),
    "304": (GET, b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", 304, b""),
}


@pytest.mark.parametrize(
    ("request_", "whole", "status", "body"), ANSWERS.values(), ids=ANSWERS
)
def test_an_answer_is_the_same_wherever_it_is_split(
    request_: Request, whole: bytes, status: int, body: bytes
) -> None:
    """At each byte, and at all of them; one connection has all the answers."""

    async def run() -> None:
        with wired() as (connection, wire):
            splits = [[whole[:at], whole[at:]] for at in range(1, len(whole))]
            splits += [[whole], [bytes([byte]) for byte in whole]]
            for pieces in splits:
                answer = ask(connection, request_)
                for piece in pieces:
                    assert not answer.done()
                    connection.data_received(piece)
                found = await answer
                assert (found.answer.status, found.answer.body) == (status, body)
                assert found.is_reusable
                assert connection.is_open
            assert not wire.is_aborted

    asyncio.run(run())


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    """A reset is not its end."""

    async def run() -> None:
        with wired() as (connection, wire):
            answer = ask(connection)
            connection.data_received(OK + b"\r\nval")
            connection.data_received(b"ue")
            assert not answer.done()
            connection.eof_received()
            found = await answer
            assert (found.answer.body, found.is_reusable) == (b"value", False)
            assert wire.is_aborted
        with wired() as (connection, _):
            answer = ask(connection)
            connection.data_received(OK + b"\r\nval")
            connection.connection_lost(ConnectionResetError("reset"))
            with pytest.raises(ConnectionResetError):
                await answer

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("whole", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_broken_answer_is_an_error_and_closes(whole: bytes, piece: int) -> None:
    """It is never a shorter value."""

    async def run() -> None:
        with wired() as (connection, wire):
            answer = ask(connection)
            for at in range(0, len(whole), piece):
                connection.data_received(whole[at : at + piece])
            connection.eof_received()
            with pytest.raises(BadAnswerError):
                await answer
            assert wire.is_aborted
            assert not connection.is_open

    asyncio.run(run())


@each_row("error", [None, ConnectionResetError(), BrokenPipeError()])
def test_a_connection_that_ends_before_the_answer_is_told_apart(
    error: OSError | None,
) -> None:
    """A repeatable request may be sent again."""

    async def run() -> None:
        with wired() as (connection, _):
            answer = ask(connection)
            if error is None:
                connection.eof_received()
            connection.connection_lost(error)
            with pytest.raises(NotAnsweredError):
                await answer
            assert connection.ended.done()

    asyncio.run(run())


@each_row("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b""])
def test_a_server_that_speaks_or_closes_first_is_not_waited_for(
    greeting: bytes,
) -> None:
    """It is no service of HTTP, or has too many connections."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, connected(name) as connections:
            for _ in range(20):
                with pytest.raises(ConnectionError):
                    await get(connections)
                assert connections.count == 0
        with wired() as (connection, wire):
            connection.data_received(greeting or b"x")
            with pytest.raises(NotAnsweredError):
                ask(connection)
            assert not wire.sent

    asyncio.run(run())


def test_bytes_after_an_answer_are_never_those_of_the_next_one() -> None:
    """With it, after it, and in the socket."""

    async def run() -> None:
        with wired() as (connection, _):
            answer = ask(connection)
            connection.data_received(EMPTY + b"H")
            assert not (await answer).is_reusable
        with wired() as (connection, wire):
            answer = ask(connection)
            connection.data_received(EMPTY)
            connection.data_received(EMPTY)
            assert (await answer).is_reusable
            assert (connection.is_open, wire.is_aborted) == (False, True)
        near, far = socket.socketpair()
        with near, far:
            connection = Connection(asyncio.get_running_loop(), ignored)
            connection.connection_made(Wire(near))
            assert connection.is_in_step()
            far.send(b"H")
            assert not connection.is_in_step()
            connection.close()

    asyncio.run(run())


# --- Time -----------------------------------------------------------------------------


def test_bytes_that_arrive_now_and_then_do_not_move_the_deadline() -> None:
    """Nor does a timer of the exchange before."""

    async def run() -> None:
        with wired() as (connection, wire):
            answer = ask(connection)
            connection.data_received(EMPTY)
            await answer
            answer = ask(connection, seconds=0.05)
            connection.data_received(OK + b"Content-Length: 1000000\r\n\r\n")
            for _ in range(900_000):
                if answer.done():
                    break
                connection.data_received(b"x")
                await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                await answer
            assert wire.is_aborted

    asyncio.run(run())


def test_the_deadline_of_the_exchange_before_does_not_end_the_next_one() -> None:
    """One timer serves both."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with wired() as (connection, _):
            answer = ask(connection, seconds=0.05)
            connection.data_received(EMPTY)
            await answer
            passed = loop.create_future()
            answer = ask(connection)
            loop.call_later(0.1, passed.set_result, None)
            await passed
            assert not answer.done()
            connection.data_received(EMPTY)
            assert (await answer).is_reusable

    asyncio.run(run())


def test_a_connection_that_is_not_used_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while; it is not counted any longer."""
    monkeypatch.setattr(aio_http1, "KEPT_SECONDS", 0.01)

    async def run() -> None:
        async with RawServer(ok) as server, connected(server.name) as connections:
            await get(connections)
            await until(lambda: not connections.count, "the connection to be closed")
            await until(lambda: not server.open, "the server to see it")
            assert await get(connections) == b"value"
            assert server.connections == 2

    asyncio.run(run())


# --- Connections ----------------------------------------------------------------------


def test_the_connection_used_last_is_used_first() -> None:
    """So that the others become idle."""

    async def run() -> None:
        async with RawServer(ok) as server, connected(server.name) as connections:
            await asyncio.gather(*(get(connections) for _ in range(3)))
            assert connections.count == 3
            await get(connections)
            used = server.heard[-1].connection
            for _ in range(5):
                await get(connections)
                assert server.heard[-1].connection == used
            assert connections.count == 3
            connections.close_idle()
            assert connections.count == 2

    asyncio.run(run())


def test_idle_connections_that_the_server_closes_are_dropped() -> None:
    """Also for a request that is not repeatable."""

    async def run() -> None:
        async with RawServer(ok) as server, connected(server.name) as connections:
            await asyncio.gather(*(get(connections) for _ in range(3)))
            server.drop()
            await until(lambda: not connections.count, "the connections to be dropped")
            assert await get(connections, ADD) == b"value"
            assert server.connections == 4

    asyncio.run(run())


@each_row(("request_", "requests"), [(GET, 3), (ADD, 2)])
def test_a_request_is_sent_twice_only_if_it_is_repeatable(
    request_: Request, requests: int
) -> None:
    """And on a new connection never more than once."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if len(server.heard) == 1:
            await ok(heard, writer)
        else:
            writer.close()

    server = RawServer(script)

    async def run() -> None:
        async with server, connected(server.name) as connections:
            await get(connections)
            with pytest.raises(NotAnsweredError):
                await get(connections, request_)
            assert len(server.heard) == requests
            assert connections.count == 0

    asyncio.run(run())


def test_an_exchange_that_is_cancelled_at_any_moment_leaves_no_connection() -> None:
    """A new one and one that was kept; what follows has the right answer."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(heard.path.encode()))

    async def run() -> None:
        async with RawServer(script) as server, connected(server.name) as connections:
            for count in range(40):
                if count % 2:
                    connections.close_idle()
                task = asyncio.create_task(get(connections))
                await turns(count // 2)
                is_cancelled = task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled() == is_cancelled
                assert connections.count <= 1
                path = f"/{count}"
                found = await get(connections, Request("GET", path, {}))
                assert found == path.encode()
                assert connections.count == 1
            await until(lambda: server.open == 1, "the others to be closed")

    asyncio.run(run())


def test_close_ends_what_is_opening() -> None:
    """It is not waited for."""

    async def run() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            port = listener.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:  # They fill the queue of the listener.
                one.setblocking(False)  # noqa: FBT003
                one.connect_ex(("127.0.0.1", port))
            async with connected(f"127.0.0.1:{port}") as connections:
                task = asyncio.create_task(get(connections))
                await turns()
                assert not task.done()
                await connections.close()
                with pytest.raises(ConnectTimeoutError):
                    await task
            for one in waiting:
                one.close()

    asyncio.run(run())


def test_close_ends_what_is_in_work() -> None:
    """When it returns, no transport is open."""

    async def silent(_heard: Heard, _writer: asyncio.StreamWriter) -> None:
        """Answer nothing."""

    async def run() -> None:
        async with RawServer(silent) as server, connected(server.name) as connections:
            tasks = [asyncio.create_task(get(connections)) for _ in range(3)]
            await until(lambda: len(server.heard) == 3, "the requests")
            await connections.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {ConnectionAbortedError}
            await until(lambda: not server.open, "the server to see it")

    asyncio.run(run())


def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    """The system refuses such a connection at once."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(b"value"))
            await writer.drain()
        writer.close()

    async def run() -> None:
        path = str(tmp_path / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(0)
        waiting = []
        with suppress(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)  # noqa: FBT003
                waiting[-1].connect(path)
        async with connected(f"unix:{path}") as connections:
            task = asyncio.create_task(get(connections))
            await turns()
            assert not task.done()
            async with await asyncio.start_unix_server(answer, sock=listener):
                assert await task == b"value"
                for one in waiting:
                    one.close()

    asyncio.run(run())


# --- With the slots of a node ---------------------------------------------------------


def client_of(server: RawServer, **options: Any) -> AsyncClient[bytes]:
    """Return a client with limits that are longer than a loaded machine needs."""
    return AsyncClient(
        server.name, **{"timeout": LONG, "connect_timeout": LONG, **options}
    )


def test_tasks_have_the_connection_in_the_order_in_which_they_asked() -> None:
    """One that was cancelled while it waited is passed over."""

    async def run() -> None:
        gate = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            await gate.wait()
            await ok(heard, writer)

        async with (
            RawServer(script) as server,
            client_of(server, connections_max=1) as client,
        ):
            tasks = [asyncio.create_task(client.get(f"{n}")) for n in range(8)]
            await until(lambda: server.heard, "a request")
            tasks[3].cancel()
            tasks[4].cancel()
            gate.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            order = [int(heard.path[1:]) for heard in server.heard]
            assert order == [0, 1, 2, 5, 6, 7]
            assert server.connections == 1

    asyncio.run(run())


def test_values_and_streams_share_the_bound_of_connections() -> None:
    """An idle connection of one kind makes room for one of the other."""

    async def run() -> None:
        async with (
            RawServer(Memory()) as server,
            client_of(server, connections_max=2) as client,
        ):

            async def stream() -> None:
                async with client.stream("a") as streamed:
                    assert streamed is not None
                    assert await streamed.read() == b"value"

            def count() -> int:
                return client.metrics().nodes[server.name].connections

            await client.put("a", b"value")
            for _ in range(3):
                await asyncio.gather(client.get("a"), client.get("a"))
                assert count() == 2
                await asyncio.gather(stream(), stream())
                assert count() == 2
                await asyncio.gather(client.get("a"), stream())
                assert count() == 2
            await until(lambda: server.open == 2, "the others to be closed")

    asyncio.run(run())
