"""Asynchronous functions whose results are kept in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from volcache_client.memo import Kept

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from volcache_client.aio import AsyncClient

P = ParamSpec("P")
V = TypeVar("V")


class AsyncMemoized(Kept[P], Generic[P, V]):
    """
    A function whose results are kept; see `AsyncClient.memoize`.

    Attributes:
        __wrapped__: The function itself.
    """

    __wrapped__: Callable[..., Awaitable[V]]
    _client: AsyncClient[V]
    _function: Callable[P, Awaitable[V]]

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the result for these arguments, from the cache if it is there."""
        call: tuple[Any, ...] = (*self._bound, *args)
        return await self._client.get_or_set(
            self._keys.of(*call, **kwargs),
            lambda: self._function(*call, **kwargs),
            self._ttl,
        )

    async def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the result of a call; return whether it was stored."""
        return await self._client.delete(self.key(*args, **kwargs))
