"""
Two threads use one cache, one of them through HTTP: no answer is outdated or mixed up.

Every value names its key and has a checksum. Of each key it is known which version was
stored, deleted or purged last before a read began: what the read returns is not older.
Counters that both threads increment have the exact sum.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from google_crc32c import value as crc32c

from support.extent import EXTENT
from support.stores import open_store
from support.tiers import FakeServer, make_keys, make_tier
from support.wsgi_client import called
from volcache.cache import Cache
from volcache.hot.memcached import MemcachedTier
from volcache.http.app import App, RequestLimits
from volcache.memcache import executor as memcache
from volcache.memcache.commands import (
    Arithmetic,
    Delete,
    Get,
    Put,
    Result,
    Status,
    Touch,
)
from volcache.store import Record

pytestmark = pytest.mark.property

STEPS: Final = 4_000 * EXTENT or 150_000
KEYS: Final = [b"%s/%d" % (folder, n) for folder in (b"p", b"q") for n in range(60)]
COUNTERS: Final = [b"counter/%d" % number for number in range(4)]
VOLUME_SIZE: Final = 128 << 10
VALUE_MAX: Final = 20_000


def make_value(dice: random.Random, key: bytes) -> bytes:
    """Return a value of a key that can be checked."""
    length = dice.choice([0, 10, 300, 300, 2000, 2000, 8000, 17_000])
    start = b"%s %d " % (key, dice.getrandbits(60))
    text = (start * (1 + length // len(start)))[: max(length, len(start))]
    return b"%s%08x" % (text, crc32c(text))


def assert_is_of(value: bytes, key: bytes) -> None:
    """Check a value."""
    assert value.startswith(key + b" "), (key, value[:40])
    assert b"%08x" % crc32c(value[:-8]) == value[-8:], key


class Known:
    """From which time on a record may be that of a key."""

    def __init__(self, cache: Cache) -> None:
        """Know nothing."""
        self._cache = cache
        self._lock = threading.Lock()
        self._since = dict.fromkeys(KEYS, 0)

    def now_us(self) -> int:
        """Return the time by the clock of the store."""
        return self._cache.store.clock.now_us()

    def note(self, key: bytes, since_us: int) -> None:
        """Note that an older record was replaced or deleted."""
        with self._lock:
            self._since[key] = max(self._since[key], since_us)

    def since(self, key: bytes) -> int:
        """Return the time before a read begins."""
        return self._since[key]


class Worker:
    """One thread; an error ends it, and is raised by `join`."""

    def __init__(self, cache: Cache, known: Known, seed: int) -> None:
        """Begin with a seed."""
        self.cache, self.known = cache, known
        self.dice = random.Random(seed)  # noqa: S311 - To be repeated.
        self.increments = 0
        self.drained = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        """Do the steps."""
        try:
            for number in range(STEPS):
                self.step(number)
        except BaseException as error:  # noqa: BLE001 - Raised by the test.
            self.error = error

    def step(self, number: int) -> None:
        """Do one thing."""
        raise NotImplementedError

    def key(self) -> bytes:
        """Return a key, some of them more often than others."""
        return KEYS[min(self.dice.randrange(len(KEYS)), self.dice.randrange(len(KEYS)))]


class HttpWorker(Worker):
    """Uses the application, as bjoern's thread does."""

    def __init__(self, cache: Cache, known: Known) -> None:
        """Serve the cache."""
        super().__init__(cache, known, seed=1)
        self.app = App(cache, RequestLimits(key_size=100, value_size=VALUE_MAX))
        self.stats = 0

    def ask(
        self, method: str, key: bytes, body: bytes = b"", **more: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one request."""
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": "/" + key.decode(),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body),
            **more,
        }
        status, headers, answer = called(self.app, environ)
        return int(status[:3]), dict(headers), b"".join(answer)

    def step(self, number: int) -> None:
        """Send a request, and check its answer."""
        dice, key = self.dice, self.key()
        what = dice.randrange(20)
        if number % 997 == 500:
            self.flush()
        elif what < 9:
            self.get(key)
        elif what < 14:
            self.put(key, {})
        elif what < 15:
            self.put(key, {"HTTP_IF_NONE_MATCH": "*"})
        elif what < 17:
            since = self.known.now_us()
            code, _, _ = self.ask("DELETE", key)
            assert code in {200, 404}
            self.known.note(key, since)
        elif what < 19:
            self.increment(dice.choice(COUNTERS))
        else:
            self.look()

    def get(self, key: bytes) -> None:
        """Read a key."""
        since = self.known.since(key)
        code, headers, body = self.ask(self.dice.choice(["GET", "GET", "HEAD"]), key)
        assert code in {200, 404}
        if code == 404:
            return
        stored_us = int(headers["ETag"].strip('"').split("-")[0], 16)
        assert stored_us >= since, (key, stored_us, since)
        if body:
            assert_is_of(body, key)

    def put(self, key: bytes, more: dict[str, str]) -> None:
        """Store a value."""
        code, headers, _ = self.ask("PUT", key, make_value(self.dice, key), **more)
        if more and code == 412:
            return
        assert code == 200
        self.known.note(key, int(headers["ETag"].strip('"').split("-")[0], 16))

    def increment(self, key: bytes) -> None:
        """Add 1 to a counter, by conditions."""
        while True:
            code, headers, body = self.ask("GET", key)
            condition = {"HTTP_IF_NONE_MATCH": "*"}
            if code == 200:
                condition = {"HTTP_IF_MATCH": headers["ETag"]}
            value = b"%d" % (int(body) + 1 if code == 200 else 1)
            code, _, _ = self.ask("PUT", key, value, **condition)
            if code == 200:
                self.increments += 1
                return
            assert code == 412

    def flush(self) -> None:
        """Drop everything, after the counters were read."""
        with self.cache.exclusive():
            since = self.known.now_us()
            for key in COUNTERS:
                record = self.cache.get(key)
                self.drained += int(record.value) if record else 0
            self.cache.flush()
        for key in KEYS:
            self.known.note(key, since)

    def look(self) -> None:
        """Read what monitoring shows."""
        self.stats += self.cache.store.usage().keys
        self.app.stats.requests()
        self.app.stats.latencies()
        self.app.stats.hottest(5)
        self.cache.waited_since(0)
        self.cache.hot_state()
        self.cache.store.sync()


class MemcacheWorker(Worker):
    """Executes commands, as the thread of the memcached listener does."""

    def __init__(self, cache: Cache, known: Known) -> None:
        """Use the cache."""
        super().__init__(cache, known, seed=2)
        self.executor = memcache.Executor(
            cache, memcache.ValueLimits(key_size=100, value_size=VALUE_MAX)
        )

    def step(self, number: int) -> None:
        """Execute a command, and check its result."""
        dice, key = self.dice, self.key()
        what = dice.randrange(20)
        if number % 499 == 250:
            since = self.known.now_us()
            self.cache.purge(b"p/")
            for one in KEYS[:60]:
                self.known.note(one, since)
        elif what < 8:
            self.get(key)
        elif what < 12:
            self.put(key, dice.choice(["set", "add", "replace"]))
        elif what < 14:
            since = self.known.now_us()
            result = self.executor.delete(Delete("delete", key))
            assert result.status in {Status.DELETED, Status.NOT_FOUND}
            self.known.note(key, since)
        elif what < 15:
            self.compare_and_swap(key)
        elif what < 17:
            self.touch(key)
        else:
            result = self.executor.arithmetic(
                Arithmetic("incr", dice.choice(COUNTERS), 1, initial=1)
            )
            assert result.status is Status.STORED
            self.increments += 1

    def get(self, key: bytes) -> Record | None:
        """Read a key."""
        since = self.known.since(key)
        record = self.executor.get(Get("get", key)).record
        if record is not None:
            assert record.stored_us >= since, (key, record, since)
            assert_is_of(record.value, key)
        return record

    def put(self, key: bytes, mode: Any, cas: int = 0) -> Result:
        """Store a value."""
        value, flags = make_value(self.dice, key), self.dice.choice([0, 7])
        result = self.executor.put(Put(mode, key, mode, value, flags, cas=cas))
        if result.record is not None:
            self.known.note(key, result.record.stored_us)
        return result

    def compare_and_swap(self, key: bytes) -> None:
        """Replace the version that was read."""
        record = self.get(key)
        if record is None:
            return
        since = self.known.since(key)
        result = self.put(key, "set", record.stored_us)
        if result.status is Status.STORED:
            assert record.stored_us >= since
        else:
            assert result.status in {Status.EXISTS, Status.NOT_FOUND}

    def touch(self, key: bytes) -> None:
        """Set an expiry; as long as it is the same version, it has this one."""
        result = self.executor.touch(Touch("touch", key, self.dice.randrange(99, 999)))
        if result.status is not Status.TOUCHED:
            assert result.status is Status.NOT_FOUND
            return
        touched = result.record
        assert touched is not None
        for read in (self.cache.get, self.cache.stat, self.cache.get):
            record = read(key)
            if record is not None and record.stored_us == touched.stored_us:
                assert record.expires_ms == touched.expires_ms


class LockedServer(FakeServer):
    """A memcached that forgets some items."""

    def __init__(self) -> None:
        """Hold no items."""
        super().__init__()
        self.sets = 0

    def set(self, name: bytes, item: bytes, expire: int) -> bool:
        """Store an item; one in five is lost, and the rest takes its time."""
        self.sets += 1
        time.sleep(0)
        return self.sets % 5 != 0 and super().set(name, item, expire)


@pytest.fixture
def often_interrupted() -> Iterator[None]:
    """Let the threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def make_hot_tier() -> MemcachedTier:
    """Return a hot tier with one server."""
    with mock.patch("volcache.hot.servers.Server", return_value=LockedServer()):
        return make_tier(["m"], make_keys(reads=2), item_size_max=VALUE_MAX)


@pytest.mark.usefixtures("often_interrupted")
@pytest.mark.parametrize("has_hot_tier", [False, True])
@pytest.mark.parametrize("sync_mode", ["none", "always"])
def test_two_threads_see_what_the_other_one_does(
    tmp_path: Path, sync_mode: str, *, has_hot_tier: bool
) -> None:
    """Over several rotations; and nothing is damaged."""
    options = {"volume_size": VOLUME_SIZE, "volume_num": 8, "sync_mode": sync_mode}
    store = open_store(tmp_path, **options)
    hot = make_hot_tier() if has_hot_tier else None
    cache = Cache(store, hot)
    known = Known(cache)
    workers: list[Worker] = [HttpWorker(cache, known), MemcacheWorker(cache, known)]
    for worker in workers:
        worker.thread.start()
    for worker in workers:
        worker.thread.join()
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    found = [cache.get(key) for key in COUNTERS]
    total = sum(int(record.value) for record in found if record)
    total += sum(worker.drained for worker in workers)
    assert total == sum(worker.increments for worker in workers)
    assert store.stats.damaged_records == store.stats.read_errors == 0
    assert store.stats.rotations > 16
    assert not has_hot_tier or cache.hot_state().stats.hits  # type: ignore[union-attr]
    latest = {key: store.get(key) for key in KEYS}
    if hot is not None:
        hot.close()
    store.close()
    assert_same_after_a_start(tmp_path, options, latest)


def assert_same_after_a_start(
    directory: Path, options: dict[str, Any], expected: dict[bytes, Record | None]
) -> None:
    """Compare all records with those of another process."""
    store = open_store(directory, **options)
    for key, record in expected.items():
        assert store.get(key) == record
    assert (store.recovery.damaged, store.recovery.torn) == (0, 0)
    store.close()
