"""serializers.py: values that are read as they were stored, or refused."""

from __future__ import annotations

import enum
import hmac
import json
import pickle
import sys
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tables import each_row
from volcache_client.errors import (
    ForeignValueError,
    InvalidArgumentError,
    SerializationError,
)
from volcache_client.serializers import (
    Bytes,
    Json,
    SignedPickle,
    Zstd,
    make_codec,
)

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
def test_json_of_its_values_reads_what_was_stored(value: object) -> None:
    """Equal, of the same types, and JSON that others can read."""
    stored = Json().dumps(value)
    assert repr(Json().loads(stored)) == repr(value)
    assert json.loads(stored) == value


@pytest.mark.slow
@UNHURRIED
@given(value=ANYTHING)
def test_json_of_any_value_reads_what_was_stored_or_refuses_it(value: object) -> None:
    """Never as another one."""
    try:
        stored = Json().dumps(value)
    except SerializationError:
        return
    assert Json().loads(stored) == value


@pytest.mark.slow
def test_json_of_endless_and_deep_values_is_an_error() -> None:
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
def test_json_of_subclasses_reads_types_of_json(value: object, read: object) -> None:
    """They are equal to them; stored without spaces and escapes that need not be."""
    assert Json().loads(Json().dumps(value)) == read == value
    assert Json().dumps({"é": [1, None, True]}) == '{"é":[1,null,true]}'.encode()


@each_row(
    "stored",
    [b"", b"{", b"{'a':1}", b"NaN", b"[Infinity]", b"-Infinity", b"1 2", b"\xff", b"\x00",
     '"é"'.encode("latin-1"), "[1]".encode("utf-16")],
)  # fmt: skip
def test_json_of_other_bytes_is_an_error(stored: bytes) -> None:
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


def test_serializer_of_the_user_may_return_text_and_raise_anything() -> None:
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


@each_row("wrong", ["yaml", 7, b"", Reversed, object()])
def test_serializer_without_dumps_and_loads_is_refused(wrong: Any) -> None:
    """Of an object, not of a class."""
    with pytest.raises(InvalidArgumentError, match="allowed are None"):
        make_codec(wrong)


def test_signed_pickle_of_any_value_reads_what_was_stored() -> None:
    """Also by a program that has another key now, and this one among its older ones."""
    when = datetime(2026, 1, 2, tzinfo=UTC)
    value = {"when": when, "price": Decimal("1.50"), 3: (None, b"a")}
    stored = make_codec("pickle", "secret").dumps(value)
    for codec in (
        make_codec("pickle", "secret"),
        make_codec("pickle", "new", "secret"),
    ):
        assert codec.loads(stored) == value
    with pytest.raises(SerializationError, match="not a value of pickle"):
        make_codec("pickle", "secret").dumps(lambda: None)


def test_signed_pickle_that_is_not_ours_is_not_loaded() -> None:
    """Nothing of it runs."""
    stored = SignedPickle("secret").dumps("value")
    call = pickle.dumps(_Called())
    key = b"secret"
    others = [
        SignedPickle("other").dumps("value"),
        hmac.digest(key, call, "sha256") + call,  # Of another use of the same key.
        *(b"", stored[:-1], stored[32:], bytes(32) + call, b'["json"]'),
    ]
    for other in others:
        with pytest.raises(ForeignValueError):
            SignedPickle("secret").loads(other)
    assert _Called.calls == []
    gone = b"cno_such_module\nName\n."  # Its class, after an update of the program.
    signature = hmac.digest(SignedPickle("secret")._keys[0], gone, "sha256")
    with pytest.raises(ForeignValueError, match="no_such_module"):
        SignedPickle("secret").loads(signature + gone)


class _Called:
    """Pickle calls a function when it reads one."""

    calls: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return self.calls.append, ("called",)


def test_pickle_without_a_key_names_the_option() -> None:
    """An empty one is none."""
    for keys in ((), ("",)):
        with pytest.raises(InvalidArgumentError, match="signing_key"):
            make_codec("pickle", *keys)
    wrong: list[Any] = ["", 5]
    for one in wrong:
        with pytest.raises(InvalidArgumentError, match="signing_key"):
            SignedPickle(one)


def test_msgpack_reads_what_was_stored_or_refuses_it() -> None:
    """A tuple would be read as a list."""
    codec = make_codec("msgpack")
    value = {"a": [1, 2.5, None, b"bytes"], 3: "é"}
    assert codec.loads(codec.dumps(value)) == value
    for wrong in ((1, 2), object(), 2**70):
        with pytest.raises(SerializationError):
            codec.dumps(wrong)
    with pytest.raises(SerializationError):
        codec.loads(b"\xc1")


def test_msgpack_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the option."""
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(InvalidArgumentError, match=r'serializer="msgpack" needs.*pip'):
        make_codec("msgpack")


def test_zstd_compresses_the_values_of_another_serializer() -> None:
    """What is too large, or something else, is an error before memory is taken."""
    codec = make_codec(Zstd("json"))
    value = ["text"] * 1000
    stored = codec.dumps(value)
    assert len(stored) < 100
    assert codec.loads(stored) == value
    assert make_codec(Zstd()).loads(make_codec(Zstd()).dumps(b"")) == b""
    with pytest.raises(SerializationError, match="allowed are 100"):
        make_codec(Zstd("json", size_max=100)).loads(stored)
    for wrong in (b"", b"text"):
        with pytest.raises(SerializationError):
            codec.loads(wrong)
