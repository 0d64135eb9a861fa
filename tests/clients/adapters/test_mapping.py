"""The mapping, by itself and with cachetools."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cachetools import cached
from cachetools.keys import hashkey, typedkey
from hypothesis import given
from hypothesis import strategies as st

from support.ports import pick_port
from volcache_client import Client, InvalidArgumentError, InvalidKeyError
from volcache_client.adapters.mapping import CacheMapping, key_text

pytestmark = [pytest.mark.nightly, pytest.mark.integration]


@pytest.fixture
def mapping(client: Client[bytes]) -> CacheMapping[bytes]:
    """Return a mapping of bytes, with keys of its own."""
    return CacheMapping(client, "map/")


@pytest.fixture
def values(server: Any, request: pytest.FixtureRequest) -> Any:
    """Return a mapping of values of JSON, with keys of its own."""
    name = f"{request.node.name}/"
    with Client(
        server.url, prefix=name, serializer="json", timeout=30, connect_timeout=30
    ) as client:
        yield CacheMapping(client, "map/", ttl=100)


def test_values_are_set_read_and_deleted(mapping: CacheMapping[bytes]) -> None:
    """As in a dict."""
    assert isinstance(mapping, MutableMapping)
    mapping["a"] = b"1"
    mapping.update({"b": b"2", 5: b"3"})
    assert (mapping["a"], mapping["b"], mapping[5]) == (b"1", b"2", b"3")
    assert "a" in mapping
    assert "c" not in mapping
    assert mapping.get("c") is None
    assert mapping.get("c", b"0") == b"0"
    del mapping["a"]
    assert "a" not in mapping
    with pytest.raises(KeyError, match="a"):
        mapping["a"]
    with pytest.raises(KeyError, match="a"):
        del mapping["a"]


def test_pop_returns_a_value_once(mapping: CacheMapping[bytes]) -> None:
    """Also to threads that ask at the same time."""
    mapping["a"] = b"1"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: mapping.pop("a", None), range(8)))
    assert (found.count(b"1"), found.count(None)) == (1, 7)
    with pytest.raises(KeyError):
        mapping.pop("a")


def test_setdefault_stores_only_what_is_missing(mapping: CacheMapping[bytes]) -> None:
    """And returns what is there."""
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda n: mapping.setdefault("a", b"%d" % n), range(8)))
    assert found == {mapping["a"]}


def test_none_is_a_value(values: CacheMapping[Any]) -> None:
    """A function that returned None is not called again."""
    values["a"] = None
    assert values["a"] is None
    assert "a" in values
    assert values.get("a", 5) is None
    assert values.setdefault("a", 5) is None
    assert values.pop("a", 5) is None


def test_the_time_to_live_is_that_of_the_mapping(
    client: Client[bytes], mapping: CacheMapping[bytes]
) -> None:
    """Else that of the service, here an hour."""
    timed = CacheMapping(client, "timed/", ttl=50)
    timed["a"] = mapping["a"] = b"1"
    timed.setdefault("b", b"1")
    for key, longest in (("timed/a", 50), ("timed/b", 50), ("map/a", 3600)):
        head = client.stat(key)
        assert head is not None
        assert longest - 40 <= (head.ttl or 0) <= longest


@pytest.mark.parametrize(
    "use", [len, iter, list, dict, lambda m: list(m.items()), CacheMapping.popitem]
)
def test_what_needs_a_list_of_keys_is_refused(
    mapping: CacheMapping[bytes], use: Any
) -> None:
    """With the reason."""
    with pytest.raises(TypeError, match="does not list its keys"):
        list(use(mapping))
    assert mapping
    assert mapping == mapping  # noqa: PLR0124 - Not by its values.
    assert mapping != {}


def test_cachetools_calls_a_function_once(values: CacheMapping[Any]) -> None:
    """For all its processes, by the values of the arguments."""
    calls = []

    @cached(cache=values)
    def area(width: float, height: float = 1, *, unit: str = "m") -> Any:
        calls.append((width, height, unit))
        return None if width < 0 else [width * height, unit]

    for _ in range(2):
        assert area(2, 3) == area(2.0, 3) == [6, "m"]
        assert area(2, 3, unit="cm") == [6, "cm"]
        assert area(-1) is None
    assert len(calls) == 3


KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text() | st.binary() | st.sampled_from([int, str, Client]),
    lambda keys: st.lists(keys, max_size=3).map(tuple),
    max_leaves=5,
)  # fmt: skip


@given(st.lists(KEYS, max_size=6))
def test_keys_have_the_same_text_if_they_are_equal(keys: list[Any]) -> None:
    """And only then; nan is not equal to itself."""
    for one in keys:
        for other in keys:
            assert (key_text(one) == key_text(other)) == (one == other)


def test_keys_of_cachetools_have_the_same_text_in_each_process() -> None:
    """Hashes of text and addresses of objects are others."""
    program = (
        "from cachetools.keys import *; from volcache_client.adapters.mapping import"
        " key_text; print(key_text(typedkey('a', 1.5, b'c', None, x=(1, True))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = key_text(typedkey("a", 1.5, b"c", None, x=(1, True)))
    assert done.stdout.strip() == here
    assert here != key_text(hashkey("a", 1.5, b"c", None, x=(1, True)))


@pytest.mark.parametrize("key", [object(), (1, [2]), frozenset({1}), print])
def test_a_key_without_a_text_is_refused(
    mapping: CacheMapping[bytes], key: Any
) -> None:
    """Its hash or address would be another in another process."""
    with pytest.raises(InvalidKeyError, match="allowed"):
        mapping[key] = b"1"


def test_a_function_returns_the_text_of_keys(client: Client[bytes]) -> None:
    """It is made safe as any other."""
    mapping = CacheMapping(client, "own/", key=lambda key: "/".join(map(str, key)))
    mapping[1, "..", "a"] = b"1"
    assert client.get("own/1/%2E%2E/a") == b"1"


@pytest.mark.parametrize("prefix", ["", "/", "a"])
def test_a_prefix_that_is_none_is_refused(client: Client[bytes], prefix: str) -> None:
    """Two mappings of one client would have the same keys."""
    with pytest.raises(InvalidArgumentError, match="slash"):
        CacheMapping(client, prefix)


def test_an_outage_is_a_miss_if_the_client_says_so() -> None:
    """A function is then called each time."""
    url = f"http://127.0.0.1:{pick_port()}"
    calls = []
    with Client(url, serializer="json", on_error="miss") as client:
        mapping = CacheMapping(client, "map/")

        @cached(cache=mapping)
        def length(text: str) -> int:
            calls.append(text)
            return len(text)

        assert [length("abc"), length("abc")] == [3, 3]
        assert len(calls) == 2
        assert "a" not in mapping
        assert mapping.pop("a", 5) == 5
        assert mapping.setdefault("a", 6) == 6
        with pytest.raises(KeyError):
            del mapping["a"]
