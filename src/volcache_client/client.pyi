"""Made by `tools/make_client.py` of `methods.py`: edit that."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, ParamSpec, TypeVar, Unpack, overload

from volcache_client.base import BaseReader
from volcache_client.core import Source
from volcache_client.keys import Key, Ttl
from volcache_client.memo import SyncCachedFunction
from volcache_client.messages import Item, Stat
from volcache_client.options import OptionArguments
from volcache_client.serializers import ValueSerializer
from volcache_client.thread_client import ThreadClient

K = TypeVar("K", bound=str | bytes)
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

class Reader(BaseReader):
    """A value that is read in parts, by one thread at a time; see `Client.stream`."""

    def read(self, size: int = -1) -> bytes:
        """
        Return up to `size` bytes, less only at the end; with -1 all that are left.

        Raises:
            NodeError: The value ends before its size, with any `on_error`; what was read
                is not complete.
            ClientUsageError: The block of `stream` has ended.
        """

    def __iter__(self) -> Iterator[bytes]:
        """Yield all parts that are left."""

class Client(ThreadClient[V]):
    """
    A client of one URL or of many nodes; used by all threads of a process.

    The nodes are one address, such as "http://127.0.0.1:8080"; a list of them, with
    weights; the path of such a list; or a function that returns one. For the options see
    `Options`; without a `serializer`, values are bytes. No connection is opened yet. A
    wrong argument is an `InvalidArgumentError`; its text says what is allowed. The client
    is closed by `close`, or by leaving `with`.

    A key is str, as UTF-8, or bytes. `ttl` is in seconds; None: `default_ttl` of the
    options; `math.inf`: no expiry.

    All methods that ask a node raise, besides what is listed with them:
        CacheError: See `errors.py` and the option `on_error`.
        InvalidKeyError: The service has no such key.
        ClientUsageError: The client is closed.
    """

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
    _make_reader = Reader

    @overload
    def get(self, key: Key, default: None = None, *, touch: Ttl = None) -> V | None: ...
    @overload
    def get(self, key: Key, default: T, *, touch: Ttl = None) -> V | T: ...
    def exists(self, key: Key) -> bool:
        """Return whether there is a value, which is not read."""

    def ttl(self, key: Key) -> float | None:
        """Return the seconds until a value expires; `math.inf`: never; None: a miss."""

    def get_item(self, key: Key) -> Item[V] | None:
        """Return the value of a key and what is known of it; None for a miss."""

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """
        Return the values of those keys that are found, by the keys as they are given.

        The requests are sent in a row to each node, at the same time to all nodes. All keys
        are tried; then the error of the first one that failed is raised.
        """

    def stat(self, key: Key) -> Stat | None:
        """Return what is known of a value, which is not read; None for a miss."""

    @contextmanager
    def stream(self, key: Key) -> Iterator[Reader | None]:
        """
        Open a value to read it in parts, as bytes, without the serializer.

        It holds a connection until the end of the block. `timeout` applies between two
        parts, not to the whole.

        Yields:
            A reader; None for a miss.

        Example:
            with client.stream("large") as reader:
                if reader is not None:
                    for part in reader:
                        file.write(part)
        """

    def set(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: str | None = None
    ) -> str | None:
        """Store a value; return its ETag, None if it was dropped."""

    def set_many(self, values: Mapping[K, V], ttl: Ttl = None) -> dict[K, str]:
        """Store values, as `get_many`; return the ETags of those that were stored."""

    def set_file(
        self,
        key: Key,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: Ttl = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """
        Store a file, without the serializer; return its ETag, None if it was dropped.

        It is not in memory as a whole. `timeout` applies to each part that is sent.

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

    def add(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: str | None = None
    ) -> str | None:
        """Store a value if there is none; return its ETag, None if there is one."""

    def replace(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: str | None = None
    ) -> str | None:
        """Store a value if there is one; return its ETag, None if there is none."""

    def cas(
        self,
        key: Key,
        value: V,
        etag: str,
        ttl: Ttl = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value if that with the ETag is stored; return its ETag, else None."""

    def touch(self, key: Key, ttl: Ttl = None) -> bool:
        """
        Let a value expire at another time; return whether there is one.

        It is read and stored again, unless it changes meanwhile; `incr` and `decr` as well.

        Raises:
            ConflictError: It has changed 16 times meanwhile.
        """
    expire = touch

    def incr(
        self, key: Key, delta: int = 1, *, initial: int | None = None, ttl: Ttl = None
    ) -> int | None:
        """
        Add to a number of 64 bits, stored as ASCII digits; it starts again at 2**64.

        Args:
            key: Of the number.
            delta: What is added.
            initial: Stored and returned if there is no number; None: nothing is stored.
            ttl: Of `initial`; the time to live of a number that is there stays.

        Returns:
            The number; None if there is none.

        Raises:
            InvalidArgumentError: An argument is wrong, or the value is not a number.
            ConflictError: It has changed 16 times meanwhile.
        """

    def decr(
        self, key: Key, delta: int = 1, *, initial: int | None = None, ttl: Ttl = None
    ) -> int | None:
        """Subtract from a number, which stops at 0; otherwise as `incr`."""

    def append(self, key: Key, data: bytes) -> int | None:
        """Add bytes to the end of a value; return its size, None if there is none."""

    def pop(self, key: Key, *default: T) -> V | T:
        """
        Remove a value and return it; of several callers one has it.

        Raises:
            KeyError: There is none, and no default.
        """

    @contextmanager
    def lock(self, key: Key, ttl: Ttl, *, wait: float = 0.0) -> Iterator[int]:
        """
        Hold a lock, between all processes, until the end of the block or for `ttl`.

        Yields:
            A token, above those of all that held it before: what the lock protects can
            refuse a lower one, of a process that was too slow.

        Raises:
            ConflictError: Another one holds it, also after `wait` seconds.
            CacheError: An outage, with any `on_error`.
        """

    def delete(self, key: Key, etag: str | None = None) -> bool:
        """Remove a value, that with the ETag if given; return whether it was stored."""

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Remove values, as `get_many`; return how many there were."""

    def purge(self, prefix: Key) -> None:
        """
        Make everything stored so far under a prefix a miss, on all nodes.

        Raises:
            InvalidArgumentError: The prefix is empty, or there is no `admin_token`.
            CacheError: The first error of a node, with any `on_error`; all were asked.
        """

    def clear(self) -> None:
        """Make everything under the prefix of the client a miss, or all; see `purge`."""

    def get_or_set(
        self, key: Key, make: Callable[[], V], ttl: Ttl = None, *, stale: float = 0.0
    ) -> V:
        """
        Return the value of a key; make and store it if there is none.

        Of all callers, also of other processes, one makes it, and the others wait; see
        `lease_seconds` of `Options`. It is returned also if it cannot be stored. What
        `make` raises is raised for all callers of this process that wait.

        Args:
            key: Of the value.
            make: Returns the value.
            ttl: Seconds.
            stale: Seconds for which an expired value is still returned, while one of all
                callers renews it in the background. Other methods read it for that time
                like any value. An error of the renewal is logged.

        Raises:
            ClientUsageError: `make` calls this for the key that it makes.
        """

    def memoize(
        self,
        ttl: Ttl = None,
        *,
        key: Callable[..., Key] | None = None,
        prefix: str | None = None,
        stale: float = 0.0,
    ) -> Callable[[Callable[P, V]], SyncCachedFunction[P, V]]:
        """
        Return a decorator for a function whose results are kept, as by `get_or_set`.

        Args:
            ttl: Seconds.
            key: Returns the key for the arguments of a call. For a method it is called
                with the instance first. None: see `CallKeys`.
            prefix: In the place of module and name of the function in its keys.
            stale: See `get_or_set`.

        Raises:
            InvalidArgumentError: An argument is wrong, the function is one for the other
                client, or its name is not its own. Also for `@memoize` without
                parentheses.

        Example:
            @client.memoize(ttl=60)
            def thumbnail(name: str, width: int) -> bytes: ...

            thumbnail("a.jpg", 100)
            thumbnail.forget("a.jpg", 100)
        """
