"""Exchanges of whole values by a protocol of asyncio, and the connections they use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from support.answers import OK
from support.raw_server import Heard, Memory, RawServer, client_of, ok, reply, until
from volcache_client import aio_http1
from volcache_client.aio_http1 import (
    Connections,
    ConnectTimeoutError,
    Exchanged,
    HttpConnection,
    NotAnsweredError,
)
from volcache_client.messages import Request
from volcache_client.nodes import parse_address

GET: Final = Request("GET", "/key", {"Accept-Encoding": "identity"})
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
        self.connection: HttpConnection | None = None
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


def ignored(_: HttpConnection) -> None:
    """Do nothing when a connection changes."""


@contextmanager
def wired() -> Iterator[tuple[HttpConnection, Wire]]:
    """Return a connection, and the transport that it was given."""
    near, far = socket.socketpair()
    with near, far:
        wire = Wire(near)
        connection = HttpConnection(asyncio.get_running_loop(), ignored)
        wire.connection = connection
        connection.connection_made(wire)
        yield connection, wire
        connection.close()


def ask(
    connection: HttpConnection, request: Request = GET, seconds: float = LONG
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


# --- Requests -------------------------------------------------------------------------


async def test_a_large_body_waits_while_the_server_does_not_read() -> None:
    """What waits in the transport is bounded; the order is kept."""
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


@pytest.mark.parametrize("is_in_transport", [True, False])
async def test_an_answer_before_the_end_of_the_body_is_taken(
    *, is_in_transport: bool
) -> None:
    """The rest of the body is not sent, and the connection is not used again."""
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


@pytest.mark.parametrize("rest", [reply(b"no", "413 Too Large"), b"", b"HTTP/1.1 413"])
async def test_what_is_left_in_the_socket_that_broke_is_read(rest: bytes) -> None:
    """A whole answer is one; a part of it is not."""
    near, far = socket.socketpair()
    with near, far:
        connection = HttpConnection(asyncio.get_running_loop(), ignored)
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


# --- Answers --------------------------------------------------------------------------


async def test_bytes_after_an_answer_are_never_those_of_the_next_one() -> None:
    """With it, after it, and in the socket."""
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
        with pytest.raises(NotAnsweredError):
            ask(connection)
    near, far = socket.socketpair()
    with near, far:
        connection = HttpConnection(asyncio.get_running_loop(), ignored)
        connection.connection_made(Wire(near))
        assert connection.is_in_step()
        far.send(b"H")
        assert not connection.is_in_step()
        connection.close()


# --- Time -----------------------------------------------------------------------------


async def test_the_deadline_of_the_exchange_before_does_not_end_the_next_one() -> None:
    """One timer serves both."""
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


async def test_a_connection_that_is_not_used_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while; it is not counted any longer."""
    monkeypatch.setattr(aio_http1, "KEPT_SECONDS", 0.01)

    async with RawServer(ok) as server, connected(server.name) as connections:
        await get(connections)
        await until(lambda: not connections.count, "the connection to be closed")
        await until(lambda: not server.open, "the server to see it")
        assert await get(connections) == b"value"
        assert server.connections == 2


# --- Connections ----------------------------------------------------------------------


async def test_the_connection_used_last_is_used_first() -> None:
    """So that the others become idle."""
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
        async with connected(f"127.0.0.1:{port}") as connections:
            task = asyncio.create_task(get(connections))
            await turns()
            assert not task.done()
            await connections.close()
            with pytest.raises(ConnectTimeoutError):
                await task
        for one in waiting:
            one.close()


async def test_a_unix_socket_whose_queue_is_full_is_waited_for(tmp_path: Path) -> None:
    """The system refuses such a connection at once."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply(b"value"))
            await writer.drain()
        writer.close()

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


# --- With the slots of a node ---------------------------------------------------------


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


async def test_values_and_streams_share_the_bound_of_connections() -> None:
    """An idle connection of one kind makes room for one of the other."""
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
