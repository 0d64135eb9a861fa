"""The client for threads, on urllib3."""

from __future__ import annotations

import inspect
import os
import time
import weakref
from contextlib import contextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)

from volcache_client.core import Core
from volcache_client.errors import ClientUsageError, InvalidArgumentError, NodeError
from volcache_client.memo import CachedFunction, CallKeys
from volcache_client.messages import Item, Open, Send, Sleep
from volcache_client.options import OptionArguments, make_options
from volcache_client.serializers import make_codec
from volcache_client.threads import Flights, Workers, first_error
from volcache_client.transport import Body, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Unpack

    from volcache_client.core import Source, Streamed
    from volcache_client.messages import Operation, Stat, Step
    from volcache_client.metrics import Metrics
    from volcache_client.serializers import ValueSerializer

K = TypeVar("K", bound=str | bytes)
P = ParamSpec("P")
V = TypeVar("V")
T = TypeVar("T")

_PART_BYTES: Final = 1 << 16


class Client(Generic[V]):
    """A client of one URL or of many nodes; used by all threads of a process."""

    @overload
    def __init__(
        self: Client[bytes],
        nodes: Source,
        *,
        serializer: None = None,
        **options: Unpack[OptionArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Client[Any],
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
        Open no connection yet.

        Args:
            nodes: One address, such as "http://127.0.0.1:8080"; a list of them, with
                weights; the path of such a list; or a function that returns one.
            serializer: Of values; None: they are bytes.
            options: See `Options`.

        Raises:
            InvalidArgumentError: One is wrong; the text says what is allowed.
        """
        made = make_options(options)
        self._core: Final[Core[V]] = Core(nodes, make_codec(serializer), made)
        self._transport: Final = Transport(made)
        self._flights: Flights[V] = Flights()
        self._workers = Workers(made.connections_max)
        self._is_closed = False
        # Whether the list of nodes was read, and some may have been removed from it.
        self._has_read_list = False
        _clients.add(self)

    # --- Reading ------------------------------------------------------------------------

    def get(self, key: str | bytes) -> V | None:
        """Return the value of a key; None for a miss."""
        return self._run(self._core.get(key))

    def get_item(self, key: str | bytes) -> Item[V] | None:
        """Return the value of a key and what is known of it; None for a miss."""
        return self._run(self._core.get_item(key))

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """
        Return the values of those keys that were found, by the keys as they are given.

        There is one request for each key, several at once.

        Raises:
            CacheError: The error of the first key that has one; all keys were tried.
        """
        listed = _listed(keys)
        found = self._many([partial(self.get_item, key) for key in listed])
        return {
            key: item.value
            for key, item in zip(listed, found, strict=True)
            if item is not None
        }

    def stat(self, key: str | bytes) -> Stat | None:
        """Return what is known of a value; None for a miss."""
        return self._run(self._core.stat(key))

    @contextmanager
    def stream(self, key: str | bytes) -> Iterator[Reader | None]:
        """
        Read a value in parts; None for a miss.

        The bytes are those that are stored; the serializer is not used. The connection is
        in use until the context ends.
        """
        streamed = self._run(self._core.stream(key))
        if streamed is None:
            yield None
            return
        body: Body = streamed.body
        try:
            yield Reader(self._core, streamed)
        finally:
            body.close()

    # --- Writing ------------------------------------------------------------------------

    def put(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value; return its ETag, None if it was dropped."""
        return self._run(self._core.put(key, value, ttl, content_type))

    def put_many(self, values: Mapping[K, V], ttl: float | None = None) -> dict[K, str]:
        """
        Store values; return the ETags of those that were stored.

        There is one request for each key, several at once.

        Raises:
            CacheError: The error of the first key that has one; all keys were tried.
        """
        listed = list(values.items())
        etags = self._many(
            [partial(self.put, key, value, ttl) for key, value in listed]
        )
        return {
            key: etag
            for (key, _), etag in zip(listed, etags, strict=True)
            if etag is not None
        }

    def put_file(
        self,
        key: str | bytes,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """
        Store the bytes of a file, from its position; return the ETag, None if dropped.

        The serializer is not used, and the value is not in memory as a whole.

        Raises:
            InvalidArgumentError: It is not a binary file, or became shorter meanwhile.
            OSError: It cannot be read.
        """
        return self._run(self._core.put_file(key, source, ttl, content_type))

    def add(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value if there is none; return its ETag, None if there is one."""
        return self._run(self._core.add(key, value, ttl, content_type))

    def replace(
        self,
        key: str | bytes,
        value: V,
        etag: str,
        ttl: float | None = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value if that with the ETag is stored; return its ETag, else None."""
        return self._run(self._core.replace(key, value, etag, ttl, content_type))

    def delete(self, key: str | bytes, etag: str | None = None) -> bool:
        """Remove a value; return whether it, and that with the ETag, was stored."""
        return bool(self._run(self._core.delete(key, etag)))

    def purge(self, prefix: str | bytes) -> None:
        """
        Make everything stored so far under a prefix a miss, on all nodes.

        Raises:
            InvalidArgumentError: The prefix is empty, or there is no `admin_token`.
            CacheError: The first error of a node, with any `on_error`; all were asked.
        """
        self._run(self._core.purge(prefix))

    # --- Making what is missing ---------------------------------------------------------

    def get_or_set(
        self, key: str | bytes, make: Callable[[], V], ttl: float | None = None
    ) -> V:
        """
        Return the value of a key; make and store it if there is none.

        One thread of one process makes it, and the others wait; see `Options` for
        `lease_seconds`. It is returned also if it cannot be stored. What `make` raises is
        raised, for all threads of this process that wait.

        Raises:
            InvalidArgumentError: It is called for the same key by its own `make`.
        """
        found = self._run(self._core.look(key, ttl))
        if isinstance(found, Item):
            value: V = found.value
            return value
        return self._flights.run(
            self._core.stored_key(key),
            lambda: self._run(self._core.make(key, make, ttl, found)),
            copied=self._core.copied,
            on_wait=self._core.counters.waited,
        )

    def memoize(
        self,
        ttl: float | None = None,
        *,
        key: Callable[..., str | bytes] | None = None,
        prefix: str | None = None,
    ) -> Callable[[Callable[P, V]], CachedFunction[P, V, bool]]:
        """
        Return a decorator for a function whose results are kept, as by `get_or_set`.

        Args:
            ttl: Seconds.
            key: Returns the key for the arguments of a call. For a method it is called
                with the instance first. None: see `CallKeys`.
            prefix: In the place of module and name of the function in its keys.

        Raises:
            InvalidArgumentError: The function is a coroutine, or its name is not its own.
        """

        def decorate(function: Callable[P, V]) -> CachedFunction[P, V, bool]:
            if inspect.iscoroutinefunction(function):
                raise InvalidArgumentError(
                    f"{function.__qualname__} is a coroutine; use AsyncClient.memoize"
                )
            key_of = CallKeys(function, key, prefix).of
            get_or_set = partial(self.get_or_set, ttl=ttl)
            return CachedFunction(function, key_of, get_or_set, self.delete)

        return decorate

    # --- The client itself --------------------------------------------------------------

    def metrics(self) -> Metrics:
        """Return the numbers since the client was made; a forked child goes on counting."""
        return self._core.metrics(self._transport.connections())

    def close(self) -> None:
        """Close all connections; those in use when their operations end."""
        self._is_closed = True
        self._transport.keep(())
        self._workers.close()

    def _after_fork(self) -> None:
        """Begin without the connections and threads of the parent, in a child process."""
        self._core.after_fork()
        self._transport.abandon()
        self._flights = Flights()
        self._workers = Workers(self._core.options.connections_max)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- Steps --------------------------------------------------------------------------

    def _many(self, calls: list[Callable[[], T]]) -> list[T]:
        self._check_open()
        results = self._workers.run(calls)
        error = first_error(results)
        if error is not None:
            raise error
        return cast("list[T]", results)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientUsageError("the client is closed")

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


class Reader:
    """
    A value that is read in parts, by one thread at a time; see `Client.stream`.

    Attributes:
        stat: What is known of it.
    """

    def __init__(self, core: Core[Any], streamed: Streamed) -> None:
        """Take what `Core.stream` has returned."""
        self.stat: Final[Stat] = streamed.stat
        self._core: Final = core
        self._streamed: Final = streamed

    def read(self, size: int = -1) -> bytes:
        """
        Return up to `size` bytes, less only at the end; with -1 all that are left.

        Raises:
            NodeError: The node did not send all of the value; with any `on_error`.
        """
        body: Body = self._streamed.body
        try:
            return body.read(None if size < 0 else size)
        except NodeError as error:
            self._core.stream_failed(self._streamed.node, error)
            raise

    def __iter__(self) -> Iterator[bytes]:
        """Yield all parts that are left."""
        while part := self.read(_PART_BYTES):
            yield part


def _listed(keys: Iterable[K]) -> list[K]:
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError(f"{keys!r} is one key; get_many takes several")
    return list(dict.fromkeys(keys))


_clients: Final[weakref.WeakSet[Client[Any]]] = weakref.WeakSet()


def _after_fork() -> None:
    for client in _clients:
        client._after_fork()  # noqa: SLF001 - Of this module.


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_after_fork)
