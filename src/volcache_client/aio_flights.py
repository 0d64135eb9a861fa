"""Values that are being made: one task makes one, and others wait for it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# The flights in which the current task is: those that wait for it.
_inside: ContextVar[frozenset[Flight[Any]]] = ContextVar(
    "volcache_flights", default=frozenset()
)


class NotMadeError(Exception):
    """The one that should make the value was cancelled."""


class Flight(Generic[T]):
    """
    A value that is looked for and, if it is missing, made.

    First its leader looks for it, in its own task; what is missing is made in a task of the
    flight, so that neither the leader nor another caller ends it for the others.

    Invariants:
        - `future` ends with the value, with the error, or with `NotMadeError`.
        - The task runs while at least one caller waits, and not after.
    """

    def __init__(self, on_end: Callable[[Flight[T]], object]) -> None:
        """Begin, within the loop; `on_end` is called when the future has ended."""
        self._on_end: Final = on_end
        self._future: Final[asyncio.Future[T]] = (
            asyncio.get_running_loop().create_future()
        )
        self._task: asyncio.Task[T] | None = None
        self._callers = 1

    @property
    def is_inside(self) -> bool:
        """Whether this flight waits for the current task."""
        return self in _inside.get()

    @property
    def is_wanted(self) -> bool:
        """Whether a caller waits for it."""
        return self._callers > 0

    def land(self, value: T) -> None:
        """End with a value."""
        self._future.set_result(value)
        self._on_end(self)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self._future.set_exception(error)
        self._future.exception()  # It may be that no task waits for it.
        self._on_end(self)

    async def make(self, steps: Coroutine[object, object, T]) -> T:
        """Run the steps in a task of the flight, and wait for it as its leader."""
        self._task = asyncio.create_task(self._run_steps(steps))
        self._task.add_done_callback(self._ended)
        return await self._wait(self._task)

    async def join(self) -> T:
        """
        Wait for the value.

        Raises:
            NotMadeError: Who should make it was cancelled.
        """
        self._callers += 1
        return await self._wait(self._future)

    def cancel(self) -> None:
        """Cancel what makes the value."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until nothing runs; the value or error is ignored."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _wait(self, future: asyncio.Future[T]) -> T:
        try:
            await asyncio.wait([future])  # Unlike `await future`, it cannot cancel it.
            return future.result()
        finally:
            self._callers -= 1
            if not self._callers and self._task is not None and not self._task.done():
                # The last one that waited was cancelled; what it started ends with it.
                self._task.cancel()
                await asyncio.wait([self._task])

    async def _run_steps(self, steps: Coroutine[object, object, T]) -> T:
        _inside.set(_inside.get() | {self})
        return await steps

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.fail(NotMadeError())
            return
        error = task.exception()
        if error is None:
            self.land(task.result())
        else:
            self.fail(error if isinstance(error, Exception) else NotMadeError())
