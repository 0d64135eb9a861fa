"""Exchanges of the client for asyncio: a request is sent, its answer is read."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakSet

from volcache_client.aio_connections import AsyncConnection, connect
from volcache_client.connections import tls_context
from volcache_client.errors import CacheError, ClientUsageError, PoolTimeoutError
from volcache_client.exchanges import open_body, send
from volcache_client.http1 import answer_error, connect_error, is_short
from volcache_client.messages import SendMany
from volcache_client.pipelines import send_many

if TYPE_CHECKING:
    from collections.abc import Collection

    from volcache_client.messages import Answer, Open, Opened, Send
    from volcache_client.nodes import Node
    from volcache_client.options import Options

_BUFFER_BYTES: Final = 1 << 18
_CLOSED: Final = "the client was closed before the answer came"


class _Batched(NamedTuple):
    """A request that is sent together with others."""

    step: Send
    answer: asyncio.Future[Answer]

    def end(self, result: Answer | CacheError | None) -> None:
        """Give its task the answer, or an error of its own; None: it is sent again."""
        if self.answer.done():  # The task was cancelled.
            return
        if isinstance(result, CacheError):
            self.answer.set_exception(copy(result))
        elif result is not None:
            self.answer.set_result(result)


class AsyncTransport:
    """Sends requests over pools of connections; used by the tasks of one loop."""

    def __init__(self, options: Options) -> None:
        """Open nothing yet; may be called outside of an event loop."""
        self._options: Final = options
        self._pools: Final[dict[Node, AsyncPool]] = {}
        self._retired: Final[set[AsyncPool]] = set()
        # With `batch`: the requests of this turn of the loop, by node.
        self._turn: dict[Node, list[_Batched]] = {}
        self._sending: Final[set[asyncio.Task[None]]] = set()
        _all.add(self)

    async def send(self, step: Send) -> Answer:
        """Send a request and read its answer; see `exchanges.send`."""
        request = step.request
        if (
            not self._options.batch
            or not request.is_repeatable
            or not is_short(request)
        ):
            return await send(self._pool(step.node), step)
        loop = asyncio.get_running_loop()
        if not self._turn:
            loop.call_soon(self._send_turn)
        answer: asyncio.Future[Answer] = loop.create_future()
        self._turn.setdefault(step.node, []).append(_Batched(step, answer))
        return await answer

    def _send_turn(self) -> None:
        """Send what the tasks have asked for in one turn of the loop."""
        turn, self._turn = self._turn, {}
        for node, batch in turn.items():
            task = asyncio.create_task(self._send_batch(node, batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_batch(self, node: Node, batch: list[_Batched]) -> None:
        """Send requests in a row, those again that may be; give each its answer."""
        while batch := [one for one in batch if not one.answer.done()]:
            requests = [one.step.request for one in batch]
            step = SendMany(node, requests, batch[0].step.timeout)
            try:
                results = await self.send_many(step)
            except CacheError as error:
                results = [error] * len(batch)
            for one, result in zip(batch, results, strict=False):
                one.end(result)

    async def send_many(self, step: SendMany) -> list[Answer | CacheError | None]:
        """Send requests in a row; see `pipelines.send_many`."""
        return await send_many(self._pool(step.node), step)

    async def open(self, step: Open) -> Answer | Opened:
        """Send a request and open its answer; see `exchanges.open_body`."""
        return await open_body(self._pool(step.node), step)

    def connections(self) -> dict[Node, int]:
        """Return the open connections of each node."""
        return {node: pool.connections for node, pool in self._pools.items()}

    def keep(self, nodes: Collection[Node]) -> None:
        """Close the connections to all other nodes, those in use when they are free."""
        self._retired.difference_update([one for one in self._retired if one.is_unused])
        for node in self._pools.keys() - set(nodes):
            pool = self._pools.pop(node)
            pool.retire()
            self._retired.add(pool)

    async def close(self) -> None:
        """Close all connections; what is in work fails."""
        ending = [*self._close(), *self._sending]
        if ending:
            await asyncio.wait(ending)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Close what is open without waiting, from any thread; return whether it was."""
        if self in _of_parent:
            return False
        is_any = any(
            not pool.is_closed for pool in (*self._pools.values(), *self._retired)
        )
        if loop.is_closed():  # The connections ended as well.
            for pool in self._pools.values():
                pool.is_closed = True
        elif is_any:
            loop.call_soon_threadsafe(self._close)
        return is_any

    def begin_again(self) -> None:
        """Forget the connections of a loop that has ended."""
        self._pools.clear()
        self._retired.clear()
        self._turn = {}

    def _close(self) -> list[asyncio.Future[None]]:
        """Close all connections; return what is done when they have ended."""
        pools = [*self._pools.values(), *self._retired]
        return [ended for pool in pools for ended in pool.close()]

    def _pool(self, node: Node) -> AsyncPool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = AsyncPool(node, self._options)
        return pool


