"""embedded/single_flight.py and memoize.py: each value is made once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.embedded import Cache
from support.waiting import wait_until
from volcache.embedded.memoize import key_of_call
from volcache.embedded.single_flight import SingleFlight
from volcache.errors import BadKeyError, DiskFullError, StoreIOError, ValueTooLargeError

THREADS = 100


def run_waiting(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, make: Callable[[], bytes]
) -> list[bytes | BaseException]:
    """Ask for one key in a hundred threads, and let `make` return when all of them wait."""
    arrived: list[None] = []
    run = SingleFlight.run

    def note(self: SingleFlight[bytes], key: bytes, call: Callable[[], bytes]) -> bytes:
        arrived.append(None)
        return run(self, key, call)

    monkeypatch.setattr(SingleFlight, "run", note)

    def make_when_all_wait() -> bytes:
        wait_until(lambda: len(arrived) >= THREADS, "all threads")
        return make()

    def ask(_: int) -> bytes | BaseException:
        try:
            return cache.get_or_set("key", make_when_all_wait)
        except BaseException as error:  # noqa: BLE001 - It is what is tested.
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(ask, range(THREADS)))


def test_of_a_hundred_threads_one_makes_the_value_and_all_get_it(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored."""
    made: list[None] = []

    def make() -> bytes:
        made.append(None)
        return b"value"

    assert run_waiting(cache, monkeypatch, make) == [b"value"] * THREADS
    assert len(made) == 1
    assert cache["key"] == b"value"


def test_exception_of_make_reaches_all_that_wait_and_the_next_call_begins_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is stored."""

    def fail() -> bytes:
        raise OSError("the source is down")

    found = run_waiting(cache, monkeypatch, fail)
    assert {str(error) for error in found} == {"the source is down"}
    assert "key" not in cache
    assert cache.get_or_set("key", lambda: b"2") == b"2"


def test_thread_that_is_ended_leaves_the_work_to_another(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end such as by Ctrl-C is not passed on."""
    made: list[None] = []

    def make() -> bytes:
        made.append(None)
        if len(made) == 1:
            raise KeyboardInterrupt
        return b"value"

    found = run_waiting(cache, monkeypatch, make)
    assert sum(isinstance(result, KeyboardInterrupt) for result in found) == 1
    assert found.count(b"value") == THREADS - 1
    assert len(made) == 2


def test_make_that_asks_for_its_own_key_is_an_error(cache: Cache) -> None:
    """It would wait for itself."""
    with pytest.raises(RuntimeError, match="asks for the same key"):
        cache.get_or_set("a", lambda: cache.get_or_set("a", lambda: b""))
    found = cache.get_or_set("a", lambda: cache.get_or_set("b", lambda: b"1") + b"2")
    assert found == b"12"


def test_value_that_cannot_be_stored_is_an_error_for_the_caller(cache: Cache) -> None:
    """And the next call begins again."""
    with pytest.raises(ValueTooLargeError):
        cache.get_or_set("a", lambda: bytes(cache.volume_size))
    text: Any = "text"
    with pytest.raises(TypeError, match="bytes"):
        cache.get_or_set("a", lambda: text)
    assert cache.get_or_set("a", lambda: b"1") == b"1"


def test_different_keys_are_made_at_the_same_time(cache: Cache) -> None:
    """Each waits for the other here."""
    both = threading.Barrier(2, timeout=30)

    def make() -> bytes:
        both.wait()
        return b"1"

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda key: cache.get_or_set(key, make), "ab")
        assert list(found) == [b"1", b"1"]


def test_memoized_function_is_called_once_for_the_same_arguments(cache: Cache) -> None:
    """Until the key of the call is deleted, or the prefix purged."""
    calls: list[tuple[object, ...]] = []

    @cache.memoize(prefix="made")
    def made(*args: object, **kwargs: object) -> bytes:
        calls.append((args, kwargs))
        return b"%d" % len(calls)

    assert made(1) == made(1) == b"1"
    assert made("1") == b"2"
    assert made(a=1, b=2) == made(b=2, a=1) == b"3"
    assert made.__name__ == "made"
    assert cache.delete(made.key_of(1))
    assert made(1) == b"4"
    assert made("1") == b"2"
    cache.purge("made/")
    assert made("1") == b"5"


def test_memoized_function_has_its_name_in_its_keys(cache: Cache) -> None:
    """So two functions do not share results."""

    @cache.memoize()
    def one() -> bytes:
        return b"1"

    @cache.memoize()
    def two() -> bytes:
        return b"2"

    assert (one(), two(), one()) == (b"1", b"2", b"1")
    assert str(one.key_of()).startswith(f"{__name__}.test_memoized")
    with pytest.raises(BadKeyError):
        cache.memoize(prefix="-")(one)


def test_method_is_memoized_by_a_key_of_its_own(cache: Cache) -> None:
    """An object has no text that identifies it."""

    class User:
        def __init__(self, number: int) -> None:
            self.number = number

        @cache.memoize(key=lambda self, what: f"user/{self.number}/{what}")
        def read(self, what: str) -> bytes:
            return f"{what} of {self.number}".encode()

        @cache.memoize()
        def refused(self) -> bytes:
            return b""

    assert User(1).read("name") == User(1).read("name") == b"name of 1"
    assert cache["user/1/name"] == b"name of 1"
    with pytest.raises(TypeError, match=r"an argument of type User .* give memoize"):
        User(1).refused()


def test_different_arguments_have_different_keys() -> None:
    """Whatever their types are; the order of sets and of names does not matter."""
    arguments: list[tuple[object, ...]] = [
        *((), (None,), (1,), (1.0,), (True,), ("1",), (b"1",), (1, 1), ((1, 1),)),
        *(([1, 1],), ({1},), (frozenset({1}),), ({1: 1},), ((), ()), (((), ()),)),
        *(({"a": 1},), ("a,b",), ("a", "b"), ("\ud800",)),
    ]
    keys = {key_of_call("p", one, {}) for one in arguments}
    keys.add(key_of_call("p", (), {"a": 1}))
    assert len(keys) == len(arguments) + 1
    assert key_of_call("p", ({3, 1, 2},), {"x": 1, "y": 2}) == key_of_call(
        "p", ({2, 3, 1},), {"y": 2, "x": 1}
    )


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
    with pytest.raises(type(error)):
        cache["k"] = b"3"
