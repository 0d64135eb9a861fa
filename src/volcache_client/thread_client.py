"""What performs the steps of `Client`."""

from __future__ import annotations

import os
import weakref
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar, cast

from volcache_client.base import BaseClient
from volcache_client.errors import InvalidArgumentError
from volcache_client.exchanges import run
from volcache_client.threads import Flights, Renewals, Workers
from volcache_client.transport import ThreadDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache_client.keys import Key
    from volcache_client.making import Making
    from volcache_client.many import Many
    from volcache_client.messages import Operation
    from volcache_client.options import Options

K = TypeVar("K", bound="str | bytes")
T = TypeVar("T")
V = TypeVar("V")


class ThreadClient(BaseClient[V]):
    """Performs steps in the thread of the caller; used by all threads of a process."""

    def _make_driver(self, options: Options) -> ThreadDriver:
        if options.batch:
            raise InvalidArgumentError("batch is an option of AsyncClient only")
        self._driver = ThreadDriver(options)
        self._flights = Flights[V]()
        self._workers = Workers(options.connections_max)
        _clients.add(self)
        return self._driver

    def close(self) -> None:
        """Close all connections; those in use when their operations end."""
        self._is_closed = self._driver.is_closed = True
        self._driver.keep(())
        self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """Begin without the connections and threads of the parent, in a child process."""
        self._core.after_fork()
        self._driver.abandon()
        options = self._core.options
        self._flights = Flights()
        self._workers = Workers(options.connections_max)
        self._renewals = Renewals(self._core.clock, options.lease_seconds)

    # --- The client as a mapping --------------------------------------------------------

    def __getitem__(self, key: Key) -> V:
        found = run(self._core.get(key))
        if found is None:
            raise KeyError(key)
        return found[0]

    def __setitem__(self, key: Key, value: V) -> None:
        run(self._core.set("set", key, value))

    def __delitem__(self, key: Key) -> None:
        if not run(self._core.delete(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return run(self._core.stat(cast("str", key))) is not None

    def __iter__(self) -> NoReturn:
        raise TypeError(f"iter: {_NOT_LISTED}")

    def __len__(self) -> int:
        raise TypeError(f"len: {_NOT_LISTED}")

    def __bool__(self) -> bool:
        return True

    # --- Steps --------------------------------------------------------------------------

    async def _many(self, many: Many[K, T]) -> dict[K, T]:
        """Perform the steps for all nodes at the same time; return the results."""
        self._driver.check_open()
        self._workers.run([partial(run, steps) for steps in await many.by_node()])
        return many.results()

    async def _make_once(self, stored: bytes, call: Callable[[], Operation[V]]) -> V:
        """Return the result of an operation, of this or of another thread."""
        return self._flights.run(
            stored,
            lambda: run(call()),
            copied=self._core.copied,
            on_wait=lambda: self._core.counters.making("waits"),
        )

    def _renew(self, making: Making[V]) -> None:
        """Renew a value in another thread, unless one does."""
        renewals = self._renewals

        def renew() -> None:
            error = None
            try:
                run(making.renew())
            except BaseException as caught:  # noqa: BLE001 - It has no caller.
                error = None if self._is_closed else caught
            finally:
                renewals.ended(making.stored, error)

        if renewals.begin(making.stored):
            self._workers.submit(partial(copy_context().run, renew))


_NOT_LISTED: Final = (
    "a client cannot list the keys of a fleet; `volcache ls` lists those of an instance"
)
_clients: Final[weakref.WeakSet[ThreadClient[Any]]] = weakref.WeakSet()


def _after_fork() -> None:
    for client in _clients:
        client._after_fork()  # noqa: SLF001 - Of this module.


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_after_fork)