# A child process has the selector of the loop in common with its parent. Pools that were
# deleted there would remove their connections from it, and the parent would wait for ever.
_all: Final[WeakSet[AsyncTransport]] = WeakSet()
_of_parent: Final[set[AsyncTransport]] = set()
os.register_at_fork(after_in_child=lambda: _of_parent.update(_all))


class AsyncPool:
    """
    Connections to one node; used by the tasks of one loop; see `HttpPool`.

    Tasks have what becomes free in the order in which they asked.

    Attributes:
        name: Of the node.
        is_closed: Whether `close` was called.
    """

    def __init__(self, node: Node, options: Options) -> None:
        """Open nothing yet; called within the loop."""
        self.name: Final = node.name
        self.host: Final = node.address.host_header
        self.loop: Final = asyncio.get_running_loop()
        self._address: Final = node.address
        self._connect_timeout: Final = options.connect_timeout
        self._context: Final = tls_context(node.address, options.ssl_context)
        self._size: Final = options.connections_max
        self.limit: Final = options.max_value_size
        self._buffer: Final = memoryview(bytearray(_BUFFER_BYTES))
        self._used = 0
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()
        self._idle: Final[list[AsyncConnection]] = []
        self._opening: Final[set[asyncio.Timeout]] = set()
        # Until their transports have ended.
        self._all: Final[set[AsyncConnection]] = set()
        self._is_retired = False
        self.is_closed = False

    @property
    def connections(self) -> int:
        """How many are in use or kept."""
        return sum(one.is_open for one in self._all)

    @property
    def is_unused(self) -> bool:
        """Whether nothing is in use, and nothing waits."""
        return not self._used

    def clock(self) -> float:
        """Return the time of deadlines."""
        return self.loop.time()

    def error_of(self, error: OSError) -> CacheError:
        """Return the error of the client for an exchange that failed."""
        if self.is_closed:
            return ClientUsageError(_CLOSED)
        return answer_error(self.name, error)

    async def acquire(self, deadline: float) -> AsyncConnection | None:
        """Return the idle connection used last, or None; see `HttpPool`."""
        if self._used >= self._size:
            await self._wait(deadline)
        else:
            self._used += 1
        while self._idle:
            connection = self._idle.pop()
            if connection.is_in_step():
                return connection
            connection.close()
        return None

    async def _wait(self, deadline: float) -> None:
        """Wait for the right to use a connection."""
        turn: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(None)  # It became free at the same moment.
            if isinstance(error, TimeoutError):
                text = f"all {self._size} connections are in use"
                raise PoolTimeoutError(self.name, text) from None
            raise

    async def open(self, deadline: float) -> AsyncConnection:
        """Open a connection; see `HttpPool`."""
        if self.is_closed:
            raise ClientUsageError(_CLOSED)
        until = min(deadline, self.loop.time() + self._connect_timeout)
        try:
            async with asyncio.timeout_at(until) as limit:
                self._opening.add(limit)
                try:
                    made = await connect(
                        self._address, until, self._context, self._make
                    )
                finally:
                    self._opening.discard(limit)
        except (OSError, UnicodeError) as error:
            if self.is_closed:
                raise ClientUsageError(_CLOSED) from error
            raise connect_error(self.name, error) from error
        self._all.add(made)
        made.ended.add_done_callback(lambda _: self._all.discard(made))
        return made

    def _make(self) -> AsyncConnection:
        return AsyncConnection(self.loop, self._buffer)

    def release(self, connection: AsyncConnection | None) -> None:
        """Take a connection back; see `HttpPool`."""
        if connection is not None:
            if connection.is_reusable and not self._is_retired:
                connection.keep()
                self._idle.append(connection)
            else:
                connection.close()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._used -= 1

    def retire(self) -> None:
        """Close those that are idle now, and the others when they are given back."""
        self._is_retired = True
        while self._idle:
            self._idle.pop().close()

    def close(self) -> list[asyncio.Future[None]]:
        """Close all; what is in work fails. Return what is done when they have ended."""
        self.is_closed = True
        self.retire()
        for limit in self._opening:
            if not limit.expired():
                limit.reschedule(self.loop.time())
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(ClientUsageError(_CLOSED))
        for connection in self._all:
            connection.close()
        return [connection.ended for connection in self._all]
