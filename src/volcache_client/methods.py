"""The methods of `AsyncClient`; `client.py` makes those of `Client` of them."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, BinaryIO, ParamSpec, TypeVar, overload

from volcache_client.base import BaseClient, BaseReader
from volcache_client.making import Making
from volcache_client.memo import AsyncCachedFunction, memoized

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from volcache_client.keys import Key, Ttl
    from volcache_client.messages import Item, Stat

K = TypeVar("K", bound="str | bytes")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


class AsyncReader(BaseReader):
    """A value that is read in parts, by one task at a time; see `AsyncClient.stream`."""

    async def read(self, size: int = -1) -> bytes:
        """
        Return up to `size` bytes, less only at the end; with -1 all that are left.

        Raises:
            NodeError: The value ends before its size, with any `on_error`; what was read
                is not complete.
            ClientUsageError: The block of `stream` has ended.
        """
        return await self._body.read(size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield all parts that are left."""
        while part := await self.read(1 << 16):
            yield part


class AsyncMethods(BaseClient[V]):
    """
    A client of one URL or of many nodes; used by all tasks of one event loop.

    The nodes are one address, such as "http://127.0.0.1:8080"; a list of them, with
    weights; the path of such a list; or a function that returns one. For the options see
    `Options`; without a `serializer`, values are bytes. No connection is opened yet. A
    wrong argument is an `InvalidArgumentError`; its text says what is allowed. The client
    is closed by `close`, or by leaving `async with`.

    A key is str, as UTF-8, or bytes. `ttl` is in seconds; None: `default_ttl` of the
    options; `math.inf`: no expiry.

    All methods that ask a node raise, besides what is listed with them:
        CacheError: See `errors.py` and the option `on_error`.
        InvalidKeyError: The service has no such key.
        ClientUsageError: The client is closed, or is used from another event loop.
    """

    _make_reader = AsyncReader

    # --- Reading ------------------------------------------------------------------

    @overload
    async def get(
        self, key: Key, default: None = None, *, touch: Ttl = None
    ) -> V | None: ...
    @overload
    async def get(self, key: Key, default: T, *, touch: Ttl = None) -> V | T: ...
    async def get(
        self, key: Key, default: T | None = None, *, touch: Ttl = None
    ) -> V | T | None:
        """Return the value of a key; the default for a miss. `touch`: its new `ttl`."""
        core = self._opened
        if touch is not None:
            found = await core.get_and_touch(key, touch)
        elif core.options.batch:
            found = await self._in_turn(key)
        else:
            found = await core.get(key)
        return default if found is None else found[0]

    async def exists(self, key: Key) -> bool:
        """Return whether there is a value, which is not read."""
        return await self._opened.stat(key) is not None

    async def ttl(self, key: Key) -> float | None:
        """Return the seconds until a value expires; `math.inf`: never; None: a miss."""
        found = await self._opened.stat(key)
        return None if found is None else math.inf if found.ttl is None else found.ttl

    async def get_item(self, key: Key) -> Item[V] | None:
        """Return the value of a key and what is known of it; None for a miss."""
        return await self._opened.get_item(key)

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """
        Return the values of those keys that are found, by the keys as they are given.

        The requests are sent in a row to each node, at the same time to all nodes. All keys
        are tried; then the error of the first one that failed is raised.
        """
        found = await self._many(self._opened.get_many(keys))
        return {key: value for key, (value,) in found.items()}

    async def stat(self, key: Key) -> Stat | None:
        """Return what is known of a value, which is not read; None for a miss."""
        return await self._opened.stat(key)

    @asynccontextmanager
    async def stream(self, key: Key) -> AsyncIterator[AsyncReader | None]:
        """
        Open a value to read it in parts, as bytes, without the serializer.

        It holds a connection until the end of the block. `timeout` applies between two
        parts, not to the whole.

        Yields:
            A reader; None for a miss.

        Example:
            async with client.stream("large") as reader:
                if reader is not None:
                    async for part in reader:
                        file.write(part)
        """
        streamed = await self._opened.stream(key)
        if streamed is None:
            yield None
            return
        stat, body = streamed
        try:
            yield self._make_reader(stat, body)
        finally:
            body.close()

    # --- Writing ------------------------------------------------------------------

    async def set(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: str | None = None
    ) -> str | None:
        """Store a value; return its ETag, None if it was dropped."""
        return await self._opened.set("set", key, value, ttl, content_type)

    async def set_many(self, values: Mapping[K, V], ttl: Ttl = None) -> dict[K, str]:
        """Store values, as `get_many`; return the ETags of those that were stored."""
        return await self._many(self._opened.set_many(values, ttl))

    async def set_file(
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
        return await self._opened.set_file(key, source, ttl, content_type)

    async def add(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: str | None = None
    ) -> str | None:
        """Store a value if there is none; return its ETag, None if there is one."""
        return await self._opened.set("add", key, value, ttl, content_type)

    async def replace(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: str | None = None
    ) -> str | None:
        """Store a value if there is one; return its ETag, None if there is none."""
        return await self._opened.set("replace", key, value, ttl, content_type)

    async def cas(
        self,
        key: Key,
        value: V,
        etag: str,
        ttl: Ttl = None,
        *,
        content_type: str | None = None,
    ) -> str | None:
        """Store a value if that with the ETag is stored; return its ETag, else None."""
        core = self._opened
        return await core.set("cas", key, value, ttl, content_type, etag)

    async def touch(self, key: Key, ttl: Ttl = None) -> bool:
        """
        Let a value expire at another time; return whether there is one.

        It is read and stored again, unless it changes meanwhile; `incr` and `decr` as well.

        Raises:
            ConflictError: It has changed 16 times meanwhile.
        """
        return bool(await self._opened.touch(key, ttl))

    expire = touch

    async def incr(
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
        return await self._opened.incr(key, delta, initial, ttl)

    async def decr(
        self, key: Key, delta: int = 1, *, initial: int | None = None, ttl: Ttl = None
    ) -> int | None:
        """Subtract from a number, which stops at 0; otherwise as `incr`."""
        return await self._opened.incr(key, delta, initial, ttl, sign=-1)

    async def append(self, key: Key, data: bytes) -> int | None:
        """Add bytes to the end of a value; return its size, None if there is none."""
        return await self._opened.append(key, data)

    async def pop(self, key: Key, *default: T) -> V | T:
        """
        Remove a value and return it; of several callers one has it.

        Raises:
            KeyError: There is none, and no default.
        """
        for value in await self._opened.pop(key) or default:
            return value
        raise KeyError(key)

    @asynccontextmanager
    async def lock(
        self, key: Key, ttl: Ttl, *, wait: float = 0.0
    ) -> AsyncIterator[int]:
        """
        Hold a lock, between all processes, until the end of the block or for `ttl`.

        Yields:
            A token, above those of all that held it before: what the lock protects can
            refuse a lower one, of a process that was too slow.

        Raises:
            ConflictError: Another one holds it, also after `wait` seconds.
            CacheError: An outage, with any `on_error`.
        """
        held = await self._opened.acquire(key, ttl, wait)
        try:
            yield held.token
        finally:
            await self._opened.release(held.stored, held.etag)

    async def delete(self, key: Key, etag: str | None = None) -> bool:
        """Remove a value, that with the ETag if given; return whether it was stored."""
        return bool(await self._opened.delete(key, etag))

    async def delete_many(self, keys: Iterable[Key]) -> int:
        """Remove values, as `get_many`; return how many there were."""
        return sum((await self._many(self._opened.delete_many(keys))).values())

    async def purge(self, prefix: Key) -> None:
        """
        Make everything stored so far under a prefix a miss, on all nodes.

        Raises:
            InvalidArgumentError: The prefix is empty, or there is no `admin_token`.
            CacheError: The first error of a node, with any `on_error`; all were asked.
        """
        await self._opened.purge(prefix)

    async def clear(self) -> None:
        """Make everything under the prefix of the client a miss, or all; see `purge`."""
        await self._opened.purge(None)

    # --- Making what is missing ---------------------------------------------------

    async def get_or_set(
        self,
        key: Key,
        make: Callable[[], Awaitable[V] | V],
        ttl: Ttl = None,
        *,
        stale: float = 0.0,
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
        making = Making(self._opened, key, make, ttl, stale)
        found = await making.find()
        if found is None:
            return await self._make_once(making.stored, making.make)
        if making.is_stale(found):
            self._renew(making)
        return found.value

    def memoize(
        self,
        ttl: Ttl = None,
        *,
        key: Callable[..., Key] | None = None,
        prefix: str | None = None,
        stale: float = 0.0,
    ) -> Callable[[Callable[P, Awaitable[V]]], AsyncCachedFunction[P, V]]:
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
            async def thumbnail(name: str, width: int) -> bytes: ...

            await thumbnail("a.jpg", 100)
            await thumbnail.forget("a.jpg", 100)
        """
        return memoized(self.get_or_set, self.delete, ttl, stale, key, prefix)
