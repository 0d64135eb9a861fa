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

import os
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary, finalize

from volcache_client.adapters._keys import safe_key
from volcache_client.client import Client
from volcache_client.serializers import Bytes, make_codec

try:
    from asgiref.sync import sync_to_async
    from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
    from django.utils.module_loading import import_string
except ImportError as error:
    raise ImportError(
        "volcache_client.adapters.django needs Django: pip install Django"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from volcache_client.serializers import Codec

P = ParamSpec("P")
T = TypeVar("T")
# Of a value without a timeout: 68 years, so that `default_ttl` of the service does not
# apply; its `max_ttl` does.
NEVER_SECONDS: Final = 2**31
DEFAULT_PREFIX: Final = "django/"


class VolcacheCache(BaseCache):  # type: ignore[misc] # Django has no types.
    """
    Django's cache in volcache; each method as Django documents it.

    Backends of the same settings share one client, in all threads of the process.
    """

    def __init__(self, location: Any, params: Mapping[str, Any]) -> None:  # noqa: ANN401
        """
        Take LOCATION, and the other settings of the cache.

        Raises:
            InvalidArgumentError: LOCATION, OPTIONS or the serializer is wrong.
        """
        super().__init__(params)
        options = {"prefix": DEFAULT_PREFIX, **(params.get("OPTIONS") or {})}
        self._serializer = _serializer(options.pop("serializer", "json"))
        self._shared = _shared_client(location, self._serializer.content_type, options)

    @property
    def client(self) -> Client[bytes]:
        """The client, for what Django has no method for."""
        return self._shared.client

    # --- Reading ------------------------------------------------------------------------

    def get(
        self,
        key: str,
        default: Any = None,  # noqa: ANN401 - Any value.
        version: int | None = None,
    ) -> Any:  # noqa: ANN401 - Any value.
        """Return a value, or the default."""
        stored = self.client.get(self._key(key, version))
        return default if stored is None else self._serializer.loads(stored)

    def get_many(
        self, keys: Iterable[str], version: int | None = None
    ) -> dict[str, Any]:
        """Return the values that are there, by key; they are asked for at once."""
        wanted = {self._key(key, version): key for key in keys}
        found = self.client.get_many(wanted)
        return {wanted[key]: self._serializer.loads(found[key]) for key in found}

    def has_key(self, key: str, version: int | None = None) -> bool:
        """Return whether there is a value; it is not read."""
        return self.client.stat(self._key(key, version)) is not None

    # --- Writing ------------------------------------------------------------------------

    def set(
        self,
        key: str,
        value: Any,  # noqa: ANN401 - Any value.
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401 - Or seconds, or None.
        version: int | None = None,
    ) -> None:
        """Store a value; what cannot be stored at least replaces the one before."""
        where = self._key(key, version)
        seconds = self._seconds(timeout)
        if seconds <= 0 or self.client.put(where, self._dumps(value), seconds) is None:
            self.client.delete(where)

    def add(
        self,
        key: str,
        value: Any,  # noqa: ANN401 - Any value.
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401 - Or seconds, or None.
        version: int | None = None,
    ) -> bool:
        """Store a value if there is none; return whether there was none."""
        where = self._key(key, version)
        seconds = self._seconds(timeout)
        if seconds <= 0:
            return self.client.stat(where) is None
        data = self._dumps(value)
        etag = self.client.add(where, data, seconds)
        return etag is not None

    def set_many(
        self,
        data: Mapping[str, Any],
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401 - Or seconds, or None.
        version: int | None = None,
    ) -> list[str]:
        """Store values at once; return the keys of those that were not stored."""
        wanted = {self._key(key, version): key for key in data}
        seconds = self._seconds(timeout)
        if seconds <= 0:
            self.delete_many(data, version)
            return []
        values = {where: self._dumps(data[key]) for where, key in wanted.items()}
        done = self.client.put_many(values, seconds)
        failed = [where for where in wanted if done.get(where) is None]
        for where in failed:
            self.client.delete(where)
        return [wanted[where] for where in failed]

    def touch(
        self,
        key: str,
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401 - Or seconds, or None.
        version: int | None = None,
    ) -> bool:
        """Store a value again with another timeout; return whether it was there."""
        where = self._key(key, version)
        seconds = self._seconds(timeout)
        if seconds <= 0:
            return self.client.delete(where)
        return self._change(where, lambda value: value, seconds) is not None

    def delete(self, key: str, version: int | None = None) -> bool:
        """Remove a value; return whether it was there."""
        return self.client.delete(self._key(key, version))

    def clear(self) -> None:
        """
        Make everything below the prefix a miss, of all versions and key prefixes.

        Raises:
            CacheError: An instance has not done it: OPTIONS needs `admin_token`, and nginx
                does not pass it on.
        """
        self.client.purge("")

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> Any:  # noqa: ANN401
        """
        Add to a number, in one step for all clients; it keeps its timeout.

        Raises:
            ValueError: There is no value, or the cache does not store the result.
        """

        def add(stored: bytes) -> bytes:
            return self._dumps(self._serializer.loads(stored) + delta)

        stored = self._change(self._key(key, version), add)
        if stored is None:
            raise ValueError(f"Key '{key}' not found")
        return self._serializer.loads(stored)

    def get_or_set(
        self,
        key: str,
        default: Any,  # noqa: ANN401 - A value, or a function that returns it.
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401 - Or seconds, or None.
        version: int | None = None,
    ) -> Any:  # noqa: ANN401 - Any value.
        """Return a value; if there is none, one of all processes calls the function."""

        def make() -> bytes:
            return self._dumps(default() if callable(default) else default)

        where = self._key(key, version)
        seconds = self._seconds(timeout)
        if seconds > 0:
            stored: bytes | None = self.client.get_or_set(where, make, seconds)
        else:
            stored = self.client.get(where)
        return self._serializer.loads(make() if stored is None else stored)

    # --- Async: in a thread, as Django's own where this class has no method ---------------

    async def aget_many(
        self, keys: Iterable[str], version: int | None = None
    ) -> dict[str, Any]:
        """See `get_many`."""
        return await _in_thread(self.get_many, keys, version)

    async def ahas_key(self, key: str, version: int | None = None) -> bool:
        """See `has_key`."""
        return await _in_thread(self.has_key, key, version)

    async def aset_many(
        self,
        data: Mapping[str, Any],
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401, ASYNC109 - That of the value.
        version: int | None = None,
    ) -> list[str]:
        """See `set_many`."""
        return await _in_thread(self.set_many, data, timeout, version)

    async def adelete_many(
        self, keys: Iterable[str], version: int | None = None
    ) -> None:
        """See `delete_many`."""
        await _in_thread(self.delete_many, keys, version)

    async def aincr(self, key: str, delta: int = 1, version: int | None = None) -> Any:  # noqa: ANN401
        """See `incr`."""
        return await _in_thread(self.incr, key, delta, version)

    async def aget_or_set(
        self,
        key: str,
        default: Any,  # noqa: ANN401 - A value, or a function that returns it.
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ANN401, ASYNC109 - That of the value.
        version: int | None = None,
    ) -> Any:  # noqa: ANN401 - Any value.
        """See `get_or_set`; the function is called in the thread."""
        return await _in_thread(self.get_or_set, key, default, timeout, version)

    # --- Parts --------------------------------------------------------------------------

    def _key(self, key: str, version: int | None) -> str:
        return safe_key(self.make_and_validate_key(key, version=version))

    def _seconds(self, timeout: Any) -> float:  # noqa: ANN401 - Seconds, None or default.
        """Return seconds; 0 and less for what is not to be stored."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return NEVER_SECONDS if timeout is None else min(timeout, NEVER_SECONDS)

    def _dumps(self, value: Any) -> bytes:  # noqa: ANN401 - Any value.
        return self._serializer.dumps(value)

    def _change(
        self,
        where: str,
        change: Callable[[bytes], bytes],
        seconds: float | None = None,
    ) -> bytes | None:
        """
        Replace a value unless it changes meanwhile, and otherwise try again.

        Args:
            where: Its key.
            change: Returns the new value for the one before.
            seconds: Its new timeout; None: what remains.

        Returns:
            The new value; None if there is none, or it could not be stored.
        """
        tried = None
        while True:
            item = self.client.get_item(where)
            # The ETag that was refused is there again: not a change, but an outage.
            if item is None or item.stat.etag == tried:
                return None
            tried = item.stat.etag
            data = change(item.value)
            remaining = item.stat.ttl
            left = NEVER_SECONDS if remaining is None else max(remaining, 1)
            ttl = left if seconds is None else seconds
            etag = self.client.replace(where, data, tried, ttl)
            if etag is not None:
                return data


class _Encoded(Bytes):
    """Values that a serializer has made, which the client cannot tell from None."""

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type


class _Shared:
    """A client that is closed when no backend uses it."""

    def __init__(self, client: Client[bytes]) -> None:
        self.client: Final = client
        finalize(self, client.close)


_clients: Final[WeakValueDictionary[str, _Shared]] = WeakValueDictionary()
_lock: Final = Lock()
# A thread that does not live in the child must not hold it there.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def _shared_client(
    location: Any,  # noqa: ANN401 - The client checks it.
    content_type: str,
    options: dict[str, Any],
) -> _Shared:
    """Return the client of these settings; Django makes a backend for each thread."""
    name = repr((location, content_type, sorted(options.items())))
    with _lock:
        shared = _clients.get(name)
        if shared is None:
            shared = _clients[name] = _Shared(
                Client(location, serializer=_Encoded(content_type), **options)
            )
        return shared


def _serializer(chosen: Any) -> Codec[Any]:  # noqa: ANN401 - It is checked.
    """
    Return the serializer of OPTIONS: "json", an object, a class, or the path of one.

    Raises:
        InvalidArgumentError: It is none.
    """
    if chosen == "json" or not isinstance(chosen, str | type):
        return make_codec(chosen)
    found = import_string(chosen) if isinstance(chosen, str) else chosen
    return make_codec(found() if isinstance(found, type) else found)


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    called: T = await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)
    return called
