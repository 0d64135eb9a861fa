"""Values that an embedded cache makes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from support.embedded import Cache
from support.waiting import wait_until
from volcache.errors import DiskFullError, StoreIOError
from volcache_client.errors import StorageError


def test_get_or_set_by_many_threads_makes_the_value_once(cache: Cache) -> None:
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


@pytest.mark.parametrize(
    "error",
    [partial(DiskFullError, volume=1, needed=1, free=0), partial(StoreIOError, "EIO")],
)
def test_get_or_set_on_a_disk_that_refuses_returns_the_value(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    """It is made again by the next call."""

    def refuse(*_: object, **__: object) -> None:
        raise error()

    monkeypatch.setattr(cache._session.link, "change", refuse)
    assert cache.get_or_set("k", lambda: b"1") == b"1"
    assert cache.get_or_set("k", lambda: b"2") == b"2"
    with pytest.raises(StorageError, match=str(error())):
        cache["k"] = b"3"


def test_get_or_set_of_a_stale_value_renews_it_in_one_thread(
    cache: Cache,
) -> None:
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
