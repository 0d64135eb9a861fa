"""What sends the requests of `AsyncClient`, and performs the steps of its operations."""

from __future__ import annotations

import asyncio
import os
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from volcache_client.aio_connections import AsyncPool
from volcache_client.exchanges import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from volcache_client.messages import Operation
    from volcache_client.nodes import Address, Node
    from volcache_client.options import Options


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
        ending = self._close()
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
