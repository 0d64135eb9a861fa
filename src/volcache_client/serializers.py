"""Values other than bytes: serializers that may be given to a client or embedded cache."""

from __future__ import annotations

import hmac
import json
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

from volcache_client.errors import (
    CacheError,
    ForeignValueError,
    InvalidArgumentError,
    SerializationError,
)
from volcache_client.keys import exact

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")

OCTETS: Final = "application/octet-stream"
_SIGNATURE_BYTES: Final = 32
_PICKLE_PROTOCOL: Final = 5  # Of all versions of Python that are supported.


class ValueSerializer(Protocol[V]):
    """
    An object, or a module, that turns values into bytes and back; used by all threads.

    If it has an attribute `content_type`, that is stored with the values. `loads` may raise
    `ForeignValueError`: for a client, the value is a miss.
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


class SignedPickle:
    """
    Values are what pickle has, signed with a key: HMAC-SHA256, 32 bytes, then the pickle.

    Who can write to the cache, but does not have the key, cannot run code in its readers.
    What was not signed with the key, or cannot be read any longer, is a miss.
    """

    content_type = OCTETS

    def __init__(self, key: str | bytes, *older: str | bytes) -> None:
        """
        Take the key, and others with which values were signed before.

        Raises:
            InvalidArgumentError: One is empty, or neither text nor bytes.
        """
        keys: list[Any] = [key, *older]
        for one in keys:
            if not isinstance(one, str | bytes) or not one:
                what = f"a {type(one).__name__} that is not shown"
                raise InvalidArgumentError(
                    f"signing_key: {what}; allowed are text and bytes, not empty"
                )
        # Keys of their own: what another program has signed with the same key is not ours.
        data = [one.encode() if isinstance(one, str) else one for one in keys]
        self._keys: Final = [
            sha256(b"volcache pickle\0" + one).digest() for one in data
        ]
        self._pickle: Final[Any] = import_module("pickle")

    def dumps(self, value: Any, /) -> bytes:  # noqa: ANN401 - Anything of pickle.
        """
        Return a signed pickle.

        Raises:
            SerializationError: Pickle does not accept the value.
        """
        try:
            data: bytes = self._pickle.dumps(value, _PICKLE_PROTOCOL)
        except Exception as error:
            raise SerializationError(f"not a value of pickle: {error}") from error
        return hmac.digest(self._keys[0], data, "sha256") + data

    def loads(self, stored: bytes, /) -> Any:  # noqa: ANN401 - Anything of pickle.
        """
        Return the value.

        Raises:
            ForeignValueError: It was not signed with a key of these, or its class is not
                the same.
        """
        signature, data = stored[:_SIGNATURE_BYTES], stored[_SIGNATURE_BYTES:]
        for key in self._keys:
            if hmac.compare_digest(hmac.digest(key, data, "sha256"), signature):
                break
        else:
            raise ForeignValueError("what is stored was not signed with signing_key")
        try:
            return self._pickle.loads(data)
        except Exception as error:
            raise ForeignValueError(
                f"what is stored cannot be read: {error}"
            ) from error


class MsgPack:
    """Values are what MessagePack has: those of JSON, bytes, and keys of any of these."""

    content_type = "application/vnd.msgpack"

    def __init__(self) -> None:
        """
        Load the library.

        Raises:
            InvalidArgumentError: It is not installed.
        """
        self._library: Final = _library("msgpack", 'serializer="msgpack"')

    def dumps(self, value: Any, /) -> bytes:  # noqa: ANN401 - Anything of MessagePack.
        """Return MessagePack; a tuple or another class is an error, as with JSON."""
        packed: bytes = self._library.packb(value, strict_types=True)
        return packed

    def loads(self, stored: bytes, /) -> Any:  # noqa: ANN401 - Anything of MessagePack.
        """Return the value."""
        return self._library.unpackb(stored, strict_map_key=False)


class Zstd:
    """Values of another serializer, compressed with zstd."""

    content_type = OCTETS

    def __init__(
        self, inner: object = None, *, level: int = 3, size_max: int = 1 << 30
    ) -> None:
        """
        Take the serializer.

        Args:
            inner: As the argument `serializer` of a client; None: values are bytes.
            level: 1 to 22: slower, and smaller.
            size_max: Bytes of a value that is read, before its compression.

        Raises:
            InvalidArgumentError: `inner` is wrong, or the package zstandard is missing.
        """
        library = _library("zstandard", "Zstd")
        self._codec: Final = make_codec(inner)
        self._size_max: Final = size_max
        self._size_of: Final = library.frame_content_size
        # One is used by one thread at a time; to make one takes a microsecond.
        self._compressor: Final = partial(library.ZstdCompressor, level)
        self._decompressor: Final = library.ZstdDecompressor

    def dumps(self, value: Any, /) -> bytes:  # noqa: ANN401 - As of the serializer.
        """Return the compressed value."""
        made: bytes = self._compressor().compress(self._codec.dumps(value))
        return made

    def loads(self, stored: bytes, /) -> Any:  # noqa: ANN401 - As of the serializer.
        """
        Return the value.

        Raises:
            SerializationError: It is not of zstd, or longer than `size_max`.
        """
        size = self._size_of(stored)
        if not 0 <= size <= self._size_max:
            raise SerializationError(
                f"what is stored has {size} bytes; allowed are {self._size_max}"
            )
        return self._codec.loads(self._decompressor().decompress(stored))


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


def make_codec(
    chosen: Any,  # noqa: ANN401 - It is checked.
    *signing_keys: str | bytes,
) -> Codec[Any]:
    """
    Return what the argument `serializer` stands for: None, a name, or an object.

    Args:
        chosen: The argument.
        signing_keys: Of "pickle"; the first signs.

    Raises:
        InvalidArgumentError: It is something else, or what it needs is missing.
    """
    if chosen is None:
        return Codec(Bytes())
    if chosen == "pickle" and not any(signing_keys):
        raise InvalidArgumentError(
            'serializer="pickle" needs the option signing_key, a secret, or is given as'
            " SignedPickle(key): else who writes to the cache runs code in its readers"
        )
    if chosen in ("json", "pickle", "msgpack"):
        made = {"json": Json, "pickle": SignedPickle, "msgpack": MsgPack}[chosen]
        return Codec(made(*signing_keys) if chosen == "pickle" else made())
    names = ("dumps", "loads")
    if isinstance(chosen, type) or not all(
        callable(getattr(chosen, name, None)) for name in names
    ):
        raise InvalidArgumentError(
            f'serializer={chosen!r}; allowed are None (values are bytes), "json", "pickle",'
            ' "msgpack", and an object with the methods dumps and loads'
        )
    return Codec(chosen)


def _failed(name: str, error: Exception) -> SerializationError:
    return SerializationError(
        f"{name} of the serializer: {type(error).__name__}: {error}"
    )


def _library(name: str, option: str) -> Any:  # noqa: ANN401 - A module without types.
    try:
        return import_module(name)
    except ImportError:
        raise InvalidArgumentError(
            f"{option} needs the package {name}; run: pip install {name}"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


_to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode
_from_json = json.JSONDecoder(parse_constant=_refuse_constant).decode
