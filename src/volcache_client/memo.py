"""Functions whose results are kept in the cache: the keys of their calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial, update_wrapper
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from volcache_client.errors import InvalidArgumentError
from volcache_client.keys import checked_ttl

if TYPE_CHECKING:
    from volcache_client.keys import Ttl

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

MEMO_PREFIX: Final = "memo/"
_PLAIN: Final = (type(None), bool, int, float, str, bytes)


class CallKeys:
    """
    The keys of the calls of one function.

    Without a function `key`, the key is `memo/NAME/DIGEST`: the prefix or module and
    qualified name, and the SHA-256 of the arguments, by the names of the parameters and
    with their defaults: all ways to write a call have one key. Equal arguments of
    different types, such as 1 and True, have different keys.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        key: Callable[..., str | bytes] | None,
        prefix: str | None,
    ) -> None:
        """
        Find the name of the function.

        Args:
            function: Whose calls they are.
            key: Returns the key for the arguments of a call; it is used as it is.
            prefix: In place of module and qualified name.

        Raises:
            InvalidArgumentError: Both are given, or neither, and other functions may have
                the same name.
        """
        if key is not None and prefix is not None:
            raise InvalidArgumentError("memoize takes key or prefix, not both")
        self._key: Final = key
        self._name = prefix or ""
        if key is None:
            self._signature = inspect.signature(function)
            self._name = prefix or _name_of(function)

    def of(self, *args: Any, **kwargs: Any) -> str | bytes:  # noqa: ANN401
        """
        Return the key of a call.

        Raises:
            InvalidArgumentError: The text of an argument does not identify it.
            TypeError: The function does not take such arguments.
        """
        if self._key is not None:
            return self._key(*args, **kwargs)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        listed = [
            f"{name}={self._text(name, bound.arguments[name])}"
            for name in bound.arguments
        ]
        data = ",".join(listed).encode("utf-8", "surrogatepass")
        return f"{MEMO_PREFIX}{self._name}/{sha256(data).hexdigest()}"

    def _text(self, name: str, value: object) -> str:
        try:
            return _text(value)
        except RecursionError:
            found = "too many levels"
        except TypeError as error:
            found = str(error)
        raise InvalidArgumentError(
            f"{self._name}: argument {name} has {found}; allowed are None, bool, int,"
            " float, str, bytes, and tuples, lists, sets and dicts of these; or give"
            " memoize a function `key` that returns the key of a call"
        )


def _name_of(function: Callable[..., Any]) -> str:
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "<" in name:
        raise InvalidArgumentError(
            f"{module}.{name}: other functions may have this name too, and would have the"
            " same keys; give memoize a `prefix` that only this function has"
        )
    return f"{module}.{name}"


def _text(argument: object) -> str:
    """
    Return text that no other argument has.

    Raises:
        TypeError: Its type is not one of those whose text identifies a value.
    """
    kind = type(argument)
    if kind in _PLAIN:
        return repr(argument)
    texts: Iterable[str]
    if isinstance(argument, dict) and kind is dict:
        texts = sorted(f"{_text(key)}:{_text(argument[key])}" for key in argument)
    elif isinstance(argument, tuple | list) and kind in {tuple, list}:
        texts = map(_text, argument)
    elif isinstance(argument, set | frozenset) and kind in {set, frozenset}:
        texts = sorted(map(_text, argument))
    else:
        raise TypeError(f"a {kind.__name__}")
    return f"{kind.__name__}({','.join(texts)})"


def memoized(
    get_or_set: Callable[..., R],
    delete: Callable[[str | bytes], D],
    ttl: Ttl,
    stale: float,
    key: Callable[..., str | bytes] | None,
    prefix: str | None,
) -> Callable[[Callable[P, R]], CachedFunction[P, R, D]]:
    """Return the decorator of `memoize`; see there."""
    if callable(ttl):
        raise InvalidArgumentError(
            f"memoize was given {ttl!r} as ttl; write @memoize() with parentheses"
        )
    if ttl is not None:
        checked_ttl(ttl)
    if stale:
        checked_ttl(stale, "stale")
    make = partial(get_or_set, ttl=ttl, stale=stale)
    is_async = inspect.iscoroutinefunction(get_or_set)

    def decorate(function: Callable[P, R]) -> CachedFunction[P, R, D]:
        if inspect.iscoroutinefunction(function) != is_async:
            needed = "not a coroutine; use that of Client or EmbeddedCache"
            reason = needed if is_async else "a coroutine; use that of AsyncClient"
            raise InvalidArgumentError(f"memoize: {function!r} is {reason}")
        key_of = CallKeys(function, key, prefix).of
        return CachedFunction(function, key_of, make, delete)

    return decorate


class CachedFunction(Generic[P, R, D]):
    """
    A function whose results are kept; see `memoize` of a client or an embedded cache.

    What a call and `forget` return is awaited if the client is one for asyncio.

    Attributes:
        __wrapped__: The function itself.
    """

    __name__: str
    __wrapped__: Callable[..., R]

    def __init__(
        self,
        function: Callable[P, R],
        key_of: Callable[..., str | bytes],
        get_or_set: Callable[[str | bytes, Callable[[], R]], R],
        delete: Callable[[str | bytes], D],
        bound: tuple[object, ...] = (),
    ) -> None:
        """Use `memoize`; `bound` are the first arguments of a method."""
        update_wrapper(self, function)
        self._function: Callable[..., R] = function
        self._key_of: Final = key_of
        self._get_or_set = get_or_set
        self._delete = delete
        self._bound: Final = bound

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result for these arguments, from the cache if it is there."""
        call = (*self._bound, *args)
        return self._get_or_set(
            self._key_of(*call, **kwargs), lambda: self._function(*call, **kwargs)
        )

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str | bytes:
        """Return the key of a call."""
        return self._key_of(*self._bound, *args, **kwargs)

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> D:
        """Remove the result of a call; return whether it was stored."""
        return self._delete(self.key(*args, **kwargs))

    def __get__(
        self, instance: object, owner: type | None = None
    ) -> CachedFunction[..., R, D]:
        """Return a method, which passes the instance on."""
        if instance is None:
            return self
        bound = (*self._bound, instance)
        return type(self)(
            self._function, self._key_of, self._get_or_set, self._delete, bound
        )


AsyncCachedFunction = CachedFunction[P, Awaitable[R], Awaitable[bool]]
SyncCachedFunction = CachedFunction[P, R, bool]
