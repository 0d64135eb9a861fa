"""
Connections of the client for asyncio: a protocol with deadlines, pools, what uses them.

A small exchange has one future, no task, and no timer of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from volcache_client.errors import ClientUsageError
from volcache_client.exchanges import (
    CLOSED,
    RETRY_SECONDS,
    UNCHECKED_SECONDS,
    HttpPool,
    HttpTransport,
    readable,
    run,
)
from volcache_client.http1 import RECEIVE_BYTES, BadAnswerError
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from volcache_client.http1 import HttpExchange
    from volcache_client.messages import Operation
    from volcache_client.nodes import Address
    from volcache_client.options import Options

# Seconds for which a connection that is not used is kept: half as long as the service and
# nginx keep it, so that they do not close it while a request is on its way.
KEPT_SECONDS: Final = 30.0

_NEVER: Final = float("inf")
_LOOKUPS_MAX: Final = 4  # Names that are resolved at the same time, for all clients.
# Of a body that is read in parts: what is received before it is asked for.
_AHEAD_BYTES: Final = 1 << 17
# Blocks of a file that are read at a time, 1 MiB: a thread costs more than a block.
_BLOCKS: Final = 16
_BUFFER_BYTES: Final = 1 << 18


class AsyncConnection(asyncio.BufferedProtocol):
    """
    A connection to a node, for one exchange at a time; see `HttpConnection`.

    After a cancellation it must be closed.

    Attributes:
        is_open: Whether a request may be sent.
        ended: Done when the transport has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, buffer: memoryview) -> None:
        """
        Wait for `connection_made`.

        Args:
            loop: That of the caller.
            buffer: What is received; for all connections of the loop. asyncio would map
                and unmap 256 KiB for each small answer.
        """
        self.until = 0.0
        self.is_by_part = False
        self.is_open = False
        self.ended: Final[asyncio.Future[None]] = loop.create_future()
        self._loop: Final = loop
        self._buffer: Final = buffer
        self._transport: asyncio.Transport
        self._seconds = 0.0
        self._exchange: HttpExchange | None = None
        self._error: Exception | None = None  # Why it was closed.
        self._wanted = 0
        # Who waits looks again when anything has changed.
        self._waiter: asyncio.Future[None] | None = None
        self._is_writing_paused = False
        # When it ends. A timer that is too early is set again when it fires: most exchanges
        # set none.
        self._ends_at = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    # --- What the caller does -----------------------------------------------------

    def start(self, exchange: HttpExchange, until: float, seconds: float) -> None:
        """Send the first part; see `HttpConnection`."""
        self._exchange = exchange
        self.until, self._seconds, self.is_by_part = until, seconds, False
        self._transport.write(exchange.first_part())
        exchange.is_sent = True

    async def send_rest(self, exchange: HttpExchange) -> None:
        """Send the rest; see `HttpConnection`."""
        exchange.is_sent = False
        parts = exchange.more_parts()
        is_last = False
        while not is_last:
            found = await self._next_parts(exchange, parts)
            is_last = len(found) < _BLOCKS
            for part in found:
                if exchange.is_by_part:
                    self.until = self._loop.time() + self._seconds
                self._end_at(self.until)
                self._transport.write(part)
                while self._is_writing_paused and not self._is_answered(exchange):
                    await self._change()
                if self._is_answered(exchange):
                    return
        exchange.is_sent = not self._is_answered(exchange)
        if exchange.is_by_part:
            self.until = self._loop.time() + self._seconds

    async def receive(self, wanted: int) -> None:
        """Receive a part of the answer; see `HttpConnection`."""
        exchange = self._exchange
        assert exchange is not None  # noqa: S101 - After `send`.
        self._wanted = wanted
        while not exchange.has(wanted):
            if self._error is not None:
                raise self._error
            self._end_at(self.until)
            if not self._transport.is_reading():
                self._transport.resume_reading()
            await self._change()
        self._ends_at = _NEVER

    def keep(self) -> None:
        """Close it after a while, unless it is used again."""
        self._exchange = None
        self.until = self._loop.time()  # When it was used last.
        self._end_at(self.until + KEPT_SECONDS)

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent after this exchange."""
        exchange = self._exchange
        is_done = exchange is not None and exchange.is_reusable and self.is_open
        # A server may answer before it has read a body.
        return is_done and not self._transport.get_write_buffer_size()

    def is_in_step(self, *, is_checked: bool = True) -> bool:
        """See `HttpConnection`."""
        if not is_checked and self._loop.time() - self.until < UNCHECKED_SECONDS:
            return self.is_open
        raw = self._transport.get_extra_info("socket")
        return self.is_open and not readable(raw)(0)

    def close(self, error: Exception | None = None) -> None:
        """Close it at once; who waits gets the error."""
        self._error = self._error or error or ConnectionAbortedError("closed")
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()
        self._transport.abort()

    # --- Waiting ------------------------------------------------------------------

    def _is_answered(self, exchange: HttpExchange) -> bool:
        """Whether the rest of a request need not be sent."""
        return exchange.has(0) or self._error is not None

    async def _next_parts(
        self, exchange: HttpExchange, parts: Iterator[bytes | memoryview]
    ) -> list[bytes | memoryview]:
        """Return parts of a request; those of a file are read in a thread."""
        body = exchange.request.body
        if not isinstance(body, Upload):
            return list(parts)
        self._ends_at = _NEVER  # A slow disk is no failure of the node.
        reading = self._loop.run_in_executor(None, lambda: list(islice(parts, _BLOCKS)))
        try:
            while not reading.done() and not self._is_answered(exchange):
                either: list[asyncio.Future[Any]] = [reading, self._change()]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                reading.add_done_callback(lambda read: read.exception())
                if body.is_repeatable:  # Soon: it is no pipe. The file is closed next.
                    await asyncio.wait([reading])
        return reading.result() if reading.done() else []

    def _change(self) -> asyncio.Future[None]:
        """Return what is done when something has changed."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_at(self, when: float) -> None:
        self._ends_at = when
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._ends_at <= self._loop.time():
            self.close(TimeoutError())
        elif self._ends_at < _NEVER:
            self._end_at(self._ends_at)

    # --- What the transport calls -------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where to write what is received."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer; what was not asked for ends the connection."""
        exchange = self._exchange
        if exchange is None or exchange.is_complete:
            self.close()
            return
        count = len(exchange.answers)
        try:
            exchange.receive(data)
        except BadAnswerError as error:
            self.close(error)
            return
        if exchange.has(self._wanted):
            self._wake()
            if exchange.buffered >= _AHEAD_BYTES and not exchange.is_complete:
                self._transport.pause_reading()
        elif self.is_by_part or count != len(exchange.answers):
            self.until = self._ends_at = self._loop.time() + self._seconds

    def eof_received(self) -> None:
        """Take the end of an answer, or of the connection."""
        self.data_received(b"")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange in work, if the answer is not complete."""
        if isinstance(exc, ConnectionError):
            self._receive_rest()
        self.close(exc)
        self.ended.set_result(None)

    def pause_writing(self) -> None:
        """Wait with further parts of a body."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """Write further parts of a body."""
        self._is_writing_paused = False
        self._wake()

    def _receive_rest(self) -> None:
        """
        Read what the transport has left in its socket when a write failed.

        A server may answer before it has read a body, and close.
        """
        if self._transport.get_extra_info("ssl_object") is not None:
            return
        file = self._transport.get_extra_info("socket").fileno()
        while self._exchange is not None and self._error is None:
            try:
                data = os.read(file, RECEIVE_BYTES)
            except OSError:  # There is no more.
                return
            self.data_received(data)


@cache
def _lookups() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="volcache_client-names")


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_lookups.cache_clear)


class AsyncPool(HttpPool[AsyncConnection]):
    """
    Connections to one node; used by the tasks of one loop; see `HttpPool`.

    Tasks have what becomes free in the order in which they asked.

    Attributes:
        is_closed: Whether `close` was called.
    """

    def __init__(self, address: Address, options: Options) -> None:
        """Open nothing yet; called within the loop."""
        super().__init__(address, options)
        self.is_closed = False
        self._loop: Final = asyncio.get_running_loop()
        self.clock = self._loop.time  # type: ignore[method-assign]
        self._buffer: Final = memoryview(bytearray(_BUFFER_BYTES))
        self._waiting: Final[deque[asyncio.Future[AsyncConnection | None]]] = deque()
        self._opening: Final[set[asyncio.Timeout]] = set()
        # Until their transports have ended.
        self._all: Final[set[AsyncConnection]] = set()

    async def wait(self, until: float) -> AsyncConnection | None:
        """Wait for a connection; see `HttpPool`."""
        turn: asyncio.Future[AsyncConnection | None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(until):
                connection = await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give(turn.result())  # It became free at the same moment.
            if isinstance(error, TimeoutError):
                raise self._is_full() from None
            raise
        return connection if connection and connection.is_open else None

    async def _open(self, until: float) -> AsyncConnection:
        if self.is_closed:
            raise ClientUsageError(CLOSED)
        limit = asyncio.timeout_at(until)
        self._opening.add(limit)
        try:
            async with limit:
                made = await super()._open(until)
        except OSError:
            if self.is_closed:
                raise ClientUsageError(CLOSED) from None
            raise
        finally:
            self._opening.discard(limit)
        self._all.add(made)
        made.ended.add_done_callback(lambda _: self._ended(made))
        return made

    async def _resolve(self) -> list[tuple[int, Any]]:
        """
        Look a name up in a thread.

        Names that take long do not delay what the application does in the threads of its
        loop.
        """
        host, resolve = self._address.host, super()._resolve
        if ":" in host or host.replace(".", "").isdigit() or self._address.socket_path:
            return await resolve()
        look_up = self._loop.run_in_executor
        return await look_up(_lookups(), lambda: run(resolve()))

    async def _connect(
        self,
        raw: socket.socket,
        target: Any,  # noqa: ANN401 - Depends on the family.
        seconds: float,
    ) -> AsyncConnection:
        raw.setblocking(False)  # noqa: FBT003
        async with asyncio.timeout(seconds):
            while self._address.socket_path:
                try:
                    raw.connect(target)
                    break
                except BlockingIOError:  # The queue of the server is full.
                    await asyncio.sleep(RETRY_SECONDS)
            else:
                await self._loop.sock_connect(raw, target)
            host = None if self._context is None else self._address.host
            _, made = await self._loop.create_connection(
                self._make, sock=raw, ssl=self._context, server_hostname=host
            )
        return made

    def _make(self) -> AsyncConnection:
        return AsyncConnection(self._loop, self._buffer)

    def _ended(self, connection: AsyncConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self._give(None)

    def _give(self, connection: AsyncConnection | None) -> None:
        if connection is not None:
            connection.keep()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        super()._give(connection)

    def close(self) -> list[asyncio.Future[None]]:
        """Close all; what is in work fails. Return what is done when they have ended."""
        self.is_closed = True
        self.retire()
        for limit in self._opening:
            if not limit.expired():
                limit.reschedule(self._loop.time())
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(ClientUsageError(CLOSED))
        for connection in self._all:
            connection.close(ClientUsageError(CLOSED))
        return [connection.ended for connection in self._all]


class TaskDriver(HttpTransport[AsyncPool]):
    """
    Performs steps in the task of the caller; used by the tasks of one loop.

    Attributes:
        finishing: What perform the last steps of cancelled tasks.
    """

    def __init__(self, options: Options) -> None:
        """Open nothing yet; may be called outside of an event loop."""
        super().__init__(options)
        self.finishing: Final[set[asyncio.Task[None]]] = set()
        # Also those of nodes that are not listed any longer, while they are in use.
        self._made: Final[WeakSet[AsyncPool]] = WeakSet()
        _all.add(self)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a function; await its result if it can be."""
        result = function()
        return await result if isawaitable(result) else result

    async def finish(self, steps: Operation[None], error: BaseException) -> None:
        """Perform the last steps of an operation; a cancelled task does not wait."""
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.create_task(steps)
            self.finishing.add(task)
            task.add_done_callback(self.finishing.discard)
        else:
            await steps

    async def close(self) -> None:
        """Close all connections; what is in work fails."""
        ending = self._close()
        if ending:
            await asyncio.wait(ending)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Close what is open without waiting, from any thread; return whether it was."""
        if self in _of_parent:
            return False
        is_any = any(not pool.is_closed for pool in self._made)
        if loop.is_closed():  # The connections ended as well.
            for pool in self._made:
                pool.is_closed = True
        elif is_any:
            loop.call_soon_threadsafe(self._close)
        return is_any

    def begin_again(self) -> None:
        """Forget the connections of a loop that has ended."""
        self._pools.clear()
        self._made.clear()

    def _close(self) -> list[asyncio.Future[None]]:
        """Close all connections; return what is done when they have ended."""
        return [ended for pool in [*self._made] for ended in pool.close()]

    def _make_pool(self, address: Address) -> AsyncPool:
        pool = AsyncPool(address, self._options)
        self._made.add(pool)
        return pool


# A child process has the selector of the loop in common with its parent. Pools that were
# deleted there would remove their connections from it, and the parent would wait for ever.
_all: Final[WeakSet[TaskDriver]] = WeakSet()
_of_parent: Final[set[TaskDriver]] = set()
if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=lambda: _of_parent.update(_all))
