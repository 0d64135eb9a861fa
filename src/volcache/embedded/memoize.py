"""The results of a function, kept in a cache by its arguments."""

from __future__ import annotations

import functools
from hashlib import blake2b
from types import MethodType
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
V = TypeVar("V")

_DIGEST_BYTES: Final = 16
_PLAIN: Final = (type(None), bool, int, float, str, bytes)


class Memoized(Generic[P, V]):
    """
    A function whose results are kept; called as the function is.

    `key_of` returns the key of a call, to look it up or to delete it.
    """

    __name__: str
    __wrapped__: Callable[P, V]

    def __init__(
        self,
        function: Callable[P, V],
        get_or_set: Callable[[str | bytes, Callable[[], V]], V],
        key_of: Callable[P, str | bytes],
    ) -> None:
        """Use `EmbeddedCache.memoize`."""
        functools.update_wrapper(self, function)
        self._function = function
        self._get_or_set = get_or_set
        self.key_of = key_of

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the result that is kept, or call the function and keep its result."""
        return self._get_or_set(
            self.key_of(*args, **kwargs), lambda: self._function(*args, **kwargs)
        )

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., V]:
        """Return the method of an instance."""
        return self if instance is None else MethodType(self, instance)


def name_of(function: Callable[..., object]) -> str:
    """Return module and name of a function, as the beginning of its keys."""
    module = getattr(function, "__module__", "")
    return f"{module}.{getattr(function, '__qualname__', type(function).__name__)}"


def key_of_call(
    prefix: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> str:
    """
    Return the key of a call: the prefix, a slash, and a digest of the arguments.

    Equal arguments of different types, such as 1 and True, have different keys, and so
    has an argument that is passed by name.

    Raises:
        TypeError: An argument is of a type whose text is not known to identify it.
    """
    text = f"{_text(args)}{_text(kwargs)}".encode("utf-8", "surrogatepass")
    return f"{prefix}/{blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()}"


def _text(argument: object) -> str:
    """Return text that no other argument has."""
    kind = type(argument)
    if kind in _PLAIN:
        return repr(argument)
    if isinstance(argument, tuple | list) and kind in {tuple, list}:
        return f"{kind.__name__}({','.join(map(_text, argument))})"
    if isinstance(argument, set | frozenset) and kind in {set, frozenset}:
        return f"{kind.__name__}({','.join(sorted(map(_text, argument)))})"
    if isinstance(argument, dict) and kind is dict:
        items = sorted(f"{_text(k)}:{_text(v)}" for k, v in argument.items())
        return f"dict({','.join(items)})"
    raise TypeError(
        f"an argument of type {kind.__name__} in a call of a memoized function; allowed are"
        " None, bool, int, float, str, bytes, and tuples, lists, sets and dicts of these."
        " For others, give memoize a function key=, which returns the key of a call"
    )
