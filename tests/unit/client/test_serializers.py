"""serializers.py: values that are read as they were stored, or refused."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tables import each_row
from volcache_client.errors import InvalidArgumentError, SerializationError
from volcache_client.serializers import Bytes, Json, make_codec

# Another load of the machine is no reason to fail.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('aé\0"\\'), inner),
    max_leaves=10,
)
# Also what comes back as another value.
ANYTHING = st.recursive(
    VALUES | st.floats() | st.binary(max_size=3),
    lambda inner: (
        st.tuples(inner)
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.integers() | st.none() | st.text(max_size=2), inner)
    ),
    max_leaves=8,
)


class Colour(enum.IntEnum):
    """An int by another name."""

    RED = 1


@pytest.mark.slow
@UNHURRIED
@given(value=VALUES)
def test_values_of_json_are_read_as_they_were_stored(value: object) -> None:
    """Equal, of the same types, and JSON that others can read."""
    stored = Json().dumps(value)
    assert repr(Json().loads(stored)) == repr(value)
    assert json.loads(stored) == value


@pytest.mark.slow
@UNHURRIED
@given(value=ANYTHING)
def test_any_value_is_read_as_it_was_stored_or_refused(value: object) -> None:
    """Never as another one."""
    try:
        stored = Json().dumps(value)
    except SerializationError:
        return
    assert Json().loads(stored) == value


@pytest.mark.slow
def test_endless_and_deep_values_are_refused() -> None:
    """Neither ends the process."""
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (endless, deep):
        with pytest.raises(SerializationError):
            Json().dumps(value)
    with pytest.raises(SerializationError):
        Json().loads(b"[" * 100_000 + b"]" * 100_000)


@each_row(
    ("value", "read"),
    [
        (Colour.RED, 1),
        (OrderedDict(a=1), {"a": 1}),
        ({Colour.RED.name: Colour.RED}, {"RED": 1}),
    ],
)
def test_subclasses_are_read_as_types_of_json(value: object, read: object) -> None:
    """They are equal to them."""
    assert Json().loads(Json().dumps(value)) == read == value


def test_stored_json_is_short_and_in_utf8() -> None:
    """Without spaces and escapes that need not be."""
    assert Json().dumps({"é": [1, None, True]}) == '{"é":[1,null,true]}'.encode()


@each_row(
    "stored",
    [b"", b"{", b"{'a':1}", b"NaN", b"[Infinity]", b"-Infinity", b"1 2", b"\xff", b"\x00",
     '"é"'.encode("latin-1"), "[1]".encode("utf-16")],
)  # fmt: skip
def test_what_is_not_json_is_an_error(stored: bytes) -> None:
    """Something else was stored under the key."""
    with pytest.raises(SerializationError, match="what is stored is not JSON"):
        Json().loads(stored)


class Reversed:
    """A serializer of the user, for texts."""

    def dumps(self, value: Any) -> Any:
        """Return text, or what is not allowed."""
        return value[::-1] if isinstance(value, str) else value + 1

    def loads(self, stored: bytes) -> str:
        """Return text."""
        return stored.decode("ascii")[::-1]


def test_a_serializer_of_the_user_may_return_text_and_raise_anything() -> None:
    """What it raises is the cause of an error of the cache."""
    codec = make_codec(Reversed())
    assert (codec.dumps("abc"), codec.loads(b"cba")) == (b"cba", "abc")
    assert codec.content_type == Bytes.content_type
    assert make_codec("json").content_type == "application/json"
    assert make_codec(None).dumps(b"a") == b"a"
    for call, cause in ((codec.dumps, TypeError), (codec.loads, UnicodeDecodeError)):
        with pytest.raises(SerializationError, match=cause.__name__) as raised:
            call(b"\xff")
        assert isinstance(raised.value.__cause__, cause)
    with pytest.raises(SerializationError, match="has returned int"):
        codec.dumps(1)


@each_row("wrong", ["pickle", 7, b"", Reversed, object()])
def test_a_serializer_has_dumps_and_loads(wrong: Any) -> None:
    """Of an object, not of a class."""
    with pytest.raises(InvalidArgumentError, match="allowed are None"):
        make_codec(wrong)
