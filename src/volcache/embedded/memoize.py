"""The results of a function, kept in a cache by its arguments."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from volcache_client.memo import CachedFunction

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
V = TypeVar("V")

_DIGEST_BYTES: Final = 16
_PLAIN: Final = (type(None), bool, int, float, str, bytes)


class Memoized(CachedFunction[P, V, bool]):
    """A function whose results are kept in an embedded cache; called as the function is."""

    def key_of(self, *args: P.args, **kwargs: P.kwargs) -> str | bytes:
        """Return the key of a call, to look it up or to delete it."""
        return self.key(*args, **kwargs)


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
