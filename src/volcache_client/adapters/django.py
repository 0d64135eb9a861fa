# ruff: noqa: ANN401, ASYNC109 - Django has no types, and a timeout is that of the value.
"""
A cache backend for Django.

    CACHES = {
        "default": {
            "BACKEND": "volcache_client.adapters.django.VolcacheCache",
            "LOCATION": "http://cache.example:8080",
            "OPTIONS": {"on_error": "miss"},
        }
    }

docs/ADAPTERS.md has the settings and what is different from other backends.
"""

from __future__ import annotations

import math
import os
from asyncio import get_running_loop
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary, finalize

from volcache_client.adapters._keys import safe_key
from volcache_client.aio import AsyncClient
from volcache_client.client import Client
from volcache_client.errors import ForeignValueError
from volcache_client.exchanges import run
from volcache_client.keys import TTL_MAX
from volcache_client.serializers import Bytes, Json, MsgPack, SignedPickle, make_codec

try:
    from django.conf import settings
    from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
    from django.utils.module_loading import import_string
except ImportError as error:
    raise ImportError(
        "volcache_client.adapters.django needs Django: pip install Django"
    ) from error

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping


# Of a value without a timeout; `max_ttl` of the service applies.
NEVER: Final = math.inf
DEFAULT_PREFIX: Final = "django/"
_NAMED: Final = {"json": Json, "msgpack": MsgPack}


