# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
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
import pickle
from asyncio import get_running_loop
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

from volcache_client.adapters._keys import safe_key
from volcache_client.aio import AsyncClient
from volcache_client.client import Client
from volcache_client.errors import SerializationError
from volcache_client.exchanges import run
from volcache_client.keys import TTL_MAX
from volcache_client.methods import AsyncMethods
from volcache_client.serializers import SignedPickle

try:
    from django.conf import settings
    from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
    from django.utils.module_loading import import_string
except ImportError as error:
    raise ImportError(
        "volcache_client.adapters.django needs Django: pip install Django"
    ) from error

# Of a value without a timeout; `max_ttl` of the service applies.
NEVER: Final = math.inf
DEFAULT_PREFIX: Final = "django/"
_MISSING: Final = object()


class _Clients:
    """
    The clients of the same settings; closed when no backend uses them, or with the loop.

    Attributes:
        client: For threads.
    """

    def __init__(self, location: Any, options: dict[str, Any]) -> None:
        self.client: Final[Client[Any]] = Client(location, **options)
        self._make: Final = partial(AsyncClient, location, **options)
        self._by_loop: Final = WeakKeyDictionary[Any, "AsyncClient[Any]"]()
        finalize(self, self.client.close)

    def of_loop(self) -> AsyncClient[Any]:
        """Return that of the running loop."""
        loop = get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = self._make()
        return self._by_loop[loop]


# By their settings: Django makes a backend for each thread.
_clients: Final = WeakValueDictionary[str, _Clients]()


class _UnpicklableError(SerializationError, pickle.PicklingError):
    """What applications and libraries of Django expect of a value that is not pickled."""


class _Pickle(SignedPickle):
    """See `_UnpicklableError`."""

    def dumps(self, value: Any, /) -> bytes:
        try:
            return super().dumps(value)
        except SerializationError as error:
            raise _UnpicklableError(str(error)) from error


class _Awaited:
    """A client for threads whose methods are awaited, but never wait for a loop."""

    def __init__(self, client: Client[Any]) -> None:
        self._client: Final = client

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(AsyncMethods, name), self._client)


def _both(steps) -> Any:
    """
    Return a decorator's result that becomes two methods of the class.

    One uses the client for threads, the other one, with an "a" before its name, that of the
    running loop. Both take the same steps, which have the client as an argument.
    """
    return _Both(steps)


class _Both:
    """See `_both`."""

    def __init__(self, steps: Any) -> None:
        self._steps: Final = steps

    def __set_name__(self, owner: type, name: str) -> None:
        steps = self._steps

        def method(cache, *args, **named):
            return run(steps(cache, _Awaited(cache.client), *args, **named))

        async def amethod(cache, *args, **named):
            client = cache._shared.of_loop()  # noqa: SLF001 - Of this module.
            return await steps(cache, client, *args, **named)

        for made, its_name in ((method, name), (amethod, f"a{name}")):
            made.__name__, made.__doc__ = its_name, steps.__doc__
            setattr(owner, its_name, made)


