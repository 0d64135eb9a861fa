"""Functions whose results are kept in the cache: the keys of their calls."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from functools import update_wrapper
from hashlib import sha256
from typing import Any, Final, Generic, ParamSpec, TypeVar

from volcache_client.errors import InvalidArgumentError

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

MEMO_PREFIX: Final = "memo/"


class CallKeys:
    """
    The keys of the calls of one function.

    Without a function `key`, the key is `memo/NAME/DIGEST`: the prefix or module and
    qualified name, and the SHA-256 of the arguments as JSON, by the names of the
    parameters and with their defaults: all ways to write a call have one key.
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
        self._function: Final = function
        self._name = prefix or ""
        if key is None:
            self._signature = inspect.signature(function)
            self._name = prefix or _name_of(function)

    def of(self, *args: Any, **kwargs: Any) -> str | bytes:  # noqa: ANN401
        """
        Return the key of a call.

        Raises:
            InvalidArgumentError: JSON has no such argument.
            TypeError: The function does not take such arguments.
        """
        if self._key is not None:
            return self._key(*args, **kwargs)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        listed = []
        for name, value in bound.arguments.items():
            kind = self._signature.parameters[name].kind
            # Further arguments arrive as a tuple, which is not one of the caller.
            plain = list(value) if kind is inspect.Parameter.VAR_POSITIONAL else value
            self._check(name, plain)
            listed.append([name, plain])
        text = json.dumps(listed, sort_keys=True, separators=(",", ":"))
        return f"{MEMO_PREFIX}{self._name}/{sha256(text.encode()).hexdigest()}"

    def _check(self, name: str, value: object) -> None:
        try:
            found = _what_json_lacks(value)
        except RecursionError:
            found = "too many levels"
        if found:
            raise InvalidArgumentError(
                f"{self._name}: argument {name} has {found}, which JSON lacks; allowed"
                " are None, bool, int, float, str, list and dict with keys of str; or"
                " give memoize a function `key` that returns the key of a call"
            )


def _name_of(function: Callable[..., Any]) -> str:
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "<" in name:
        raise InvalidArgumentError(
            f"{module}.{name}: other functions may have this name too, and would have the"
            " same keys; give memoize a `prefix` that only this function has"
        )
    return f"{module}.{name}"


def _what_json_lacks(value: object) -> str:
    """Return what would not be the same after JSON; empty for nothing."""
    if value is None or isinstance(value, bool | int | str):
        return ""
    if isinstance(value, float):
        return "" if value - value == 0 else repr(value)
    if isinstance(value, list):
        return next(filter(None, map(_what_json_lacks, value)), "")
    if isinstance(value, dict):
        names = (f"the key {name!r}" for name in value if not isinstance(name, str))
        return next(names, "") or _what_json_lacks(list(value.values()))
    return f"a {type(value).__name__}"


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
