"""What sends the requests of `AsyncClient`, and performs the steps of its operations."""

from __future__ import annotations

import asyncio
import os
from copy import copy
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from volcache_client.aio_connections import AsyncPool
from volcache_client.errors import CacheError
from volcache_client.exchanges import HttpTransport
from volcache_client.http1 import is_short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from volcache_client.messages import Answer, Operation, Request
    from volcache_client.nodes import Address, Node
    from volcache_client.options import Options


class _Batched(NamedTuple):
    """A request that is sent together with others."""

    request: Request
    seconds: float
    answer: asyncio.Future[Answer]

    def end(self, result: Answer | CacheError | None) -> None:
        """Give its task the answer, or an error of its own; None: it is sent again."""
        if self.answer.done():  # The task was cancelled.
            return
        if isinstance(result, CacheError):
            self.answer.set_exception(copy(result))
        elif result is not None:
            self.answer.set_result(result)


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
        self._retired: Final[set[AsyncPool]] = set()
        # With `batch`: the requests of this turn of the loop, by node.
        self._turn: dict[Node, list[_Batched]] = {}
        self._sending: Final[set[asyncio.Task[None]]] = set()
        _all.add(self)

    def send(
        self, node: Node, request: Request, seconds: float
    ) -> Coroutine[Any, Any, Answer]:
        """Send a request and read its answer; see `HttpTransport`."""
        if self._options.batch and request.is_repeatable and is_short(request):
            return self._send_in_turn(node, request, seconds)
        return super().send(node, request, seconds)

    async def _send_in_turn(
        self, node: Node, request: Request, seconds: float
    ) -> Answer:
        loop = asyncio.get_running_loop()
        if not self._turn:
            loop.call_soon(self._send_turn)
        answer: asyncio.Future[Answer] = loop.create_future()
        self._turn.setdefault(node, []).append(_Batched(request, seconds, answer))
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
            requests = [one.request for one in batch]
            try:
                results = await self.send_many(node, requests, batch[0].seconds)
            except CacheError as error:
                results = [error] * len(batch)
            for one, result in zip(batch, results, strict=False):
                one.end(result)

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

    def keep(self, nodes: Collection[Node]) -> None:
        """Close the connections to all other nodes, those in use when they are free."""
        self._retired.difference_update(
            [one for one in self._retired if not one.in_use]
        )
        super().keep(nodes)

    def _retire(self, pool: AsyncPool) -> None:
        super()._retire(pool)
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

    def _make_pool(self, address: Address) -> AsyncPool:
        return AsyncPool(address, self._options)


# A child process has the selector of the loop in common with its parent. Pools that were
# deleted there would remove their connections from it, and the parent would wait for ever.
_all: Final[WeakSet[TaskDriver]] = WeakSet()
_of_parent: Final[set[TaskDriver]] = set()
if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=lambda: _of_parent.update(_all))
