"""An embedded cache as a mutable mapping."""

from __future__ import annotations

import json
from collections.abc import ItemsView, KeysView, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from volcache.embedded.stored import ABSENT, StoredValues, encoded
from volcache.sharing.wire import Operation, decode_words, same_as
from volcache_client.keys import Key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")
V = TypeVar("V")

_MISSING: Final = object()


class StoredMapping(StoredValues[V], MutableMapping[Key, V]):
    """The methods of a dict; keys are returned as bytes."""

    # Two caches are equal if they are the same one: to compare values, all were read.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, key: Key) -> V:
        """
        Return the value of a key.

        Raises:
            KeyError: There is none, or it has expired.
        """
        record = self._find(encoded(key))
        if record is None:
            raise KeyError(key)
        return self._loads(record.value)

    def __setitem__(self, key: Key, value: V) -> None:
        """Store a value with `default_ttl`; see `set`."""
        self._put(encoded(key), self._dumps(value), self._default_ttl)

    def __delitem__(self, key: Key) -> None:
        """
        Delete a key.

        Raises:
            KeyError: It has no value.
        """
        if not self._delete(encoded(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Return whether a key has a value; a damaged value is not noticed."""
        return self._head(cast("str", key)) is not None

    def __iter__(self) -> Iterator[bytes]:
        """
        Yield all keys, by reading the volumes from the oldest to the newest.

        Nothing is locked, and memory does not depend on the number of keys. A key that is
        there from the beginning to the end is returned: once if nothing changes, perhaps
        twice if it is stored again or copied meanwhile. A key that is stored or deleted
        meanwhile may be returned or not. Changing the cache within the loop is allowed.
        """
        cursor = b""
        while True:
            data = self._session.ask(Operation.SCAN, value=cursor)
            cursor, *keys = decode_words(data)
            yield from keys
            if not cursor:
                return

    def __len__(self) -> int:
        """Return the number of keys, expired and purged ones included; no disk is read."""
        return int(json.loads(self._session.ask(Operation.FACTS))["keys"])

    def keys(self) -> KeysView[bytes]:
        """Return a view of the keys; see `__iter__`."""
        return KeysView(cast("Mapping[bytes, V]", self))

    def values(self) -> ValuesView[V]:
        """Return a view of the values; reading them does not keep them."""
        return _Values(cast("Mapping[bytes, V]", self))

    def items(self) -> ItemsView[bytes, V]:
        """Return a view of the keys and values; reading them does not keep them."""
        return _Items(cast("Mapping[bytes, V]", self))

    def read_items(self) -> Iterator[tuple[bytes, V]]:
        """Yield what `items` returns a view of."""
        for key in self:
            record = self._peek(key)
            if record is not None:
                yield key, self._loads(record.value)

    @overload
    def pop(self, key: Key) -> V: ...
    @overload
    def pop(self, key: Key, default: V) -> V: ...
    @overload
    def pop(self, key: Key, default: T) -> V | T: ...
    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """
        Delete a key and return the value that it had. Atomic.

        Raises:
            KeyError: It had none, and no default is given.
        """
        name = encoded(key)
        while (record := self._find(name)) is not None:
            if self._delete(name, same_as(record)):
                return self._loads(record.value)
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[bytes, V]:
        """
        Delete one of the oldest keys; return it with its value. Atomic.

        Raises:
            KeyError: There is none.
        """
        for key in self:
            value = self.pop(key, _MISSING)
            if value is not _MISSING:
                return key, cast("V", value)
        raise KeyError("the cache is empty")

    def setdefault(self, key: Key, default: V) -> V:
        """Return the value of a key; if it has none, store and return this. Atomic."""
        name, data = encoded(key), self._dumps(default)
        while (record := self._find(name)) is None:
            if self._put(name, data, self._default_ttl, condition=ABSENT):
                return default
        return self._loads(record.value)


class _Values(ValuesView[V]):
    """The values of a cache."""

    _mapping: StoredMapping[V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.read_items())

    def __contains__(self, value: object) -> bool:
        # The one of the base class reads the keys one by one, which may be gone by then.
        return any(found is value or found == value for found in self)


class _Items(ItemsView[bytes, V]):
    """The keys and values of a cache."""

    _mapping: StoredMapping[V]

    def __iter__(self) -> Iterator[tuple[bytes, V]]:
        return self._mapping.read_items()
