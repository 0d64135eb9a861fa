"""Values that an embedded cache makes: each once, and memoized functions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import pytest

from support.embedded import Cache
from support.waiting import wait_until
from volcache.errors import DiskFullError, StoreIOError
from volcache_client.errors import (
    ClientUsageError,
    InvalidArgumentError,
    SerializationError,
    StorageError,
    ValueTooLargeError,
)


def test_of_many_threads_one_makes_the_value_and_all_get_it(cache: Cache) -> None:
    """It is stored."""
    begun, go_on = Event(), Event()
    made: list[None] = []

    def make() -> bytes:
        made.append(None)
        begun.set()
        go_on.wait(30)
        return b"value"

    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(cache.get_or_set, "key", make)
        begun.wait(30)
        others = [pool.submit(cache.get_or_set, "key", make) for _ in range(19)]
        go_on.set()
        assert {one.result() for one in (first, *others)} == {b"value"}
    assert len(made) == 1
    assert cache["key"] == b"value"


def test_exception_of_make_is_raised_and_the_next_call_begins_again(
    cache: Cache,
) -> None:
    """Also if what it returns cannot be stored, or it asks for its own key."""
    text: Any = "text"

    def fail() -> bytes:
        raise OSError("the source is down")

    for make, error in (
        (fail, OSError),
        (lambda: bytes(cache.volume_size), ValueTooLargeError),
        (lambda: text, SerializationError),
        (lambda: cache.get_or_set("key", fail), ClientUsageError),
    ):
        with pytest.raises(error):
            cache.get_or_set("key", make)
        assert "key" not in cache
    found = cache.get_or_set("a", lambda: cache.get_or_set("b", lambda: b"1") + b"2")
    assert found == b"12"


@pytest.mark.parametrize(
    "error", [DiskFullError(volume=1, needed=1, free=0), StoreIOError("EIO")]
)
def test_value_that_the_disk_refuses_is_returned(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is made again by the next call."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cache._session.store, "put", refuse)
    assert cache.get_or_set("k", lambda: b"1") == b"1"
    assert cache.get_or_set("k", lambda: b"2") == b"2"
    with pytest.raises(StorageError, match=str(error)):
        cache["k"] = b"3"


def test_stale_value_is_returned_while_one_thread_renews_it(cache: Cache) -> None:
    """A renewal that fails leaves the value, and is not tried again at once."""
    made: list[None] = []
    go_on = Event()

    def make() -> bytes:
        if made:
            go_on.wait(30)
        made.append(None)
        return b"%d" % len(made)

    def fail() -> bytes:
        made.append(None)
        raise OSError("the source is down")

    def is_stale() -> bool:
        stat = cache.stat("key")
        return stat is not None and stat.ttl is not None and stat.ttl < 1000

    get = partial(cache.get_or_set, "key", ttl=0.01, stale=1000)
    assert get(make) == b"1"
    wait_until(is_stale, "the value to be stale")
    assert {get(make) for _ in range(5)} == {b"1"}
    go_on.set()
    wait_until(lambda: cache["key"] == b"2", "the new value")
    wait_until(is_stale, "the new value to be stale")
    wait_until(lambda: get(fail) == b"2" and len(made) == 3, "a renewal that fails")
    assert {get(fail) for _ in range(5)} == {b"2"}
    assert len(made) == 3
    with pytest.raises(InvalidArgumentError, match="stale="):
        get(make, stale=-1)


def test_memoized_function_is_called_once_for_the_same_arguments(cache: Cache) -> None:
    """Until the result is forgotten, or the prefix purged."""
    calls: list[int] = []

    @cache.memoize(prefix="made")
    def made(number: int = 1) -> bytes:
        calls.append(number)
        return b"%d" % len(calls)

    assert made(1) == made() == made(number=1) == b"1"
    assert made(2) == b"2"
    assert made.forget(1)
    assert made(1) == b"3"
    cache.purge("memo/made/")
    assert made(2) == b"4"


def test_method_is_memoized_by_a_key_of_its_own(cache: Cache) -> None:
    """An object has no text that identifies it."""

    class User:
        number = 1

        @cache.memoize(key=lambda self, what: f"user/{self.number}/{what}")
        def read(self, what: str) -> bytes:
            return f"{what} of {self.number}".encode()

    assert User().read("name") == User().read("name") == b"name of 1"
    assert cache["user/1/name"] == b"name of 1"
