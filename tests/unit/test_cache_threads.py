"""cache.py: what another thread does at the worst moment."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.clocks import ManualClock
from support.stores import fill_volume, open_store, value_of
from support.tiers import FakeServer, make_tier
from support.wsgi_client import called, make_app
from volcache.access import Limits
from volcache.cache import Cache
from volcache.front import Copies
from volcache.store import Record, Store

NOW_MS = 1_790_000_000_000
LATER_MS = NOW_MS + 60_000
KEY = b"a/key"


class Server(FakeServer):
    """A memcached that calls what a test wants, before it stores an item."""

    before_set: Callable[[], object] | None = None

    def set(self, name: bytes, item: bytes, _expire: int) -> bool:
        """Store an item."""
        if self.before_set is not None:
            before, self.before_set = self.before_set, None
            before()
        return super().set(name, item, _expire)


class Keys(Copies):
    """Keys whose methods a test can replace."""


class Both:
    """A cache whose keys are hot at the first read, and its parts."""

    def __init__(self, store: Store) -> None:
        """Have no copies."""
        self.store = store
        self.server = Server()
        self.keys = Keys(reads=1, seconds=60)
        with mock.patch("volcache.hot.memcached.Server", return_value=self.server):
            self.hot = make_tier(["m"], self.keys, item_size_max=100_000)
        self.cache = Cache(store, self.hot)

    def overwrite_by_age(self) -> None:
        """Let the log reclaim everything that is stored; copies stay."""
        for number in range(6):
            fill_volume(self.store, b"fill %d" % number)
        assert self.store.get(KEY) is None

    def app(self) -> Any:
        """Return the application."""
        return make_app(self.cache, Limits(key_size=100, value_size=100_000))


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    """Open a store and a hot tier, with a clock that stands still."""
    clock = ManualClock(lambda: NOW_MS * 1000, lambda: 0)
    store = open_store(tmp_path, clock=clock)
    found = Both(store)
    yield found
    found.hot.close()
    store.close()


def in_a_thread(function: Callable[[], object]) -> None:
    """Call a function in another thread, and wait for it, but not for ever."""
    ThreadPoolExecutor(1).submit(function).result(30)


def ask(both: Both, method: str, body: bytes = b"", **more: str) -> str:
    """Send a request for the key; return the status."""
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": "/" + KEY.decode(),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        **more,
    }
    return called(both.app(), environ)[0]


def put_over_http(both: Both) -> None:
    """Store another value."""
    assert ask(both, "PUT", b"new") == "200 OK"


def touch(both: Both) -> None:
    """Let the record expire later."""
    with both.cache.exclusive():
        record = both.cache.get(KEY)
        assert record is not None
        both.cache.touch(KEY, record, LATER_MS)


# Changes by another thread, and what they begin with.
CHANGES: dict[str, tuple[Callable[[Both], object], str]] = {
    "put": (lambda both: both.cache.put(KEY, b"new"), "put"),
    "put_over_http": (put_over_http, "clock.next_us"),
    "delete": (lambda both: both.cache.delete(KEY), "delete"),
    "flush": (lambda both: both.cache.flush(), "flush"),
    "purge": (lambda both: both.cache.purge(b"a/"), "purge"),
    "touch": (touch, "touch"),
}


@contextmanager
def another_thread_at(
    both: Both, moment: str, function: Callable[[], object]
) -> Iterator[None]:
    """
    Call a function once at a moment of the next promotion, in another thread.

    The moment is "sending", or the name of a method that has just been called.
    """
    done: list[bool] = []

    def once(*_: object) -> None:
        if not done:
            done.append(True)
            in_a_thread(function)

    def after(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found = method(*arguments)
            once()
            return found

        return call

    if moment == "sending":
        both.server.before_set = once
        yield
    else:
        owner: Any = both.keys if moment == "promote" else both.store
        with mock.patch.object(owner, moment, after(getattr(owner, moment))):
            yield
    assert done


def assert_right(both: Both, change: str) -> None:
    """Check what is got after a change, when the log has overwritten what replaced it."""
    both.overwrite_by_age()
    for _ in range(2):
        record = both.cache.get(KEY)
        if record is not None and change == "touch":
            assert (record.value, record.expires_ms) == (b"old", LATER_MS)
        elif record is not None:
            assert record.value == b"new"
            assert change.startswith("put")


@pytest.mark.parametrize("moment", ["read_raw", "promote", "is_current", "sending"])
@pytest.mark.parametrize("change", CHANGES)
def test_promote_while_another_thread_changes_the_key_is_never_used(
    both: Both, change: str, moment: str
) -> None:
    """Neither at once nor later."""
    both.cache.put(KEY, b"old", expires_ms=NOW_MS + 9000)
    with another_thread_at(both, moment, lambda: CHANGES[change][0](both)):
        assert value_of(both.cache.get(KEY)) == b"old"
    assert_right(both, change)


@pytest.mark.parametrize("change", CHANGES)
def test_promote_just_before_a_change_is_never_used(both: Both, change: str) -> None:
    """The change has begun when another thread promotes the key."""
    make, name = CHANGES[change]
    owner: Any = both.store
    *parts, name = name.split(".")
    for part in parts:
        owner = getattr(owner, part)
    both.cache.put(KEY, b"old", expires_ms=NOW_MS + 9000)
    method = getattr(owner, name)

    def promote_first(*arguments: Any, **options: Any) -> Any:
        in_a_thread(lambda: both.cache.get(KEY))
        assert both.server.items
        return method(*arguments, **options)

    with mock.patch.object(owner, name, promote_first):
        make(both)
    assert_right(both, change)


def test_touch_key_of_the_hot_tier_only_stores_it(both: Both) -> None:
    """It is on the disk then, as the same version, and no copy expires earlier."""
    stored = both.cache.put(KEY, b"old", expires_ms=NOW_MS + 9000, flags=7)
    both.cache.get(KEY)
    both.overwrite_by_age()
    touch(both)
    found = both.store.get(KEY)
    assert found is not None
    assert (found.value, found.expires_ms, found.flags) == (b"old", LATER_MS, 7)
    assert found.stored_us == stored.stored_us
    copies = both.cache.get(KEY), both.cache.get(KEY)
    assert [copy and (copy.source, copy.expires_ms) for copy in copies] == [
        ("DISK", LATER_MS),
        ("MEMC", LATER_MS),
    ]


def test_get_within_exclusive_reads_the_disk(both: Both) -> None:
    """Others would wait for memcached; and nothing is promoted."""
    both.cache.put(KEY, b"old")
    with both.cache.exclusive():
        assert [both.cache.get(KEY).source for _ in range(3)] == ["DISK"] * 3  # type: ignore[union-attr]
        assert not both.server.items
    sources = [both.cache.get(KEY).source for _ in range(2)]  # type: ignore[union-attr]
    assert sources == ["DISK", "MEMC"]
    with both.cache.exclusive(), both.cache.exclusive():
        assert both.cache.get(KEY).source == "DISK"  # type: ignore[union-attr]
    both.overwrite_by_age()
    with both.cache.exclusive():
        assert both.cache.get(KEY).source == "MEMC"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("method", "condition", "status"),
    [
        ("PUT", "HTTP_IF_NONE_MATCH", "200 OK"),
        ("PUT", "HTTP_IF_MATCH", "412 Precondition Failed"),
        ("DELETE", "HTTP_IF_MATCH", "404 Not Found"),
    ],
)
def test_condition_with_a_put_meanwhile_is_decided_and_obeyed_at_once(
    both: Both, method: str, condition: str, status: str
) -> None:
    """A put of another thread between both waits until the request is done."""
    stat, threads = both.store.stat, list[threading.Thread]()

    def stat_and_wait(key: bytes) -> Record | None:
        found = stat(key)
        thread = threading.Thread(target=lambda: both.cache.put(KEY, b"other"))
        thread.start()
        threads.append(thread)
        thread.join(0.05)
        assert thread.is_alive()
        return found

    with mock.patch.object(both.store, "stat", stat_and_wait):
        assert ask(both, method, b"new", **{condition: "*"}) == status
    [thread] = threads
    thread.join(30)
    assert value_of(both.store.get(KEY)) == b"other"


def test_delete_twice_of_a_copy_finds_it_once(both: Both) -> None:
    """Of a key that is only in the hot tier."""
    both.cache.put(KEY, b"old")
    both.cache.get(KEY)
    both.overwrite_by_age()
    found: list[bool] = []
    delete_in_store = both.store.delete

    def delete_twice(key: bytes) -> bool:
        if not found:
            found.append(False)
            found.append(both.cache.delete(KEY))
        return delete_in_store(key)

    with mock.patch.object(both.store, "delete", delete_twice):
        found.append(both.cache.delete(KEY))
    assert found[1:] == [True, False]
