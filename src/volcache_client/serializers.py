"""Values other than bytes: serializers that may be given to a client or embedded cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

from volcache_client.errors import (
    CacheError,
    InvalidArgumentError,
    SerializationError,
)
from volcache_client.keys import exact

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")

OCTETS: Final = "application/octet-stream"


class ValueSerializer(Protocol[V]):
    """
    An object, or a module, that turns values into bytes and back; used by all threads.

    If it has an attribute `content_type`, that is stored with the values.

    Pickle is not offered by name: who can write to the cache could run code in its readers.
    """

    def dumps(self, obj: V, /) -> bytes | str:
        """Return a value as bytes, or as text, which is then encoded as UTF-8."""

    def loads(self, s: bytes, /) -> V:
        """Return the value; raise an error for bytes that `dumps` has not made."""


class Bytes:
    """Values are bytes."""

    content_type = OCTETS

    def dumps(self, value: Any, /) -> bytes:  # noqa: ANN401 - It is checked.
        """
        Return the value.

        Raises:
            SerializationError: It is not bytes, a bytearray or a memoryview.
        """
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise SerializationError(
            f"a value of type {type(value).__name__}; without a serializer it must be"
            ' bytes, a bytearray or a memoryview: encode it, or give serializer="json"'
        )

    def loads(self, stored: bytes, /) -> bytes:
        """Return the value."""
        return stored


class Json:
    """
    Values are what JSON has: None, bool, int, float, str, list and dict.

    What is read is equal to what was stored. So a tuple, which would be read as a list, and
    a dict with keys that are not str are refused, as is NaN, which JSON does not have. A
    value of a subclass, such as an `IntEnum` or an `OrderedDict`, is read as the type of
    JSON.
    """

    content_type = "application/json"

    def dumps(self, value: Any, /) -> bytes:  # noqa: ANN401 - Anything of JSON.
        """
        Return JSON in UTF-8.

        Raises:
            SerializationError: JSON has no such value, or it would be another when it is
                read.
        """
        try:
            text = _to_json(value)
            stored = text.encode()
            is_same = _from_json(text) == value
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(f"not a value of JSON: {error}") from error
        if not is_same:
            raise SerializationError(
                "not a value of JSON: it has a tuple, or a dict with keys that are not str,"
                " and would be another value when it is read"
            )
        return stored

    def loads(self, stored: bytes, /) -> Any:  # noqa: ANN401 - Anything of JSON.
        """
        Return the value.

        Raises:
            SerializationError: It is not JSON in UTF-8.
        """
        try:
            return _from_json(stored.decode())
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"what is stored is not JSON: {error}") from error


class Codec(Generic[V]):
    """
    A serializer whose results and errors are checked.

    Attributes:
        content_type: Of what is stored.
    """

    def __init__(self, serializer: ValueSerializer[V]) -> None:
        """Use a serializer."""
        self.content_type: Final[str] = getattr(serializer, "content_type", OCTETS)
        self._dumps: Final[Callable[[V], object]] = serializer.dumps
        self._loads: Final[Callable[[bytes], V]] = serializer.loads

    def dumps(self, value: V) -> bytes:
        """
        Return a value as bytes.

        Raises:
            SerializationError: The serializer does not accept it, or returns something
                else than bytes and text.
        """
        try:
            made = self._dumps(value)
            if isinstance(made, str):
                made = str.encode(made)
        except (CacheError, MemoryError):
            raise
        except Exception as error:
            raise _failed("dumps", error) from error
        if isinstance(made, bytes):
            return exact(made)
        raise SerializationError(
            f"dumps of the serializer has returned {type(made).__name__}; allowed are"
            " bytes and str"
        )

    def loads(self, stored: bytes) -> V:
        """
        Return a value.

        Raises:
            SerializationError: The serializer does not accept what is stored.
        """
        try:
            return self._loads(stored)
        except (CacheError, MemoryError):
            raise
        except Exception as error:
            raise _failed("loads", error) from error


def make_codec(chosen: Any) -> Codec[Any]:  # noqa: ANN401 - It is checked.
    """
    Return what the argument `serializer` stands for: None, "json", or an object.

    Raises:
        InvalidArgumentError: It is something else.
    """
    if chosen is None:
        return Codec(Bytes())
    if chosen == "json":
        return Codec(Json())
    names = ("dumps", "loads")
    if isinstance(chosen, type) or not all(
        callable(getattr(chosen, name, None)) for name in names
    ):
        raise InvalidArgumentError(
            f'serializer={chosen!r}; allowed are None (values are bytes), "json", and an'
            " object with the methods dumps and loads"
        )
    return Codec(chosen)


def _failed(name: str, error: Exception) -> SerializationError:
    return SerializationError(
        f"{name} of the serializer: {type(error).__name__}: {error}"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


_to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
_from_json = json.JSONDecoder(parse_constant=_refuse_constant).decode
