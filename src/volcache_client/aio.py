"""
The client for asyncio.

Tasks may be cancelled at any point: a request in work is ended with its connection, the
operation is counted as an error, and a lease is given back by a task in the background,
which `close` waits for.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from volcache_client.aio_flights import Flight, NotMadeError
from volcache_client.aio_streams import AsyncStream
from volcache_client.aio_transport import AsyncTransport
from volcache_client.core import Core
from volcache_client.errors import ClientUsageError, InvalidArgumentError
from volcache_client.memo import AsyncCachedFunction, CachedFunction, CallKeys
from volcache_client.messages import Open, Send, Sleep
from volcache_client.options import OptionArguments, make_options
from volcache_client.serializers import make_codec

if TYPE_CHECKING:
    import os
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType
    from typing import Unpack

    from volcache_client.core import Source
    from volcache_client.messages import Call, Item, Operation, Stat, Step
    from volcache_client.metrics import Metrics
    from volcache_client.serializers import ValueSerializer

K = TypeVar("K", bound="str | bytes")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")

_log: Final = logging.getLogger("volcache_client")


class AsyncClient(Generic[V]):
    """
    A client of one URL or of many nodes; used by all tasks of one event loop.

    The first call binds it to the loop in which it runs. It is closed by `close`, or by
    leaving `async with`.

    All methods that ask a node raise, besides what is listed with them:
        CacheError: See `errors.py` and the option `on_error`.
        ClientUsageError: The client is closed, or is used from another event loop.
    """

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
        serializer: Literal["json"],
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
    def __init__(
        self,
        nodes: Source,
        *,
        serializer: ValueSerializer[V] | Literal["json"] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        """
        Open no connection yet; may be called outside of an event loop.

        Args:
            nodes: As for `Client`; a function may return an awaitable.
            serializer: Of values; None: they are bytes.
            options: See `Options`.

        Raises:
            InvalidArgumentError: One is wrong; the text says what is allowed.
        """
        self._loop: asyncio.AbstractEventLoop | None = None
        checked = make_options(options)
        self._core: Final[Core[V]] = Core(nodes, make_codec(serializer), checked)
        self._transport: Final = AsyncTransport(checked)
        self._flights: Final[dict[bytes, Flight[V]]] = {}
        self._finishing: Final[set[asyncio.Task[None]]] = set()
        self._is_closed = False

    # --- Reading ------------------------------------------------------------------

    async def get(self, key: str | bytes) -> V | None:
        """Return the value of a key; None for a miss."""
        return await self._run(self._core.get(key))

    async def get_item(self, key: str | bytes) -> Item[V] | None:
        """Return the value of a key and what is known of it; None for a miss."""
        return await self._run(self._core.get_item(key))

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """
        Return the values of those keys that are found, in their order.

        Up to `connections_max` are read at a time. All keys are tried; then the error of
        the first one that failed is raised.
        """
        items = await self._each(
            _checked_keys(keys), lambda key: self._run(self._core.get_item(key))
        )
        return {key: item.value for key, item in items.items()}

    async def stat(self, key: str | bytes) -> Stat | None:
        """Return what is known of a value; None for a miss."""
        return await self._run(self._core.stat(key))

    @asynccontextmanager
    async def stream(self, key: str | bytes) -> AsyncIterator[AsyncStream | None]:
        """
        Open a value to read it in parts, as bytes, without the serializer.

        It holds a connection until the end of `async with`. `timeout` applies between two
        parts, not to the whole.

        Yields:
            A stream; None for a miss.

        Example:
            async with client.stream("large") as stream:
                if stream is not None:
                    async for part in stream:
                        file.write(part)
        """
        core = self._core
        streamed = await self._run(core.stream(key))
        if streamed is None:
            yield None
            return
        try:
            yield AsyncStream(
                streamed, lambda error: core.stream_failed(streamed.node, error)
            )
        finally:
            streamed.body.close()

    # --- Writing ------------------------------------------------------------------

    async def put(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value; return its ETag, None if it was dropped."""
        return await self._run(self._core.put(key, value, ttl, content_type))

    async def put_many(
        self, values: Mapping[K, V], ttl: float | None = None
    ) -> dict[K, str]:
        """
        Store values; return the ETags of those that were not dropped.

        Up to `connections_max` are written at a time. All are tried; then the error of the
        first one that failed is raised.
        """
        values = dict(values)
        return await self._each(
            list(values), lambda key: self._run(self._core.put(key, values[key], ttl))
        )

    async def put_file(
        self,
        key: str | bytes,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """
        Store a file, without the serializer; return its ETag, None if it was dropped.

        It is read in a thread, 1 MiB at a time. `timeout` applies to each part that is
        sent, not to the whole.

        Args:
            key: Of the value.
            source: A path; or a file opened as binary, which is read from its position,
                stays open, and must not be used meanwhile.
            ttl: Seconds.
            content_type: Default: application/octet-stream.

        Raises:
            InvalidArgumentError: It is not a binary file, or became shorter meanwhile.
            OSError: It cannot be read.
        """
        return await self._run(self._core.put_file(key, source, ttl, content_type))

    async def add(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value if there is none; return its ETag, None if there is one."""
        return await self._run(self._core.add(key, value, ttl, content_type))

    async def replace(
        self,
        key: str | bytes,
        value: V,
        etag: str,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value if that with the ETag is stored; return its ETag, else None."""
        return await self._run(self._core.replace(key, value, etag, ttl, content_type))

    async def delete(self, key: str | bytes, etag: str | None = None) -> bool:
        """Remove a value, that with the ETag if given; return whether it was stored."""
        return bool(await self._run(self._core.delete(key, etag)))

    async def purge(self, prefix: str | bytes) -> None:
        """
        Make everything stored so far under a prefix a miss, on all nodes.

        Raises:
            CacheError: The first error of a node, with any `on_error`.
        """
        await self._run(self._core.purge(prefix))

    # --- Making what is missing ---------------------------------------------------

    async def get_or_set(
        self,
        key: str | bytes,
        make: Callable[[], Awaitable[V] | V],
        ttl: float | None = None,
    ) -> V:
        """
        Return the value of a key; make and store it if there is none.

        Tasks that call this at the same time for one key share one making, and so do other
        clients and processes, by a lease. A task that is cancelled does not end it for the
        others; when all that wait are cancelled, it is cancelled as well, and the last one
        returns when `make` has ended.

        Args:
            key: Of the value.
            make: Returns the value or an awaitable of it. It runs in a task of its own, in
                the context of the caller; one that is not asynchronous blocks the loop.
            ttl: Seconds.

        Raises:
            ClientUsageError: `make` calls this for the key that it makes.
            Exception: What `make` raises.
        """
        stored = self._core.stored_key(key)
        has_waited = False
        while True:
            self._enter()
            flight = self._flights.get(stored)
            if flight is None or not flight.is_wanted:
                return await self._lead(stored, self._core.get_or_set(key, make, ttl))
            if flight.is_inside:
                raise ClientUsageError(
                    f"get_or_set of {key!r} within its own make would wait for itself"
                )
            if not has_waited:
                has_waited = True
                self._core.counters.waited()
            try:
                return self._core.copied(await flight.join())
            except NotMadeError:
                continue

    def memoize(
        self,
        ttl: float | None = None,
        *,
        key: Callable[..., str | bytes] | None = None,
        prefix: str | None = None,
    ) -> Callable[[Callable[P, Awaitable[V]]], AsyncCachedFunction[P, V]]:
        """
        Return a decorator that keeps the results of an asynchronous function.

        Args:
            ttl: Seconds.
            key: Returns the key for the arguments of a call. For a method it is called
                with the instance first. None: see `CallKeys`.
            prefix: In the place of module and name of the function in its keys.

        Raises:
            InvalidArgumentError: The function is not a coroutine, or its name is not its
                own.

        Example:
            @client.memoize(ttl=60)
            async def thumbnail(name: str, width: int) -> bytes: ...

            await thumbnail("a.jpg", 100)
            await thumbnail.forget("a.jpg", 100)
        """

        def decorate(function: Callable[P, Awaitable[V]]) -> AsyncCachedFunction[P, V]:
            if not iscoroutinefunction(function):
                raise InvalidArgumentError(
                    f"{function!r} is not a coroutine; use Client.memoize"
                )
            key_of = CallKeys(function, key, prefix).of
            get_or_set = partial(self.get_or_set, ttl=ttl)
            return CachedFunction(function, key_of, get_or_set, self.delete)

        return decorate

    async def _lead(self, stored: bytes, operation: Operation[V]) -> V:
        """Look for the value, and make it in a task if it is not found at once."""

        def ended(flight: Flight[V]) -> None:
            if self._flights.get(stored) is flight:
                del self._flights[stored]

        flight = self._flights[stored] = Flight(ended)
        try:
            step = _resumed(operation, None)
            if isinstance(step, Send):  # The first look.
                step = await self._advance(operation, step)
        except BaseException as error:
            flight.fail(error if isinstance(error, Exception) else NotMadeError())
            raise
        if isinstance(step, _Result):
            value: V = step.value
            flight.land(value)
            return value
        try:
            return await flight.make(self._drive(operation, step))
        except asyncio.CancelledError:
            self._check_cancelled()
            raise

    # --- Numbers, and the end -----------------------------------------------------

    def metrics(self) -> Metrics:
        """Return numbers of operations and nodes since the client was made."""
        return self._core.metrics(self._transport.connections())

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
        for flight in flights:
            flight.cancel()
        for flight in flights:
            await flight.ended()
        while self._finishing:
            await asyncio.wait(self._finishing)
        await self._transport.close()

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        step = _resumed(operation, None)
        while not isinstance(step, _Result):
            step = await self._advance(operation, step)
        result: T = step.value
        return result

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

    async def _each(
        self, keys: Sequence[K], act: Callable[[K], Awaitable[T | None]]
    ) -> dict[K, T]:
        """Return the results for keys that have one; some are asked for at a time."""
        done = _Done[K, T]({}, {})
        waiting = iter(dict.fromkeys(keys))
        workers = min(len(keys), self._core.options.connections_max)
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(_try_keys(waiting, act, done))
        for key in keys:
            if key in done.errors:
                raise _with_note(done.errors[key], len(done.errors) - 1, len(keys))
        return {key: done.results[key] for key in keys if key in done.results}

    def _check_cancelled(self) -> None:
        """
        Return if this task was cancelled.

        Raises:
            ClientUsageError: `close` has cancelled what it waited for.
        """
        task = asyncio.current_task()
        if self._is_closed and task is not None and not task.cancelling():
            raise ClientUsageError("the client was closed before the value was made")


class _Result(NamedTuple, Generic[T]):
    """What an operation returned."""

    value: T


class _Done(NamedTuple, Generic[K, T]):
    """What became of the keys that were tried."""

    results: dict[K, T]
    errors: dict[K, Exception]


async def _try_keys(
    keys: Iterator[K], act: Callable[[K], Awaitable[T | None]], done: _Done[K, T]
) -> None:
    """Try keys until there are no more; several tasks take them from one iterator."""
    for key in keys:
        try:
            result = await act(key)
        except Exception as error:  # noqa: BLE001 - The caller raises it.
            done.errors[key] = error
        else:
            if result is not None:
                done.results[key] = result


def _with_note(error: Exception, others: int, tried: int) -> Exception:
    if others:
        error.add_note(f"and {others} more of {tried} keys")
    return error


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


def _checked_keys(keys: Iterable[K]) -> list[K]:
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError(
            f"{keys!r} is one key; allowed is an iterable of keys, such as a list"
        )
    return list(keys)
