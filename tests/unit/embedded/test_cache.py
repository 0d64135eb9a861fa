"""embedded/cache.py: a directory as a mapping."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest

import volcache
from support.embedded import Cache, open_small, use_as_a_typed_program
from support.process import SOURCE
from support.waiting import wait_until
from volcache.errors import (
    BadKeyError,
    BadPrefixError,
    KeyTooLongError,
    StoreClosedError,
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
    """With its expiry and version."""
    with open_small(tmp_path) as cache:
        version = cache.set("a", b"1", ttl=1000)
        before = cache.stat("a")
        cache["b"] = b"2"
        del cache["b"]
    with open_small(tmp_path) as cache:
        assert dict(cache.items()) == {b"a": b"1"}
        assert cache.stat("a") == before
        assert before is not None
        assert before.version == version


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
    assert cache.read("none") is None
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


def test_add_replace_and_cas_store_under_their_condition_only(cache: Cache) -> None:
    """Each tells whether it has."""
    assert not cache.replace("a", b"0")
    assert cache.cas("a", b"0", 1) is None
    assert cache.add("a", b"1")
    assert not cache.add("a", b"2")
    found = cache.read("a")
    assert found is not None
    assert found[0] == b"1"
    version = cache.cas("a", b"3", found[1].version)
    assert version
    assert cache.cas("a", b"4", found[1].version) is None
    assert cache["a"] == b"3"
    assert cache.replace("a", b"5")
    assert cache.cas("a", b"6", version) is None
    assert cache["a"] == b"5"


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
    """It keeps the version."""
    version = cache.set("a", b"1", ttl=1000)
    assert cache.touch("a")
    entry = cache.stat("a")
    assert entry is not None
    assert entry == (1, entry.stored, None, version)
    assert cache.touch("a", 2000)
    entry = cache.stat("a")
    assert entry is not None
    assert entry.expires is not None
    assert 1900 < entry.expires - entry.stored < 2100
    assert entry.version == version


def test_default_ttl_is_for_values_without_one(tmp_path: Path) -> None:
    """`math.inf` is one."""
    with open_small(tmp_path, default_ttl=SOON) as cache:
        cache["a"] = b"1"
        cache.set("b", b"2", ttl=math.inf)
        cache.set_many({"c": b"3"})
        wait_until(lambda: list(cache) == [b"b"], "values to expire")


@pytest.mark.parametrize(
    ("ttl", "error"),
    [
        *((ttl, ValueError) for ttl in (0, -1, math.nan, 2**31 + 1, -math.inf)),
        *((ttl, TypeError) for ttl in ("60", True, b"")),
    ],
)
def test_wrong_time_to_live_is_refused(
    cache: Cache, ttl: Any, error: type[Exception]
) -> None:
    """The error names what is allowed; nothing is stored. A bool is no number here."""
    with pytest.raises(error, match=r"ttl = .* allowed is a number of seconds"):
        cache.set("a", b"1", ttl=ttl)
    assert "a" not in cache


@pytest.mark.parametrize(
    ("key", "error", "why"),
    [
        ("", BadKeyError, "it is empty.* 1 to 1024 bytes"),
        ("\ud800", BadKeyError, "not valid Unicode"),
        ("a\nb", BadKeyError, "control byte 0x0A.* 1 to 1024 bytes"),
        ("é" * 512 + "e", KeyTooLongError, "1025 bytes long; allowed are 1 to 1024"),
        *(
            (key, TypeError, f"a key of type {type(key).__name__}")
            for key in (1, None, ("a",), bytearray(b"a"))
        ),
    ],
)
def test_key_that_the_server_does_not_have_is_refused(
    cache: Cache, key: Any, error: type[Exception], why: str
) -> None:
    """By every method, with the reason and what is allowed."""
    value = b"1"
    for call in (
        *(cache.get, cache.delete, cache.stat, cache.touch),
        lambda key: cache.set(key, value),
    ):
        with pytest.raises(error, match=why):
            call(key)
    assert not list(cache)


@pytest.mark.parametrize("key", ["a/.b", "..a", ".a", "a//b", "pkg/-/x", "é" * 512])
def test_unusual_key_is_stored_under_its_own_bytes(cache: Cache, key: str) -> None:
    """Only whole segments are special; the length is that in UTF-8."""
    cache[key] = b"1"
    assert list(cache) == [key.encode()]


def test_value_is_bytes_like_without_a_serializer(cache: Cache) -> None:
    """Others are refused, and the old value stays."""
    values: list[Any] = [bytearray(b"abc"), memoryview(b"abcabc")[::2], b"aac"]
    for value in values:
        cache["a"] = value
        assert cache["a"] == bytes(value)
    wrong: list[Any] = ["text", 1, None, [1]]
    for value in wrong:
        with pytest.raises(TypeError, match="serializer="):
            cache["a"] = value
    assert cache["a"] == b"aac"


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
    assert json_cache.get_or_set("b", lambda: (1, 2)) == [1, 2]
    with pytest.raises(TypeError, match="not JSON serializable"):
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
        with pytest.raises(BadPrefixError, match="bad prefix"):
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
        assert cache.volume() == stats.disk_bytes < 4.2 * 2**20
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
        *(cache.volume, cache.sync, cache.popitem, cache.exclusive().__enter__),
        cache.__enter__,
    )
    for call in calls:
        with pytest.raises(StoreClosedError, match="is closed"):
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
        version = cache.set(key, value)
        assert cache.cas(key, value, version)
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
