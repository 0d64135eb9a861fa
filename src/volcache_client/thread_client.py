"""What performs the steps of `Client`."""

from __future__ import annotations

import os
import time
import weakref
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar, cast

from volcache_client.base import BaseClient
from volcache_client.errors import ClientUsageError, InvalidArgumentError
from volcache_client.making import Renewals
from volcache_client.messages import Open, Send, Sleep
from volcache_client.threads import Flights, Workers
from volcache_client.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache_client.keys import Key
    from volcache_client.making import Making
    from volcache_client.messages import Operation, Step
    from volcache_client.nodes import Node
    from volcache_client.options import Options

T = TypeVar("T")
V = TypeVar("V")


class ThreadClient(BaseClient[V]):
    """Performs steps in the thread of the caller; used by all threads of a process."""

    def _start(self, options: Options) -> None:
        self._transport = Transport(options)
        self._flights = Flights[V]()
        self._workers = Workers(options.connections_max)
        # Whether the list of nodes was read, and some may have been removed from it.
        self._has_read_list = False
        _clients.add(self)

    def _connections(self) -> Mapping[Node, int]:
        return self._transport.connections()

    def close(self) -> None:
        """Close all connections; those in use when their operations end."""
        self._is_closed = True
        self._transport.keep(())
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """Begin without the connections and threads of the parent, in a child process."""
        self._core.after_fork()
        self._transport.abandon()
        options = self._core.options
        self._flights = Flights()
        self._workers = Workers(options.connections_max)
        self._renewals = Renewals(self._core.clock, options.lease_seconds)

    # --- The client as a mapping --------------------------------------------------------

    def __getitem__(self, key: Key) -> V:
        found = self._run(self._core.get(key))
        if found is None:
            raise KeyError(key)
        return found[0]

    def __setitem__(self, key: Key, value: V) -> None:
        self._run(self._core.set("set", key, value))

    def __delitem__(self, key: Key) -> None:
        if not self._run(self._core.delete(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._run(self._core.stat(cast("str", key))) is not None

    def __iter__(self) -> NoReturn:
        raise TypeError(f"iter: {_NOT_LISTED}")

    def __len__(self) -> int:
        raise TypeError(f"len: {_NOT_LISTED}")

    def __bool__(self) -> bool:
        return True

    # --- Steps --------------------------------------------------------------------------

    def _run(self, operation: Operation[T]) -> T:
        """Perform the steps of an operation; return its result."""
        try:
            step = next(operation)
            while True:
                try:
                    result = self._perform(step)
                except BaseException as error:  # noqa: BLE001 - The operation decides.
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return cast("T", stop.value)

    def _perform(self, step: Step) -> object:
        if isinstance(step, Send | Open):
            self._check_open()
            if self._has_read_list:
                self._has_read_list = False
                self._transport.keep(self._core.nodes.all())
            if isinstance(step, Open):
                return self._transport.open(step)
            return self._transport.send(step)
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        self._has_read_list = True
        return step.function()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientUsageError("the client is closed")

    def _gather(self, operations: list[Operation[T]]) -> list[T | Exception]:
        """Perform operations at the same time; return their results or errors."""
        self._check_open()
        return self._workers.run([partial(self._run, one) for one in operations])

    def _make_once(self, stored: bytes, operation: Operation[V]) -> V:
        """Return the result of an operation, of this or of another thread."""
        return self._flights.run(
            stored,
            lambda: self._run(operation),
            copied=self._core.copied,
            on_wait=self._core.counters.waited,
        )

    def _renew(self, making: Making[V]) -> None:
        """Renew a value in another thread, unless one does."""
        renewals = self._renewals

        def renew() -> None:
            error = None
            try:
                self._run(making.renew())
            except BaseException as caught:  # noqa: BLE001 - It has no caller.
                error = None if self._is_closed else caught
            finally:
                renewals.ended(making.stored, error)

        if renewals.begin(making.stored):
            self._workers.submit(partial(copy_context().run, renew))

    def _check_function(self, function: Callable[..., object]) -> None:
        if iscoroutinefunction(function):
            raise InvalidArgumentError(
                f"{function.__qualname__} is a coroutine; use AsyncClient.memoize"
            )


_NOT_LISTED: Final = (
    "a client cannot list the keys of a fleet; `volcache ls` lists those of an instance"
)
_clients: Final[weakref.WeakSet[ThreadClient[Any]]] = weakref.WeakSet()


def _after_fork() -> None:
    for client in _clients:
        client._after_fork()  # noqa: SLF001 - Of this module.


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_after_fork)
