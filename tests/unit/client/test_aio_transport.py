"""Connections of tasks: bodies, time, bytes that were not asked for, and the pool."""

from __future__ import annotations

import asyncio
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from support.answers import OK
from support.raw_server import Heard, RawServer, client_of, ok, reply, until
from volcache_client import ClientUsageError, aio_connections
from volcache_client.aio_connections import AsyncConnection
from volcache_client.http1 import BadAnswerError, HttpExchange
from volcache_client.messages import Request
from volcache_client.uploads import Upload

EMPTY: Final = OK + b"Content-Length: 0\r\n\r\n"
LONG: Final = 60.0
PART: Final = 1 << 18


class Wire(asyncio.Transport):
    """
    Stands for a transport: notes what is written.

    Attributes:
        sent: All of it.
        is_aborted: Whether the connection was closed.
        buffered: How much is reported as not sent yet.
        pauses_at: What `sent` may be before writing is paused, bytes.
    """

    def __init__(self, near: socket.socket, connection: AsyncConnection) -> None:
        """Take a socket for what needs one."""
        super().__init__()
        near.setblocking(False)  # noqa: FBT003
        self.sent = b""
        self.is_aborted = False
        self.buffered = 0
        self.pauses_at = 1 << 30
        self._connection = connection
        self._near = near
        self._reads = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket."""
        return self._near if name == "socket" else default

    def get_write_buffer_size(self) -> int:
        """Return what is not sent."""
        return self.buffered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note it."""
        self.sent += data
        if len(self.sent) > self.pauses_at:
            self._connection.pause_writing()

    def pause_reading(self) -> None:
        """Note it."""
        self._reads = False

    def resume_reading(self) -> None:
        """Note it."""
        self._reads = True

    def is_reading(self) -> bool:
        """Whether it may give what it receives."""
        return self._reads

    def abort(self) -> None:
        """Note it."""
        self.is_aborted = True


@contextmanager
def wired() -> Iterator[tuple[AsyncConnection, Wire, socket.socket]]:
    """Return a connection, its transport, and the other end of its socket."""
    near, far = socket.socketpair()
    with near, far:
        buffer = memoryview(bytearray(PART))
        connection = AsyncConnection(asyncio.get_running_loop(), buffer)
        wire = Wire(near, connection)
        connection.connection_made(wire)
        yield connection, wire, far
        connection.close()


async def ask(
    connection: AsyncConnection,
    body: bytes | Upload | None = None,
    first: float = LONG,
) -> HttpExchange:
    """Send a request, in some seconds for its head, and receive its answer."""
    loop = asyncio.get_running_loop()
    limits = iter([first])
    method = "GET" if body is None else "PUT"
    exchange = HttpExchange(Request(method, "/key", {}, body), "h:1")
    await connection.send(exchange, lambda: loop.time() + next(limits, LONG))
    await connection.receive(1 << 40)
    return exchange


async def begin(*arguments: Any, **named: Any) -> asyncio.Task[HttpExchange]:
    """Return a task that has asked, and waits."""
    task = asyncio.create_task(ask(*arguments, **named))
    await asyncio.sleep(0)
    return task


# --- Requests -------------------------------------------------------------------------


async def test_a_large_body_waits_while_the_server_does_not_read() -> None:
    """What waits in the transport is bounded; the order is kept."""
    with wired() as (connection, wire, _):
        body = bytes(range(256)) * 8000
        wire.pauses_at = 0
        task = await begin(connection, body)
        steps = 0
        while wire.sent.partition(b"\r\n\r\n")[2] != body:
            steps += 1
            assert len(wire.sent) <= wire.pauses_at + PART + 100
            wire.pauses_at = len(wire.sent)
            connection.resume_writing()
            await asyncio.sleep(0)
        assert steps > 5
        connection.resume_writing()
        await asyncio.sleep(0)
        connection.data_received(EMPTY)
        assert (await task).is_reusable


@pytest.mark.parametrize("is_in_transport", [True, False])
async def test_an_answer_before_the_end_of_the_body_is_taken(
    *, is_in_transport: bool
) -> None:
    """The rest of the body is not sent, and the connection is not used again."""
    with wired() as (connection, wire, _):
        if is_in_transport:
            wire.buffered = 1
        else:
            wire.pauses_at = 0
        task = await begin(connection, bytes(5_000_000))
        connection.data_received(reply(b"no", "413 Too Large"))
        found = await task
        assert (found.status, found.read()) == (413, b"no")
        assert not connection.is_reusable
        sent = len(wire.sent)
        connection.resume_writing()
        assert len(wire.sent) == sent


@pytest.mark.parametrize("rest", [reply(b"no", "413 Too Large"), b"", b"HTTP/1.1 413"])
async def test_what_is_left_in_the_socket_that_broke_is_read(rest: bytes) -> None:
    """A whole answer is one; a part of it is not."""
    with wired() as (connection, _, far):
        task = await begin(connection, bytes(PART))
        far.send(rest)
        connection.connection_lost(BrokenPipeError())
        if rest.endswith(b"no"):
            assert (await task).status == 413
        else:
            with pytest.raises(BrokenPipeError):
                await task
        assert not connection.is_open


