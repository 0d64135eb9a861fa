"""Values other than bytes: serializers that may be given to a client."""

from __future__ import annotations

import json
from typing import Any, NoReturn, Protocol, TypeVar

from volcache_client.errors import SerializationError

V = TypeVar("V")


class ValueSerializer(Protocol[V]):
    """
    Turns values into bytes and back.

    There is none for pickle: who can write to the cache could run code in its readers.

    Attributes:
        content_type: Of what is stored.
    """

    content_type: str

    def dumps(self, value: V) -> bytes:
        """Return a value as bytes."""

    def loads(self, stored: bytes) -> V:
        """Return the value of bytes."""


def make_serializer(chosen: Any) -> ValueSerializer[Any]:  # noqa: ANN401
    """Return what the argument `serializer` of a client stands for."""
    return Json() if chosen == "json" else chosen or Bytes()


class Bytes:
    """Values are bytes."""

    content_type = "application/octet-stream"

    def dumps(self, value: Any) -> bytes:  # noqa: ANN401 - It is checked.
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
            f"a value is {type(value).__name__}; without a serializer it must be bytes"
        )

    def loads(self, stored: bytes) -> bytes:
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

    def dumps(self, value: Any) -> bytes:  # noqa: ANN401 - Anything of JSON.
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

    def loads(self, stored: bytes) -> Any:  # noqa: ANN401 - Anything of JSON.
        """
        Return the value.

        Raises:
            SerializationError: It is not JSON in UTF-8.
        """
        try:
            return _from_json(stored.decode())
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"what is stored is not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


_to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
_from_json = json.JSONDecoder(parse_constant=_refuse_constant).decode
