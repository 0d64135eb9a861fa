"""
What performs the steps of `AsyncClient`.

Tasks may be cancelled at any point: a request in work is ended with its connection, the
operation is counted as an error, and a lease is given back by a task in the background,
which `close` waits for.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from contextvars import ContextVar
from inspect import isawaitable, iscoroutinefunction
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
)

from volcache_client.aio_transport import AsyncTransport
from volcache_client.base import BaseClient
from volcache_client.errors import (
    ClientUsageError,
    InvalidArgumentError,
)
from volcache_client.messages import Open, Send, Sleep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from volcache_client.making import Making
    from volcache_client.messages import Call, Operation, Step
    from volcache_client.nodes import Node
    from volcache_client.options import Options

T = TypeVar("T")
V = TypeVar("V")

_log: Final = logging.getLogger("volcache_client")

# The flights in which the current task is: those that wait for it.
_inside: ContextVar[frozenset[_TaskFlight[Any]]] = ContextVar(
    "volcache_flights", default=frozenset()
)


class _TaskFlight(Generic[V]):
    """A value that a task makes, while at least one caller waits for it."""

    def __init__(self, steps: Coroutine[object, object, V]) -> None:
        self._callers = 0
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

    @property
    def is_wanted(self) -> bool:
        """Whether a caller waits for it."""
        return self._callers > 0

    async def wait(self) -> V:
        """Return the value; the task is cancelled with the last one that waits."""
        self._callers += 1
        try:
            await asyncio.wait([self.task])  # Unlike `await task`, it cannot cancel it.
            return self.task.result()
        finally:
            self._callers -= 1
            if not self._callers and not self.task.done():
                self.task.cancel()
                await asyncio.wait([self.task])


class TaskClient(BaseClient[V]):
    """Performs steps in the task of the caller; used by all tasks of one event loop."""

    def _start(self, options: Options) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport = AsyncTransport(options)
        self._flights: dict[bytes, _TaskFlight[V]] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._renewing: set[asyncio.Task[None]] = set()

    def _connections(self) -> Mapping[Node, int]:
        return self._transport.connections()

    async def close(self) -> None:
        """
        Close all connections; it may be called again.

        What makes a value for `get_or_set` is cancelled, and operations that are not
        complete raise `ClientUsageError`.
        """
        loop = self._loop
        self._is_closed = True
        self._loop = None
        if loop is None:
            return
        if loop is not asyncio.get_running_loop():
            self._transport.abandon(loop)
            return
        flights = [flight for flight in self._flights.values() if not flight.is_inside]
        making = {flight.task for flight in flights} | self._renewing
        making.discard(asyncio.current_task())
        for task in making:
            task.cancel()
        while making := {task for task in making | self._finishing if not task.done()}:
            await asyncio.wait(making)
        await self._transport.close()

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)  # None also if an option was wrong.
        if loop is not None and self._transport.abandon(loop):
            warnings.warn(
                "an AsyncClient was not closed; use `async with` or `await client.close()`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # --- Steps --------------------------------------------------------------------------

    def _enter(self) -> None:
        """
        Bind the client to the running loop, the first time.

        Raises:
            ClientUsageError: It is closed, or belongs to another loop.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._is_closed:
            raise ClientUsageError("the client is closed")
        if self._loop is not None:
            raise ClientUsageError(
                "the client belongs to another event loop: that of its first call; use one"
                " client for each loop"
            )
        self._loop = loop

    async def _run(self, operation: Operation[T]) -> T:
        """Perform the steps of an operation; return its result."""
        self._enter()
        return await self._drive(operation, _resumed(operation, None))

    async def _drive(self, operation: Operation[T], step: Step | _Result[T]) -> T:
        """Take a step and all that follow; return the result."""
        while not isinstance(step, _Result):
            step = await self._advance(operation, step)
        result: T = step.value
        return result

    async def _advance(self, operation: Operation[T], step: Step) -> Step | _Result[T]:
        """Take a step; return the next one, or the result."""
        result: object
        try:
            if isinstance(step, Send):
                result = await self._transport.send(step)
            elif isinstance(step, Open):
                result = await self._transport.open(step)
            elif isinstance(step, Sleep):
                result = await asyncio.sleep(step.seconds, None)
            else:
                result = await self._call(step)
        except Exception as error:  # noqa: BLE001 - The operation decides.
            return _thrown(operation, error)
        except GeneratorExit:  # The loop ended before this task.
            operation.close()
            raise
        except BaseException as error:
            following = _thrown(operation, error)
            if not isinstance(following, _Result):
                self._finish_soon(operation, following)
            raise
        return _resumed(operation, result)

    async def _call(self, step: Call) -> object:
        result = step.function()
        if isawaitable(result):
            result = await result
        # It may have returned a list of nodes, which is used when the next step is taken.
        asyncio.get_running_loop().call_soon(self._keep_nodes)
        return result

    def _keep_nodes(self) -> None:
        """Close the connections to nodes that are not in the list any longer."""
        self._transport.keep(self._core.nodes.all())

    def _finish_soon(self, operation: Operation[Any], step: Step) -> None:
        """Take the last steps of an operation whose task was cancelled."""
        task = asyncio.create_task(self._finish(operation, step))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _finish(self, operation: Operation[Any], step: Step) -> None:
        try:
            await self._drive(operation, step)
        except asyncio.CancelledError:
            pass  # That of the task, which the operation raises at its end.
        except Exception:  # noqa: BLE001 - It has no caller any longer.
            _log.exception("the end of a cancelled operation failed")

    # --- Many at once, and making -------------------------------------------------------

    async def _gather(self, operations: list[Operation[T]]) -> list[T | Exception]:
        """Perform operations at the same time; return their results or errors."""
        self._enter()
        results: list[Any] = [None] * len(operations)
        waiting = iter(enumerate(operations))  # Several tasks take from it.
        workers = min(len(operations), self._core.options.connections_max)
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._run_all(waiting, results))
        return results

    async def _run_all(
        self, waiting: Iterator[tuple[int, Operation[Any]]], results: list[Any]
    ) -> None:
        for at, operation in waiting:
            try:
                results[at] = await self._run(operation)
            except Exception as error:  # noqa: BLE001 - The caller raises it.
                results[at] = error

    async def _make_once(self, stored: bytes, operation: Operation[V]) -> V:
        """
        Return the result of an operation, of this or of another task.

        A task that is cancelled does not end it for the others; when all that wait are
        cancelled, it is cancelled as well.
        """
        has_waited = False
        while True:
            flight = self._flights.get(stored)
            if flight is None or not flight.is_wanted:
                return await self._lead(stored, operation)
            if flight.is_inside:
                raise ClientUsageError(
                    f"get_or_set of {stored!r} within its own make would wait for itself"
                )
            if not has_waited:
                has_waited = True
                self._core.counters.waited()
            try:
                return self._core.copied(await flight.wait())
            except asyncio.CancelledError:
                self._check_cancelled(flight)

    async def _lead(self, stored: bytes, operation: Operation[V]) -> V:
        """Make a value in a task of its own, so that no caller ends it for the others."""
        flight = self._flights[stored] = _TaskFlight(self._run(operation))

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

        task = asyncio.create_task(self._run(making.renew()))
        self._renewing.add(task)
        task.add_done_callback(ended)

    def _check_function(self, function: Callable[..., object]) -> None:
        if not iscoroutinefunction(function):
            raise InvalidArgumentError(
                f"{function!r} is not a coroutine; use Client.memoize"
            )


class _Result(NamedTuple, Generic[T]):
    """What an operation returned."""

    value: T


def _resumed(operation: Operation[T], result: object) -> Step | _Result[T]:
    """Give an operation the result of its step; return the next one."""
    try:
        return operation.send(result)
    except StopIteration as stop:
        return _Result(stop.value)


def _thrown(operation: Operation[T], error: BaseException) -> Step | _Result[T]:
    """Raise an error in an operation; return the next step."""
    try:
        return operation.throw(error)
    except StopIteration as stop:
        return _Result(stop.value)
