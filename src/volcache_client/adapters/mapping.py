"""
A mapping in volcache, for libraries that keep values in a dict, such as cachetools.

    prices = CacheMapping(client, "prices/", ttl=60)

    @cachetools.cached(cache=prices)
    def price(article: int) -> float: ...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from volcache_client.adapters._keys import safe_key
from volcache_client.errors import InvalidArgumentError, InvalidKeyError

if TYPE_CHECKING:
    from volcache_client.client import Client

V = TypeVar("V")
_MISSING: Final = object()
_PLAIN: Final = (str, bytes)


class CacheMapping(MutableMapping[Hashable, V]):
    """
    The values under one prefix of a client; used by all threads.

    It cannot be iterated and has no length, and so neither `keys`, `values`, `items`,
    `popitem`, `clear` nor `==`: the service does not list its keys. It is always true.
    """

    def __init__(
        self,
        client: Client[V],
        prefix: str,
        *,
        ttl: float | None = None,
        key: Callable[[Any], str] | None = None,
    ) -> None:
        """
        Take a client, which is not closed here.

        Args:
            client: Its serializer is that of the values.
            prefix: Of the keys; not empty, and ends with a slash. Two functions with the
                same arguments need two prefixes.
            ttl: Seconds until a value expires; None = as the client or service decides.
            key: Returns the rest of the key for a key of the mapping. Default: `key_text`.

        Raises:
            InvalidArgumentError: The prefix is wrong.
        """
        if not prefix.strip("/") or not prefix.endswith("/"):
            raise InvalidArgumentError(
                f'prefix={prefix!r}; allowed is text that ends with a slash: "prices/"'
            )
        self._client: Final = client
        self._prefix: Final = prefix
        self._ttl: Final = ttl
        self._key_text: Final = key or key_text

    def __getitem__(self, key: Hashable) -> V:
        item = self._client.get_item(self._key(key))
        if item is None:
            raise KeyError(key)
        return item.value

    def __setitem__(self, key: Hashable, value: V) -> None:
        self._client.set(self._key(key), value, self._ttl)

    def __delitem__(self, key: Hashable) -> None:
        if not self._client.delete(self._key(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._client.stat(self._key(key)) is not None

    def pop(self, key: Hashable, default: Any = _MISSING) -> Any:  # noqa: ANN401 - As of dict.
        """
        Remove a value and return it; of several callers one has it.

        Raises:
            KeyError: There is none, and no default.
        """
        try:
            return self._client.pop(self._key(key))
        except KeyError:
            if default is _MISSING:
                raise KeyError(key) from None
            return default

    def setdefault(self, key: Hashable, default: Any = None) -> Any:  # noqa: ANN401 - As of dict.
        """Return the value; if there is none, store the default, and return it."""
        stored = self._key(key)
        item = self._client.get_item(stored)
        if item is None and self._client.add(stored, default, self._ttl) is None:
            item = self._client.get_item(stored)  # Another caller has stored one.
        return default if item is None else item.value

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Hashable]:
        _refuse("cannot be iterated")

    def __len__(self) -> int:  # noqa: PLE0303 - It has none.
        _refuse("has no length")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _key(self, key: Any) -> str:  # noqa: ANN401 - The function checks it.
        return self._prefix + safe_key(self._key_text(key))


def key_text(key: Any) -> str:  # noqa: ANN401 - It is checked.
    """
    Return the text of a key: the same in every process.

    That of text is itself; if it begins with "~", another "~" stands before. That of other
    keys is "~" and a SHA-256, in base 16, of the type and value.

    Raises:
        InvalidKeyError: It is, or a tuple in it has, something else than None, bool, int,
            float, str, bytes, a class or a tuple.
    """
    if isinstance(key, str):
        return f"~{key}" if key.startswith("~") else key
    return "~" + sha256(_canonical(key).encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(key: object) -> str:
    if type(key) in {int, bool, float}:
        return _number(key)
    if key is None or type(key) in _PLAIN:
        return f"{type(key).__name__} {key!r}"
    if isinstance(key, type):
        return f"class {key.__module__}.{key.__qualname__}"
    if isinstance(key, tuple):
        return f"({','.join(map(_canonical, key))})"
    raise InvalidKeyError(
        f"{key!r}: a {type(key).__name__} is not the same text in every process; allowed"
        " are None, bool, int, float, str, bytes, classes and tuples of them;"
        " or give the mapping a function `key`"
    )


def _number(number: Any) -> str:  # noqa: ANN401 - An int, bool or float.
    """Numbers that are equal are the same key of a dict: 1, 1.0 and True."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return f"number {+number!r}"


def _refuse(what: str) -> NoReturn:
    raise TypeError(f"a CacheMapping {what}: the service does not list its keys")