def _both(steps: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """
    Return a decorator's result that becomes two methods of the class.

    One uses the client for threads, the other one, with an "a" before its name, that of the
    running loop. Both are the same steps, which get the client as an argument.
    """
    return _Both(steps)


class _Both:
    """See `_both`."""

    def __init__(self, steps: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._steps = steps

    def __set_name__(self, owner: type, name: str) -> None:
        steps = self._steps

        def method(cache: VolcacheCache, *args: Any, **named: Any) -> Any:
            return run(steps(cache, _Awaited(cache.client), *args, **named))

        async def amethod(cache: VolcacheCache, *args: Any, **named: Any) -> Any:
            client = await cache._shared.of_loop()  # noqa: SLF001 - Of this module.
            return await steps(cache, client, *args, **named)

        for made, its_name in ((method, name), (amethod, f"a{name}")):
            made.__name__, made.__doc__ = its_name, steps.__doc__
            setattr(owner, its_name, made)


class _Awaited:
    """A client for threads whose methods are awaited, but never wait for a loop."""

    def __init__(self, client: Client[bytes]) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._client, name)

        async def call(*args: Any, **named: Any) -> Any:
            return method(*args, **named)

        return call


class VolcacheCache(BaseCache):  # type: ignore[misc] # Django has no types.
    """
    Django's cache in volcache; each method as Django documents it.

    Backends of the same settings share one client, in all threads of the process.
    """

    def __init__(self, location: Any, params: Mapping[str, Any]) -> None:
        """
        Take LOCATION, and the other settings of the cache.

        Raises:
            InvalidArgumentError: LOCATION, OPTIONS or the serializer is wrong.
        """
        super().__init__(params)
        options = {"prefix": DEFAULT_PREFIX, **(params.get("OPTIONS") or {})}
        self._serializer = _serializer(options.pop("serializer", "pickle"))
        content_type = make_codec(self._serializer).content_type
        self._shared = _shared_client(location, content_type, options)

    @property
    def client(self) -> Client[bytes]:
        """The client, for what Django has no method for."""
        return self._shared.client

    # --- Reading ------------------------------------------------------------------------

    @_both
    async def get(
        self, client: Any, key: str, default: Any = None, version: int | None = None
    ) -> Any:
        """Return a value, or the default."""
        for value in self._loaded(await client.get(self._key(key, version))):
            return value
        return default

    @_both
    async def get_many(
        self, client: Any, keys: Iterable[str], version: int | None = None
    ) -> dict[str, Any]:
        """Return the values that are there, by key; they are asked for at once."""
        wanted = {self._key(key, version): key for key in keys}
        found = await client.get_many(wanted)
        return {
            wanted[key]: value for key in found for value in self._loaded(found[key])
        }

    @_both
    async def has_key(self, client: Any, key: str, version: int | None = None) -> bool:
        """Return whether there is a value; it is not read."""
        return await client.stat(self._key(key, version)) is not None

    # --- Writing ------------------------------------------------------------------------

    @_both
    async def set(
        self,
        client: Any,
        key: str,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> None:
        """Store a value; what cannot be stored at least replaces the one before."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        data = self._serializer.dumps(value)
        if seconds <= 0 or await client.set(where, data, seconds) is None:
            await client.delete(where)

    @_both
    async def add(
        self,
        client: Any,
        key: str,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> bool:
        """Store a value if there is none; return whether there was none."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        if seconds <= 0:
            return await client.stat(where) is None
        return (
            await client.add(where, self._serializer.dumps(value), seconds) is not None
        )

    @_both
    async def set_many(
        self,
        client: Any,
        data: Mapping[str, Any],
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> list[str]:
        """Store values at once; return the keys of those that were not stored."""
        wanted = {self._key(key, version): key for key in data}
        seconds = self._seconds(timeout)
        if seconds <= 0:
            await client.delete_many(wanted)
            return []
        values = {
            where: self._serializer.dumps(data[key]) for where, key in wanted.items()
        }
        done = await client.set_many(values, seconds)
        failed = [where for where in wanted if where not in done]
        await client.delete_many(failed)
        return [wanted[where] for where in failed]

    @_both
    async def touch(
        self,
        client: Any,
        key: str,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> bool:
        """Store a value again with another timeout; return whether it was there."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        if seconds <= 0:
            return bool(await client.delete(where))
        return bool(await client.touch(where, seconds))

    @_both
    async def delete(self, client: Any, key: str, version: int | None = None) -> bool:
        """Remove a value; return whether it was there."""
        return bool(await client.delete(self._key(key, version)))

    @_both
    async def delete_many(
        self, client: Any, keys: Iterable[str], version: int | None = None
    ) -> None:
        """Remove values at once."""
        await client.delete_many([self._key(key, version) for key in keys])

    @_both
    async def clear(self, client: Any) -> None:
        """
        Make everything below the prefix a miss, of all versions and key prefixes.

        Raises:
            CacheError: An instance has not done it: OPTIONS needs `admin_token`, and nginx
                does not pass it on.
        """
        await client.clear()

    @_both
    async def incr(
        self, client: Any, key: str, delta: int = 1, version: int | None = None
    ) -> Any:
        """
        Add to a number, in one step for all clients; it keeps its timeout.

        Raises:
            ValueError: There is no value, or the cache does not store the result.
        """
        where = self._key(key, version)
        tried = None
        while True:
            item = await client.get_item(where)
            # The ETag that was refused is there again: not a change, but an outage.
            if item is None or item.stat.etag == tried:
                raise ValueError(f"Key '{key}' not found")
            tried = item.stat.etag
            numbers = self._loaded(item.value)
            if not numbers:
                raise ValueError(f"Key '{key}' not found")
            number = numbers[0] + delta
            left = NEVER if item.stat.ttl is None else max(item.stat.ttl, 1)
            data = self._serializer.dumps(number)
            if await client.cas(where, data, tried, left) is not None:
                return number

    @_both
    async def get_or_set(
        self,
        client: Any,
        key: str,
        default: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> Any:
        """Return a value; if there is none, one of all processes calls the function."""

        def make() -> Any:
            return self._serializer.dumps(default() if callable(default) else default)

        where, seconds = self._key(key, version), self._seconds(timeout)
        if seconds > 0:
            stored = await client.get_or_set(where, make, seconds)
        else:
            stored = await client.get(where)
        for value in self._loaded(stored):
            return value
        made = make()
        if seconds > 0:  # What is stored is not ours.
            await client.set(where, made, seconds)
        return self._serializer.loads(made)

    # --- Parts --------------------------------------------------------------------------

    def _loaded(self, stored: bytes | None) -> list[Any]:
        """Return a list of the value; an empty one for a miss, as what is not ours is."""
        try:
            return [] if stored is None else [self._serializer.loads(stored)]
        except ForeignValueError:
            return []

    def _key(self, key: str, version: int | None) -> str:
        return safe_key(self.make_and_validate_key(key, version=version))

    def _seconds(self, timeout: Any) -> float:
        """Return seconds; 0 and less for what is not to be stored."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return NEVER if timeout is None or timeout > TTL_MAX else float(timeout)


class _Encoded(Bytes):
    """Values that a serializer has made, which the client cannot tell from None."""

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type


class _Shared:
    """
    The clients of the same settings; they are closed when no backend uses them.

    Attributes:
        client: For threads.
    """

    def __init__(self, location: Any, **options: Any) -> None:
        self.client: Final[Client[bytes]] = Client(location, **options)
        self._location: Final = location
        self._options: Final = options
        self._by_loop: Final[
            dict[AbstractEventLoop, tuple[AsyncClient[bytes], object]]
        ] = {}
        finalize(self, self.client.close)

    async def of_loop(self) -> AsyncClient[bytes]:
        """Return the client of the running loop, which is closed when the loop ends."""
        loop = get_running_loop()
        if loop not in self._by_loop:
            opened = self._open(loop)
            self._by_loop[loop] = (await anext(opened), opened)
        return self._by_loop[loop][0]

    async def _open(
        self, loop: AbstractEventLoop
    ) -> AsyncGenerator[AsyncClient[bytes]]:
        """Yield a client; a loop that ends closes its generators, and so this one."""
        client: AsyncClient[bytes] = AsyncClient(self._location, **self._options)
        try:
            yield client
        finally:
            self._by_loop.pop(loop, None)
            await client.close()


_clients: Final[WeakValueDictionary[str, _Shared]] = WeakValueDictionary()
_lock: Final = Lock()
# A thread that does not live in the child must not hold it there.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def _shared_client(
    location: Any, content_type: str, options: dict[str, Any]
) -> _Shared:
    """Return the client of these settings; Django makes a backend for each thread."""
    name = repr((location, content_type, sorted(options.items())))
    with _lock:
        shared = _clients.get(name)
        if shared is None:
            shared = _clients[name] = _Shared(
                location, serializer=_Encoded(content_type), **options
            )
        return shared


def _serializer(chosen: Any) -> Any:
    """
    Return the serializer of OPTIONS: a name, an object, a class, or the path of one.

    What it raises is raised as it is, as by Django's own backends.

    Raises:
        ImportError: There is no such path.
    """
    if chosen == "pickle":
        return SignedPickle(settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    if chosen in _NAMED:
        return _NAMED[chosen]()
    found = import_string(chosen) if isinstance(chosen, str) else chosen
    return found() if isinstance(found, type) else found or Bytes()
