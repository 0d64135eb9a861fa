"""
What turns values into bytes and back: nothing, JSON, or an object of the user.

Loading a pickle runs code that the file may contain, and other programs can write to the
directory through the server. So pickle is not offered by name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from volcache.embedded.keys import exact
from volcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
V = TypeVar("V")

_JSON_TYPE: Final = b"application/json"


class Serializer(Protocol[T]):
    """An object, or a module, that turns values into bytes and back; thread-safe."""

    def dumps(self, obj: T, /) -> bytes | str:
        """Return a value as bytes, or as text, which is then encoded as UTF-8."""

    def loads(self, s: bytes, /) -> T:
        """Return the value; bytes that `dumps` has not made raise an error."""


class ValueCodec(Generic[V]):
    """
    Encodes and decodes the values of one cache.

    Attributes:
        content_type: Stored with each value, for requests to the server.
        decode: Returns a value from bytes; None: values are bytes as they are.
    """

    def __init__(
        self, serializer: Serializer[V] | None, *, content_type: bytes = b""
    ) -> None:
        """Use a serializer; None: the values are bytes."""
        self.content_type = content_type
        self._serializer = serializer
        self.decode: Callable[[bytes], V] | None = None
        if serializer is not None:
            self.decode = serializer.loads

    def encode(self, value: V) -> bytes:
        """
        Return a value as bytes.

        Raises:
            TypeError: It is not bytes-like and there is no serializer, or this returns
                something else. What the serializer raises is passed on.
        """
        if self._serializer is None:
            if isinstance(value, bytes):
                return exact(value)
            if isinstance(value, bytearray | memoryview):
                return bytes(value)
            raise TypeError(
                f"a value of type {type(value).__name__}; without a serializer, allowed"
                " are bytes, bytearray and memoryview: encode it, or open the cache with"
                ' serializer="json"'
            )
        encoded = self._serializer.dumps(value)
        if isinstance(encoded, str):
            return str.encode(encoded)
        if isinstance(encoded, bytes):
            return exact(encoded)
        raise TypeError(
            f"dumps of the serializer has returned {type(encoded).__name__}; allowed are"
            " bytes and str"
        )


class _Json:
    """JSON in UTF-8, as short as it is."""

    @staticmethod
    def dumps(obj: object, /) -> str:
        return json.dumps(obj, ensure_ascii=False, separators=(",", ":"))

    loads = staticmethod(json.loads)


def make_codec(serializer: object) -> ValueCodec[object]:
    """
    Return what encodes and decodes the values of a cache.

    Args:
        serializer: None, "json" or a `Serializer`.

    Raises:
        ConfigError: It is something else.
    """
    if serializer is None:
        return ValueCodec(None)
    if serializer == "json":
        return ValueCodec(_Json(), content_type=_JSON_TYPE)
    dumps = getattr(serializer, "dumps", None)
    loads = getattr(serializer, "loads", None)
    if isinstance(serializer, str) or not (callable(dumps) and callable(loads)):
        raise ConfigError(
            f"serializer = {serializer!r} is not allowed; allowed is None (values are"
            ' bytes), "json", or an object with the methods dumps and loads'
        )
    return ValueCodec(_Methods(dumps, loads))


class _Methods:
    """A serializer of two callables."""

    def __init__(
        self, dumps: Callable[[object], bytes | str], loads: Callable[[bytes], object]
    ) -> None:
        self.dumps = dumps
        self.loads = loads
