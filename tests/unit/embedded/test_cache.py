"""embedded/cache.py: a directory as a mapping."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import volcache
from support.embedded import Cache, open_small, use_as_a_typed_program
from support.process import SOURCE
from support.waiting import wait_until
from volcache.store import Store
from volcache_client.errors import (
    ClientUsageError,
    InvalidArgumentError,
    InvalidKeyError,
    SerializationError,
    ValueTooLargeError,
)

SOON = 0.01


@pytest.fixture
def json_cache(tmp_path: Path) -> Iterator[volcache.EmbeddedCache[Any]]:
    """Open a small cache of JSON."""
    with open_small(tmp_path / "json", serializer="json") as opened:
        yield opened


def test_value_is_read_as_it_was_stored(cache: Cache) -> None:
    """Whatever its bytes; text and its UTF-8 are the same key."""
    for value in (b"", b"\0\xff", bytes(500_000)):
        cache["kéy"] = value
        assert cache["kéy"] == cache["kéy".encode()] == cache.get("kéy") == value
    assert len(cache) == 1
    assert list(cache) == ["kéy".encode()]


def test_value_survives_closing_and_opening(tmp_path: Path) -> None:
    """With its expiry and ETag."""
    with open_small(tmp_path) as cache:
        etag = cache.set("a", b"1", ttl=1000, content_type="text/plain")
        cache["b"] = b"2"
        del cache["b"]
    with open_small(tmp_path) as cache:
        assert dict(cache.items()) == {b"a": b"1"}
        stat = cache.stat("a")
        assert stat is not None
        assert (stat.size, stat.etag, stat.content_type) == (1, etag, "text/plain")
        assert stat.ttl is not None
        assert 900 < stat.ttl <= 1000


def test_missing_key_is_a_key_error_as_in_a_dict(cache: Cache) -> None:
    """It has the key as it was given."""
    for call in (cache.__getitem__, cache.__delitem__, cache.pop):
        with pytest.raises(KeyError) as caught:
            call("none")
        assert caught.value.args == ("none",)
    with pytest.raises(KeyError):
        cache.popitem()
    assert cache.get("none") is None
    assert cache.get("none", b"x") == cache.get("none", default=b"x") == b"x"
    assert cache.pop("none", b"x") == b"x"
    assert cache.pop("none", default=None) is None
    assert cache.stat("none") is None
    assert cache.get_item("none") is None
    assert "none" not in cache
    assert not cache.delete("none")
    assert not cache.touch("none", 5)


def test_views_and_popitem_have_what_was_stored(cache: Cache) -> None:
    """As those of a dict; `test_session.py` compares the other methods with them."""
    model: dict[bytes, bytes] = {
        b"%d" % number: b"%d" % (number * number) for number in range(30)
    }
    cache.set_many(model)
    assert dict(cache.items()) == model
    assert sorted(cache.keys()) == sorted(model.keys())
    assert sorted(cache.values()) == sorted(model.values())
    assert cache.get_many([*model, b"none"]) == model
    while model:
        key, value = cache.popitem()
        assert model.pop(key) == value
    assert not list(cache)


def test_cache_is_a_mutable_mapping_and_equal_to_itself_only(
    cache: Cache, tmp_path: Path
) -> None:
    """To compare the values, all were read."""
    assert isinstance(cache, MutableMapping)
    with open_small(tmp_path / "other") as other:
        assert cache != other
        assert cache == cache  # noqa: PLR0124
        assert len({cache, other}) == 2
        assert isinstance(other, Mapping)


def test_add_replace_cas_and_delete_have_their_condition(cache: Cache) -> None:
    """Each tells whether it was done."""
    missing = '"1-00000001"'
    assert cache.replace("a", b"0") is None
    assert cache.cas("a", b"0", missing) is None
    first = cache.add("a", b"1")
    assert first
    assert cache.add("a", b"2") is None
    found = cache.get_item("a")
    assert found is not None
    assert (found.value, found.stat.etag) == (b"1", first)
    second = cache.cas("a", b"3", first, content_type="text/plain")
    assert second
    assert cache.cas("a", b"4", first) is None
    assert not cache.delete("a", first)
    assert cache["a"] == b"3"
    third = cache.replace("a", b"5")
    assert third
    assert len({first, second, third}) == 3
    assert cache.delete("a", third)
    for wrong in ("", "1", 'W/"1"', None, 1):
        value: Any = wrong
        with pytest.raises(InvalidArgumentError, match="etag="):
            cache.cas("a", b"", value)


def test_numbers_are_counted_and_keep_their_time_to_live(cache: Cache) -> None:
    """As in memcached: unsigned, of 64 bits, and not below 0."""
    assert cache.incr("n") is None
    assert cache.incr("n", 5, initial=10, ttl=1000) == 10
    assert cache.incr("n", 5) == 15
    assert cache.decr("n", 20) == 0
    assert cache["n"] == b"0"
    stat = cache.stat("n")
    assert stat is not None
    assert stat.ttl is not None
    assert 900 < stat.ttl <= 1000
    cache["n"] = b"%d" % (2**64 - 1)
    assert cache.incr("n", 2) == 1
    store = cache._session.store
    for value in (b"", b"-1", b"1.0", b" 1", b"1" * 21, b"%d" % 2**64):
        cache["n"] = value
        with pytest.raises(InvalidArgumentError, match="not a number"):
            cache.incr("n")
        assert cache["n"] == value
    wrong: list[Any] = [-1, 2**64, 1.0, "1", True]
    for delta in wrong:
        with pytest.raises(InvalidArgumentError, match="delta="):
            cache.incr("n", delta)
    assert cache._session.store is store  # It was not opened again.


def test_files_are_stored_and_streamed_without_the_serializer(
    json_cache: volcache.EmbeddedCache[Any], tmp_path: Path
) -> None:
    """A file is read from its position; parts are not lines."""
    path = tmp_path / "file"
    path.write_bytes(b"[1]\n" * 50_000)
    assert json_cache.set_file("a", path)
    with path.open("rb") as file:
        file.seek(4 * 49_999)
        assert json_cache.set_file("b", file, content_type="text/plain")
    with json_cache.stream("a") as reader:
        assert reader is not None
        assert reader.stat.size == 200_000
        assert reader.read(3) == b"[1]"
        parts = list(reader)
    assert len(parts) == 4
    assert b"[1]" + b"".join(parts) == path.read_bytes()
    assert json_cache["b"] == [1]
    with json_cache.stream("none") as reader:
        assert reader is None
    wrong: list[Any] = [5, StringIO("text")]
    for source in wrong:
        with pytest.raises(InvalidArgumentError, match="neither a path nor a file"):
            json_cache.set_file("c", source)


def test_etag_is_that_of_the_server(tmp_path: Path) -> None:
    """For what either has stored."""
    with open_small(tmp_path) as cache:
        etags = {b"a": cache.set("a", b"1"), b"b": cache.set_many({"b": b"2"})["b"]}
    store = Store.open(str(tmp_path), volume_size=1 << 20, volume_num=8)
    found = {key: store.stat(key) for key in etags}
    assert {key: record and record.etag for key, record in found.items()} == etags
    store.close()


def test_expired_value_is_a_miss(cache: Cache) -> None:
    """For all methods, and for `add`."""
    cache.set("a", b"1", ttl=SOON)
    cache.set("b", b"2", ttl=1000)
    cache.set("c", b"3")
    wait_until(lambda: cache.get("a") is None, "a value to expire")
    assert "a" not in cache
    assert cache.stat("a") is None
    assert list(cache) == [b"b", b"c"]
    assert cache.add("a", b"4", ttl=math.inf)
    assert cache["a"] == b"4"
    assert cache.stats().expired_misses > 0


def test_touch_changes_when_a_value_expires_and_nothing_else(cache: Cache) -> None:
    """It keeps the ETag."""
    etag = cache.set("a", b"1", ttl=1000, content_type="text/plain")
    before = cache.stat("a")
    assert before is not None
    assert cache.touch("a")
    after = cache.stat("a")
    assert after == before._replace(ttl=None, position=after.position if after else "")
    assert cache.touch("a", 2000)
    stat = cache.stat("a")
    assert stat is not None
    assert stat.ttl is not None
    assert 1900 < stat.ttl <= 2000
    assert stat.etag == etag


def test_default_ttl_is_for_values_without_one(tmp_path: Path) -> None:
    """`math.inf` is one."""
    with open_small(tmp_path, default_ttl=SOON) as cache:
        cache["a"] = b"1"
        cache.set("b", b"2", ttl=math.inf)
        cache.set_many({"c": b"3"})
        wait_until(lambda: list(cache) == [b"b"], "values to expire")


def test_wrong_times_keys_and_values_are_refused(cache: Cache) -> None:
    """By every method, with what is allowed; nothing is stored or opened again."""
    store = cache._session.store
    ttls: list[Any] = [0, -1, math.nan, 2**31 + 1, -math.inf, "60", True, b""]
    for ttl in ttls:
        with pytest.raises(InvalidArgumentError, match="ttl="):
            cache.set("a", b"1", ttl=ttl)
    keys: list[Any] = ["", "\ud800", "a\nb", "é" * 512 + "e", 1, None, ("a",)]
    calls: list[Any] = [cache.get, cache.delete, cache.stat, cache.touch, cache.incr]
    calls += [lambda key: cache.set(key, b"1"), lambda key: cache.get_many([key])]
    for key, call in product(keys, calls):
        with pytest.raises(InvalidKeyError):
            call(key)
    values: list[Any] = ["text", 1, None, [1]]
    for value in values:
        with pytest.raises(SerializationError, match="serializer="):
            cache["a"] = value
    with pytest.raises(InvalidArgumentError, match="is one key"):
        cache.get_many("abc")
    with pytest.raises(InvalidArgumentError, match="content_type="):
        cache.set("a", b"1", content_type="a\n")
    assert not list(cache)
    assert cache._session.store is store


@pytest.mark.parametrize("key", ["a/.b", "..a", ".a", "a//b", "pkg/-/x", "é" * 512])
def test_unusual_key_is_stored_under_its_own_bytes(cache: Cache, key: str) -> None:
    """Only whole segments are special; the length is that in UTF-8."""
    cache[key] = b"1"
    assert list(cache) == [key.encode()]


def test_value_is_bytes_like_without_a_serializer(cache: Cache) -> None:
    """What is read is bytes."""
    values: list[Any] = [bytearray(b"abc"), memoryview(b"abcabc")[::2], b"aac"]
    for value in values:
        cache["a"] = value
        assert cache["a"] == bytes(value)


def test_value_larger_than_a_volume_is_refused_and_the_old_one_stays(
    cache: Cache,
) -> None:
    """The error names the largest."""
    cache["a"] = b"1"
    with pytest.raises(ValueTooLargeError, match="allowed are 0 to"):
        cache["a"] = bytes(cache.volume_size)
    assert cache["a"] == b"1"


def test_json_is_read_as_it_was_stored(json_cache: volcache.EmbeddedCache[Any]) -> None:
    """None is a value."""
    for value in (None, 1, "é", [1, {"a": [True]}], 1.5):
        json_cache["a"] = value
        assert json_cache["a"] == value
        assert "a" in json_cache
    assert json_cache.get_or_set("b", lambda: [1, 2]) == [1, 2]
    with pytest.raises(SerializationError, match="not JSON serializable"):
        json_cache["a"] = {1j}
    assert json_cache["a"] == 1.5


def test_purge_drops_what_begins_with_the_prefix(cache: Cache) -> None:
    """And nothing that is stored later."""
    cache.set_many({"a/1": b"1", "a/2": b"2", "b/1": b"3"})
    cache.purge("a/")
    assert list(cache) == [b"b/1"]
    cache["a/1"] = b"4"
    assert sorted(cache) == [b"a/1", b"b/1"]
    for prefix in ("", "-/", "a\n", "x" * 1025):
        with pytest.raises(InvalidArgumentError, match="bad prefix"):
            cache.purge(prefix)


def test_clear_and_delete_many_drop_keys(cache: Cache) -> None:
    """Of several, those that have a value are counted."""
    cache.set_many({str(number): b"" for number in range(10)})
    assert cache.delete_many(["1", "2", "none"]) == 2
    assert len(cache) == 8
    cache.clear()
    assert len(cache) == 0
    assert not list(cache)
    assert "5" not in cache


def test_full_cache_evicts_and_stays_within_its_capacity(tmp_path: Path) -> None:
    """What is evicted is a miss, what is there is right."""
    with open_small(tmp_path, capacity="4MiB") as cache:
        for number in range(300):
            cache[f"{number}"] = b"%d:" % number + bytes(50_000)
        stats = cache.stats()
        assert 20 < stats.keys < 100
        assert stats.evicted > 200
        assert stats.capacity == 4 << 20
        assert stats.disk_bytes < 4.2 * 2**20
        assert cache.get("299", b"").startswith(b"299:")
        for key, value in cache.items():
            assert value.startswith(key + b":")


def test_stats_count_hits_and_misses(cache: Cache) -> None:
    """Of `get` and what is made of it."""
    cache["a"] = b"12345"
    cache.get("a")
    cache.get("b")
    cache.get_many(["a", "b"])
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.keys) == (2, 2, 1)
    assert stats.volume_size == cache.volume_size
    assert stats.live_bytes > 0
    assert 0 < stats.disk_bytes <= stats.capacity


def test_closed_cache_refuses_every_call(tmp_path: Path) -> None:
    """Closing again is no error."""
    cache = open_small(tmp_path)
    iterator = iter(cache)
    cache.close()
    cache.close()
    calls = (
        *(lambda: cache.get("a"), lambda: cache.set("a", b"")),
        *(lambda: cache.delete("a"), lambda: "a" in cache, lambda: len(cache)),
        *(lambda: list(cache), lambda: next(iterator), lambda: cache.touch("a")),
        *(lambda: cache.add("a", b""), lambda: cache.purge("a")),
        *(lambda: cache.get_or_set("a", lambda: b""), cache.clear, cache.stats),
        *(
            cache.sync,
            lambda: cache.incr("a"),
            cache.popitem,
            cache.exclusive().__enter__,
        ),
        cache.__enter__,
    )
    for call in calls:
        with pytest.raises(ClientUsageError, match="is closed"):
            call()
    assert cache.closed
    assert "closed" in repr(cache)


def test_typed_program_does_what_its_types_say(tmp_path: Path) -> None:
    """The type checker reads it, with the rest of the tree."""
    use_as_a_typed_program(tmp_path)


def test_package_tells_type_checkers_that_it_has_types() -> None:
    """In the tree, and in what is installed."""
    assert (SOURCE / "volcache" / "py.typed").is_file()
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["volcache"]


def test_volcache_offers_its_names_only_and_loads_them_when_they_are_used() -> None:
    """Others are an AttributeError, as of any module."""
    assert {"open", "EmbeddedCache", "__version__"} <= set(dir(volcache))
    name = "nothing"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = getattr(volcache, name)


class Bytes(bytes):
    """A subclass, as numpy.bytes_ is one."""

    def __getitem__(self, _: object) -> Any:
        """Return what the store must not ask for."""
        raise AssertionError("not asked for")


class Text(str):
    """A subclass."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        """Return what the store must not ask for."""
        raise AssertionError("not asked for")


def test_subclasses_of_bytes_and_str_are_stored_as_these(cache: Cache) -> None:
    """By every method that writes; the store is not opened again."""
    store = cache._session.store
    for key in (Bytes(b"a"), Text("a")):
        value = Bytes(b"value")
        etag = cache.set(key, value)
        assert cache.cas(key, value, etag)
        assert cache.replace(key, value)
        assert not cache.add(key, value)
        assert cache.touch(key, 60)
        assert cache[key] == cache.get_or_set(key, lambda: b"") == b"value"
        assert type(cache.pop(key)) is bytes
        assert cache.setdefault(key, value) == b"value"
        cache.purge(key)
        assert key not in cache
    assert cache._session.store is store


def test_a_value_is_searched_without_counting_reads_or_failing(cache: Cache) -> None:
    """Although keys are deleted meanwhile."""
    cache.update({f"{number}": b"%d" % number for number in range(300)})

    class Deleting(bytes):
        def __eq__(self, other: object) -> bool:
            del cache[next(iter(cache))]
            return super().__eq__(other)

        __hash__ = bytes.__hash__

    before = cache.stats()
    assert b"299" in cache.values()
    assert Deleting(b"none") not in cache.values()
    assert (cache.stats().hits, cache.stats().misses) == (before.hits, before.misses)