class VolcacheCache(BaseCache):  # type: ignore[misc] # Django has no types.
    """
    Django's cache in volcache; each method as Django documents it.

    Backends of the same settings share one client, in all threads of the process.
    """

    def __init__(self, location, params) -> None:
        """
        Take LOCATION, and the other settings of the cache.

        Raises:
            InvalidArgumentError: LOCATION, OPTIONS or the serializer is wrong.
        """
        super().__init__(params)
        options: dict[str, Any] = {"prefix": DEFAULT_PREFIX, "serializer": "pickle"}
        options |= params.get("OPTIONS") or {}
        secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
        name = repr((location, secrets, sorted(options.items())))
        shared = _clients.get(name)
        if shared is None:
            chosen = options["serializer"]
            if chosen == "pickle":
                chosen = _Pickle(*secrets)
            elif isinstance(chosen, str) and chosen not in {"json", "msgpack"}:
                chosen = import_string(chosen)
            options["serializer"] = chosen() if isinstance(chosen, type) else chosen
            shared = _clients.setdefault(name, _Clients(location, options))
        self._shared: Final = shared

    @property
    def client(self) -> Client[Any]:
        """The client, for what Django has no method for."""
        return self._shared.client

    @_both
    async def get(self, client, key, default=None, version=None):
        """Return a value, or the default."""
        return await client.get(self._key(key, version), default)

    @_both
    async def get_many(self, client, keys, version=None):
        """Return the values that are there, by key; they are asked for at once."""
        wanted = {self._key(key, version): key for key in keys}
        found = await client.get_many(wanted)
        return {wanted[key]: value for key, value in found.items()}

    @_both
    async def has_key(self, client, key, version=None):
        """Return whether there is a value; it is not read."""
        return await client.exists(self._key(key, version))

    @_both
    async def set(self, client, key, value, timeout=DEFAULT_TIMEOUT, version=None):
        """Store a value; what cannot be stored at least replaces the one before."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        if seconds <= 0 or await client.set(where, value, seconds) is None:
            await client.delete(where)

    @_both
    async def add(self, client, key, value, timeout=DEFAULT_TIMEOUT, version=None):
        """Store a value if there is none; return whether there was none."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        if seconds <= 0:
            return not await client.exists(where)
        return await client.add(where, value, seconds) is not None

    @_both
    async def set_many(self, client, data, timeout=DEFAULT_TIMEOUT, version=None):
        """Store values at once; return the keys of those that were not stored."""
        wanted, seconds = (
            {self._key(k, version): k for k in data},
            self._seconds(timeout),
        )
        if seconds <= 0:
            await client.delete_many(wanted)
            return []
        values = {where: data[key] for where, key in wanted.items()}
        failed = values.keys() - await client.set_many(values, seconds)
        await client.delete_many(failed)
        return [wanted[where] for where in failed]

    @_both
    async def touch(self, client, key, timeout=DEFAULT_TIMEOUT, version=None):
        """Store a value again with another timeout; return whether it was there."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        if seconds <= 0:
            return await client.delete(where)
        return await client.touch(where, seconds)

    @_both
    async def delete(self, client, key, version=None):
        """Remove a value; return whether it was there."""
        return await client.delete(self._key(key, version))

    @_both
    async def delete_many(self, client, keys, version=None):
        """Remove values at once."""
        await client.delete_many([self._key(key, version) for key in keys])

    @_both
    async def clear(self, client):
        """
        Make everything below the prefix a miss, of all versions and key prefixes.

        Raises:
            CacheError: An instance has not done it: OPTIONS needs `admin_token`, and nginx
                does not pass it on.
        """
        await client.clear()

    @_both
    async def incr(self, client, key, delta=1, version=None):
        """
        Add to a number, in one step for all clients; it keeps its timeout.

        Raises:
            ValueError: There is no value, or the cache does not store the result.
        """
        where, tried = self._key(key, version), None
        while True:
            item = await client.get_item(where)
            # The ETag that was refused is there again: not a change, but an outage.
            if item is None or item.stat.etag == tried:
                raise ValueError(f"Key '{key}' not found")
            tried, left = item.stat.etag, item.stat.ttl
            number = item.value + delta
            seconds = NEVER if left is None else max(left, 1)
            if await client.cas(where, number, tried, seconds) is not None:
                return number

    @_both
    async def get_or_set(
        self, client, key, default, timeout=DEFAULT_TIMEOUT, version=None
    ):
        """Return a value; if there is none, one of all processes calls the function."""
        where, seconds = self._key(key, version), self._seconds(timeout)
        make = default if callable(default) else lambda: default
        if seconds > 0:
            return await client.get_or_set(where, make, seconds)
        found = await client.get(where, _MISSING)
        return make() if found is _MISSING else found

    def _key(self, key, version) -> str:
        return safe_key(self.make_and_validate_key(key, version=version))

    def _seconds(self, timeout) -> float:
        """Return seconds; 0 and less for what is not to be stored."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return NEVER if timeout is None or timeout > TTL_MAX else float(timeout)
