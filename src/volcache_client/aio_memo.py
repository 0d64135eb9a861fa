"""Asynchronous functions whose results are kept in the cache."""

from __future__ import annotations

from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from volcache_client.aio import AsyncClient
    from volcache_client.memo import CallKeys

P = ParamSpec("P")
V = TypeVar("V")


class AsyncMemoized(Generic[P, V]):
    """
    A function whose results are kept; see `AsyncClient.memoize`.

    Attributes:
        __wrapped__: The function itself.
    """

    __wrapped__: Callable[..., Awaitable[V]]

    def __init__(
        self,
        client: AsyncClient[V],
        function: Callable[P, Awaitable[V]],
        keys: CallKeys,
        ttl: float | None,
        bound: tuple[object, ...] = (),
    ) -> None:
        """Take what `memoize` was given; `bound` are the first arguments of a method."""
        update_wrapper(self, function)
        self._client: Final = client
        self._function: Final = function
        self._keys: Final = keys
        self._ttl: Final = ttl
        self._bound: Final = bound

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the result for these arguments, from the cache if it is there."""
        call: tuple[Any, ...] = (*self._bound, *args)
        return await self._client.get_or_set(
            self._keys.of(*call, **kwargs),
            lambda: self._function(*call, **kwargs),
            self._ttl,
        )

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str | bytes:
        """Return the key of a call."""
        return self._keys.of(*self._bound, *args, **kwargs)

    async def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the result of a call; return whether it was stored."""
        return await self._client.delete(self.key(*args, **kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Return a method, which passes the instance on."""
        if instance is None:
            return self
        return type(self)(
            self._client,
            self._function,
            self._keys,
            self._ttl,
            (*self._bound, instance),
        )
