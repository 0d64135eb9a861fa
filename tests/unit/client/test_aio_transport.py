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

from support.client_users import client_of, numbers_of, serving, until
from support.scripted_server import (
    OK,
    Peer,
    ScriptedServer,
    answering,
    full_listener,
    value,
)
from volcache_client import ClientUsageError, aio_transport
from volcache_client.aio_transport import AsyncConnection
from volcache_client.http1 import BadAnswerError, Host, HttpExchange
from volcache_client.messages import Request
from volcache_client.uploads import Upload

EMPTY: Final = OK + b"Content-Length: 0\r\n\r\n"
LONG: Final = 60.0
PART: Final = 1 << 18
REFUSAL: Final = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
VALUE: Final = value(b"value")


class Wire(asyncio.Transport):
    """
    Stands for a transport: notes what is written.

    Attributes:
        sent: All of it.
        is_aborted: Whether the connection was closed.
        buffered: How much is reported as not sent yet.
    """

    def __init__(self, near: socket.socket) -> None:
        """Take a socket for what needs one."""
        super().__init__()
        near.setblocking(False)  # noqa: FBT003
        self.sent = b""
        self.is_aborted = False
        self.buffered = 0
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
        wire = Wire(near)
        connection.connection_made(wire)
        yield connection, wire, far
        connection.close()


async def ask(
    connection: AsyncConnection,
    body: bytes | Upload | None = None,
    first: float = LONG,
) -> HttpExchange:
    """Send a request, in some seconds for its head, and receive its answer."""
    until = asyncio.get_running_loop().time() + first
    method = "GET" if body is None else "PUT"
    exchange = HttpExchange(Host("h:1"), [Request(method, "/key", {}, body)])
    connection.start(exchange, until, LONG)
    if body is not None:
        await connection.send_rest(exchange)
    await connection.receive(1 << 40)
    return exchange


async def begin(*arguments: Any, **named: Any) -> asyncio.Task[HttpExchange]:
    """Return a task that has asked, and waits."""
    task = asyncio.create_task(ask(*arguments, **named))
    await asyncio.sleep(0)
    return task


# --- Requests -------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [REFUSAL, b"", b"HTTP/1.1 413"])
async def test_send_that_breaks_reads_the_answer_left_in_the_socket(
    rest: bytes,
) -> None:
    """A whole answer is one; a part of it is not."""
    with wired() as (connection, _, far):
        task = await begin(connection, bytes(PART))
        far.send(rest)
        connection.connection_lost(BrokenPipeError())
        if rest.endswith(b"no"):
            assert (await task).answer().status == 413
        else:
            with pytest.raises(BrokenPipeError):
                await task
        assert not connection.is_open


async def test_send_of_a_slow_file_has_no_deadline_while_it_is_read() -> None:
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


async def test_connection_with_bytes_after_an_answer_is_not_used_again() -> None:
    """Whether they were received, or are in the socket."""
    with wired() as (connection, wire, far):
        assert connection.is_in_step()
        far.send(b"H")
        assert not connection.is_in_step()
        task = await begin(connection)
        connection.data_received(EMPTY)
        await task
        was_reusable = connection.is_reusable
        wire.buffered = 1  # Of the request: the server has not read it.
        assert (was_reusable, connection.is_reusable) == (True, False)
        connection.keep()
        connection.data_received(EMPTY)
        assert (connection.is_open, wire.is_aborted) == (False, True)


async def test_receive_of_a_body_in_parts_does_not_receive_ahead() -> None:
    """The server waits until more is asked for."""
    with wired() as (connection, wire, _):
        loop = asyncio.get_running_loop()
        exchange = HttpExchange(
            Host("h:1"), [Request("GET", "/key", {})], is_whole=False
        )
        connection.start(exchange, loop.time() + LONG, LONG)
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


async def test_exchange_after_a_short_deadline_has_its_own() -> None:
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


async def test_connection_that_is_not_used_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while; it is not counted any longer."""
    monkeypatch.setattr(aio_transport, "KEPT_SECONDS", 0.01)

    async with serving(VALUE) as (server, client):
        await client.get("a")
        await until(
            lambda: not numbers_of(client)["connections"],
            "the connection to be closed",
        )
        await until(lambda: not server.open, "the server to see it")
        assert await client.get("a") == b"value"
        assert server.connections == 2


# --- The pool -------------------------------------------------------------------------


async def test_pool_uses_the_connection_used_last_first() -> None:
    """So that the others become idle."""
    used: list[int] = []

    def serve(peer: Peer) -> None:
        while peer.request():
            used.append(peer.number)
            peer.send(VALUE)

    async with serving(serve) as (_, client):
        await asyncio.gather(*(client.get("a") for _ in range(3)))
        assert numbers_of(client)["connections"] == 3
        for _ in range(6):
            await client.get("a")
        assert len(set(used[3:])) == 1


async def test_close_while_a_connection_is_opened_ends_it() -> None:
    """It is not waited for."""
    with full_listener() as port:
        client = client_of(f"127.0.0.1:{port}")
        task = asyncio.create_task(client.get("a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        await client.close()
        with pytest.raises(ClientUsageError):
            await task


async def test_pool_gives_a_connection_to_tasks_in_their_order() -> None:
    """One that was cancelled while it waited is passed over."""
    gate = threading.Event()

    def answer(_: bytes) -> bytes:
        gate.wait(LONG)
        return VALUE

    async with serving(answering(answer), connections_max=1) as (server, client):
        tasks = [asyncio.create_task(client.get(f"{n}")) for n in range(8)]
        await until(lambda: server.requests, "a request")
        tasks[3].cancel()
        tasks[4].cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        paths = [request.split(b" ")[1] for request in server.requests]
        assert paths == [b"/%d" % n for n in (0, 1, 2, 5, 6, 7)]
        assert server.connections == 1


async def test_names_that_resolve_slowly_leave_the_threads_of_the_loop_alone(
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
    with ScriptedServer(VALUE) as server:
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