async def test_the_time_does_not_run_while_a_file_is_read() -> None:
    """A slow disk is no failure of the node, and does not stop the loop."""
    loop = asyncio.get_running_loop()
    may_end = threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            may_end.wait(LONG)
            return super().read(size)

    with wired() as (connection, wire, _):
        task = await begin(connection, Upload(Slow(b"value")), first=0.05)
        passed = loop.create_future()
        loop.call_later(0.2, passed.set_result, None)
        await passed
        may_end.set()
        await until(lambda: wire.sent.endswith(b"value"), "the file")
        assert connection.is_open
        connection.data_received(EMPTY)
        assert (await task).is_reusable


# --- Answers --------------------------------------------------------------------------


async def test_bytes_after_an_answer_are_never_those_of_the_next_one() -> None:
    """Whether they were received, or are in the socket."""
    with wired() as (connection, wire, far):
        assert connection.is_in_step()
        far.send(b"H")
        assert not connection.is_in_step()
        task = await begin(connection)
        connection.data_received(EMPTY)
        await task
        assert connection.is_reusable
        connection.keep()
        connection.data_received(EMPTY)
        assert (connection.is_open, wire.is_aborted) == (False, True)


async def test_a_body_that_is_read_in_parts_is_not_received_ahead() -> None:
    """The server waits until more is asked for."""
    with wired() as (connection, wire, _):
        loop = asyncio.get_running_loop()
        exchange = HttpExchange(Request("GET", "/key", {}), "h:1")
        await connection.send(exchange, lambda: loop.time() + LONG)
        connection.data_received(OK + b"Content-Length: 1000000\r\n\r\n")
        await connection.receive(0)
        given = 0
        while wire.is_reading():
            connection.data_received(bytes(10_000))
            given += 10_000
        assert exchange.buffered == given < 200_000
        await connection.receive(given)
        assert not wire.is_reading()
        task = asyncio.create_task(connection.receive(given + 1))
        await asyncio.sleep(0)
        assert wire.is_reading()
        connection.data_received(b"x")
        await task
        connection.eof_received()
        with pytest.raises(BadAnswerError, match="disconnected within the answer"):
            await connection.receive(given + 2)


# --- Time -----------------------------------------------------------------------------


async def test_the_deadline_of_the_exchange_before_does_not_end_the_next_one() -> None:
    """One timer serves both."""
    loop = asyncio.get_running_loop()
    with wired() as (connection, _, _far):
        task = await begin(connection, first=0.05)
        connection.data_received(EMPTY)
        await task
        passed = loop.create_future()
        task = await begin(connection)
        loop.call_later(0.1, passed.set_result, None)
        await passed
        assert not task.done()
        connection.data_received(EMPTY)
        assert (await task).is_reusable


async def test_a_connection_that_is_not_used_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while; it is not counted any longer."""
    monkeypatch.setattr(aio_connections, "KEPT_SECONDS", 0.01)

    async with RawServer(ok) as server, client_of(server) as client:
        await client.get("a")
        await until(
            lambda: not client.stats().nodes[server.name].connections,
            "the connection to be closed",
        )
        await until(lambda: not server.open, "the server to see it")
        assert await client.get("a") == b"value"
        assert server.connections == 2


# --- The pool -------------------------------------------------------------------------


async def test_the_connection_used_last_is_used_first() -> None:
    """So that the others become idle."""
    async with RawServer(ok) as server, client_of(server) as client:
        await asyncio.gather(*(client.get("a") for _ in range(3)))
        assert client.stats().nodes[server.name].connections == 3
        await client.get("a")
        used = server.heard[-1].connection
        for _ in range(5):
            await client.get("a")
            assert server.heard[-1].connection == used


async def test_close_ends_what_is_opening() -> None:
    """It is not waited for."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:  # They fill the queue of the listener.
            one.setblocking(False)  # noqa: FBT003
            one.connect_ex(("127.0.0.1", port))
        client = client_of(f"127.0.0.1:{port}")
        task = asyncio.create_task(client.get("a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        await client.close()
        with pytest.raises(ClientUsageError):
            await task
        for one in waiting:
            one.close()


async def test_tasks_have_the_connection_in_the_order_in_which_they_asked() -> None:
    """One that was cancelled while it waited is passed over."""
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


async def test_names_that_take_long_leave_the_threads_of_the_loop_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are resolved in others."""
    may_end = threading.Event()
    resolve = socket.getaddrinfo

    def resolve_slowly(host: str, *arguments: Any, **named: Any) -> Any:
        if host.endswith(".test"):
            may_end.wait(LONG)
            host = "127.0.0.1"
        return resolve(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_slowly)
    async with RawServer(ok) as server:
        names = [f"n{number}.test:{server.port}" for number in range(64)]
        clients = [client_of(name) for name in names]
        reads = [asyncio.create_task(client.get("a")) for client in clients]
        await asyncio.sleep(0)
        try:
            await asyncio.get_running_loop().run_in_executor(None, int)
            assert not any(task.done() for task in reads)
        finally:
            may_end.set()
        assert set(await asyncio.gather(*reads)) == {b"value"}
        for client in clients:
            await client.close()
