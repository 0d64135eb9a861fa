"""embedded/cache.py: a directory as a mapping."""

from __future__ import annotations

import math
import tomllib
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
    ValueTooLargeError,
)

SOON = 0.01


def test_open_after_close_has_the_values(tmp_path: Path) -> None:
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


def test_item_of_a_missing_key_raises_key_error(cache: Cache) -> None:
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


def test_views_and_popitem_return_what_was_stored(cache: Cache) -> None:
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


def test_set_returns_the_etag_of_the_server(tmp_path: Path) -> None:
    """For what either has stored."""
    with open_small(tmp_path) as cache:
        etags = {b"a": cache.set("a", b"1"), b"b": cache.set_many({"b": b"2"})["b"]}
    store = Store.open(str(tmp_path), volume_size=1 << 20, volume_num=8)
    found = {key: store.stat(key) for key in etags}
    assert {key: record and record.etag for key, record in found.items()} == etags
    store.close()


def test_touch_changes_the_ttl_only(cache: Cache) -> None:
    """It keeps the ETag."""
    cache.set("a", b"1", ttl=1000, content_type="text/plain")
    before = cache.stat("a")
    assert cache.touch("a")
    after = cache.stat("a")
    assert before is not None
    assert after == before._replace(ttl=None, position=after.position if after else "")


def test_set_without_ttl_gets_the_default_ttl(tmp_path: Path) -> None:
    """`math.inf` is one."""
    with open_small(tmp_path, default_ttl=SOON) as cache:
        cache["a"] = b"1"
        cache.set("b", b"2", ttl=math.inf)
        cache.set_many({"c": b"3"})
        wait_until(lambda: list(cache) == [b"b"], "values to expire")


def test_refused_change_keeps_the_value(cache: Cache) -> None:
    """What is refused is the call."""
    cache["n"] = b"x"
    with pytest.raises(InvalidArgumentError, match="not a number"):
        cache.incr("n")
    with pytest.raises(ValueTooLargeError, match="allowed are 0 to"):
        cache["n"] = bytes(cache.volume_size)
    with pytest.raises(InvalidArgumentError, match="is one key"):
        cache.get_many("abc")
    assert cache["n"] == b"x"


def test_set_in_a_full_cache_evicts_and_keeps_the_capacity(tmp_path: Path) -> None:
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


def test_call_of_a_closed_cache_is_refused(cache: Cache) -> None:
    """Closing again is no error."""
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


def test_typed_program_returns_the_types_it_asserts(tmp_path: Path) -> None:
    """The type checker reads it, with the rest of the tree."""
    use_as_a_typed_program(tmp_path)


def test_package_has_py_typed() -> None:
    """In the tree, and in what is installed."""
    assert (SOURCE / "volcache" / "py.typed").is_file()
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["volcache"]


def test_module_with_an_unknown_name_raises_attribute_error() -> None:
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


def test_write_of_subclasses_of_bytes_and_str_stores_plain_ones(cache: Cache) -> None:
    """By every method that writes."""
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


def test_values_searched_while_keys_are_deleted_counts_no_reads(cache: Cache) -> None:
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
