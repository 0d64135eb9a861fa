"""
The client for asyncio: what performs the steps of its methods.

Tasks may be cancelled at any point: a request in work is ended with its connection, the
operation is counted as an error, and a lease is given back by a task in the background,
which `close` waits for.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, overload

from volcache_client.aio_transport import TaskDriver
from volcache_client.errors import CacheError, ClientUsageError
from volcache_client.methods import AsyncMethods

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
    from typing import Unpack

    from volcache_client.core import Source
    from volcache_client.keys import Key
    from volcache_client.making import Making
    from volcache_client.many import Many
    from volcache_client.messages import Operation
    from volcache_client.operations import Operations
    from volcache_client.options import OptionArguments, Options
    from volcache_client.serializers import ValueSerializer


K = TypeVar("K", bound="str | bytes")
T = TypeVar("T")
V = TypeVar("V")

# The flights in which the current task is: those that wait for it.
_inside: ContextVar[frozenset[_TaskFlight[Any]]] = ContextVar(
    "volcache_flights", default=frozenset()
)


class _TaskFlight(Generic[V]):
    """A value that a task makes, while at least one caller waits for it."""

    def __init__(self, steps: Coroutine[object, object, V]) -> None:
        self.callers = 0  # How many wait for it.
        self.task: Final = asyncio.create_task(self._run(steps))
        # Without a caller, its error is not reported as one that nobody has seen.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, steps: Coroutine[object, object, V]) -> V:
        _inside.set(_inside.get() | {self})
        return await steps

    @property
    def is_inside(self) -> bool:
        """Whether this flight waits for the current task."""
        return self in _inside.get()

    async def wait(self) -> V:
        """Return the value; the task is cancelled with the last one that waits."""
        self.callers += 1
        try:
            await asyncio.wait([self.task])  # Unlike `await task`, it cannot cancel it.
            return self.task.result()
        finally:
            self.callers -= 1
            if not self.callers and not self.task.done():
                self.task.cancel()
                await asyncio.wait([self.task])


async def _together(steps: list[Operation[None]]) -> None:
    if len(steps) == 1:  # Without a task of its own.
        await steps[0]
    else:
        await asyncio.gather(*steps)


async def _until_end(client: weakref.ref[AsyncClient[Any]]) -> AsyncGenerator[None]:
    """Close what is open of a client when the loop ends."""
    try:
        yield
    finally:
        found = client()
        if found is not None:
            await found._end()  # noqa: SLF001 - Of this module.


class AsyncClient(AsyncMethods[V]):  # noqa: D101 - As of its methods.
    __doc__ = AsyncMethods.__doc__

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: AsyncClient[bytes],
            nodes: Source,
            *,
            serializer: None = None,
            **options: Unpack[OptionArguments],
        ) -> None: ...
        @overload
        def __init__(
            self: AsyncClient[Any],
            nodes: Source,
            *,
            serializer: Literal["json", "pickle", "msgpack"],
            **options: Unpack[OptionArguments],
        ) -> None: ...
        @overload
        def __init__(
            self,
            nodes: Source,
            *,
            serializer: ValueSerializer[V],
            **options: Unpack[OptionArguments],
        ) -> None: ...
        def __init__(self, nodes: Source, **options: Any) -> None: ...

    def _make_driver(self, options: Options) -> TaskDriver:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closer: AsyncGenerator[None] | None = None
        self._driver = TaskDriver(options)
        return self._driver

    async def close(self) -> None:
        """
        Close all connections; it may be called again.

        What makes a value for `get_or_set` is cancelled, and operations that are not
        complete raise `ClientUsageError`.
        """
        self._is_closed = True
        await self._end()
        if self._closer is not None:
            await self._closer.aclose()

    async def _end(self) -> None:
        """Close all connections; the client may begin again in another loop."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if loop is not asyncio.get_running_loop():
            self._driver.abandon(loop)
            return
        flights = [flight for flight in self._flights.values() if not flight.is_inside]
        making = {flight.task for flight in flights} | self._renewing
        making.discard(asyncio.current_task())
        for task in making:
            task.cancel()
        while making := {
            task for task in making | self._driver.finishing if not task.done()
        }:
            await asyncio.wait(making)
        await self._driver.close()
        if self._sending:
            await asyncio.wait(self._sending)

    async def __aenter__(self) -> Self:
        _ = self._opened
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)  # None also if an option was wrong.
        if loop is not None and self._driver.abandon(loop):
            warnings.warn(
                "an AsyncClient was not closed; use `async with` or `await client.close()`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # --- Steps --------------------------------------------------------------------------

    def _enter(self) -> None:
        """
        Bind the client to the running loop until that ends; nothing of one before is left.

        Raises:
            ClientUsageError: It is closed, or belongs to another loop.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise ClientUsageError("the client is closed")
        if self._loop is not None and not self._loop.is_closed():
            raise ClientUsageError(
                "the client belongs to another event loop, which has not ended; use one"
                " client for each loop"
            )
        self._driver.begin_again()
        self._flights: dict[bytes, _TaskFlight[V]] = {}
        self._renewing: set[asyncio.Task[None]] = set()
        # With `batch`: what tasks have asked for in this turn of the loop.
        self._turn: dict[Key, list[asyncio.Future[Any]]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._loop = loop
        # A loop that ends closes its generators: the connections end with it, in order.
        self._closer = _until_end(weakref.ref(self))
        with suppress(StopIteration):
            self._closer.__anext__().send(None)

    @property
    def _opened(self) -> Operations[V]:
        if asyncio.get_running_loop() is not self._loop:
            self._enter()
        return self._core

    # --- Many at once, and making -------------------------------------------------------

    async def _many(self, many: Many[K, T]) -> dict[K, T]:
        """Perform the steps for all nodes at the same time; return the results."""
        await _together(await many.by_node())
        return many.results()

    async def _in_turn(self, key: Key) -> tuple[V] | None:
        """Ask for a value in a row with what other tasks ask for in this turn."""
        loop = asyncio.get_running_loop()
        if not self._turn:
            loop.call_soon(self._send_turn)
        result: asyncio.Future[tuple[V] | None] = loop.create_future()
        self._turn.setdefault(key, []).append(result)
        return await result

    def _send_turn(self) -> None:
        turn, self._turn = self._turn, {}
        task = asyncio.create_task(self._take_turn(turn))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _take_turn(self, turn: dict[Key, list[asyncio.Future[Any]]]) -> None:
        """Give each task its own value or error."""
        found: Mapping[Key, Any]
        try:
            if len(turn) == 1:
                found = {key: await self._core.get(key) for key in turn}
            else:
                many = self._core.get_many(turn)
                await _together(await many.by_node())
                found = many.found()
        except CacheError as error:  # The client was closed.
            found = dict.fromkeys(turn, error)
        for key, results in turn.items():
            made = found.get(key)
            for result in results:
                if result.done():  # Its task was cancelled.
                    continue
                if isinstance(made, CacheError):
                    result.set_exception(copy(made))
                elif made is None or result is results[0]:
                    result.set_result(made)
                else:
                    result.set_result((self._core.copied(made[0]),))

    async def _make_once(self, stored: bytes, call: Callable[[], Operation[V]]) -> V:
        """
        Return the result of an operation, of this or of another task.

        A task that is cancelled does not end it for the others; when all that wait are
        cancelled, it is cancelled as well.
        """
        has_waited = False
        while True:
            flight = self._flights.get(stored)
            if flight is None or not flight.callers:
                return await self._lead(stored, call)
            if flight.is_inside:
                raise ClientUsageError(
                    f"get_or_set of {stored!r} within its own make would wait for itself"
                )
            if not has_waited:
                has_waited = True
                self._core.counters.making("waits")
            try:
                return self._core.copied(await flight.wait())
            except asyncio.CancelledError:
                self._check_cancelled(flight)

    async def _lead(self, stored: bytes, call: Callable[[], Operation[V]]) -> V:
        """Make a value in a task of its own, so that no caller ends it for the others."""
        flight = self._flights[stored] = _TaskFlight(call())

        def ended(_: object) -> None:
            if self._flights.get(stored) is flight:
                del self._flights[stored]

        flight.task.add_done_callback(ended)
        try:
            return await flight.wait()
        except asyncio.CancelledError:
            self._check_cancelled(flight)
            raise

    def _check_cancelled(self, flight: _TaskFlight[V]) -> None:
        """
        Return if not this task, but the one that it waited for, was cancelled.

        Raises:
            CancelledError: It was this task.
            ClientUsageError: `close` has cancelled what it waited for.
        """
        task = asyncio.current_task()
        if not flight.task.cancelled() or (task is not None and task.cancelling()):
            raise  # noqa: PLE0704 - Called by an `except`.
        if self._is_closed:
            raise ClientUsageError("the client was closed before the value was made")

    def _renew(self, making: Making[V]) -> None:
        """Renew a value in a task of its own, unless one does."""
        renewals = self._renewals
        if not renewals.begin(making.stored):
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._renewing.discard(task)
            error = None if task.cancelled() else task.exception()
            renewals.ended(making.stored, error)

        task = asyncio.create_task(making.renew())
        self._renewing.add(task)
        task.add_done_callback(ended)
