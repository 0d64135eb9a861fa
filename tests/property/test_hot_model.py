"""
Both tiers against a dict, with a memcached that drops, delays and loses items.

The property: a get returns the last acknowledged value, or a miss.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.extent import examples
from support.stores import FakeClock, fill_volume, kill, open_store
from volcache.cache import Cache
from volcache.hot.memcached import MemcachedTier
from volcache.hot.promotion import MissCounters
from volcache.hot.servers import ServerDownError
from volcache.hot.versions import KeyVersions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.property

KEYS = st.sampled_from([b"a", b"b", b"c"])


class Memcached:
    """A dict, and the items that have not arrived yet."""

    def __init__(self) -> None:
        """Start empty."""
        self.items: dict[bytes, bytes] = {}
        self.delayed: list[tuple[bytes, bytes]] = []
        self.is_up = True
        self.fails_next = ""
        self.is_confused = False

    def get(self, name: bytes) -> bytes | None:
        """Return an item; if `is_confused`, that of another key."""
        with self._answering():
            if self.is_confused and self.items:
                self.is_confused = False
                return self.items[min(self.items)]
            return self.items.get(name)

    def set(self, name: bytes, item: bytes, _expire: int) -> bool:
        """Store an item; if `fails_next`, later or never."""
        with self._answering():
            if self.fails_next == "late":
                self.delayed.append((name, item))
            elif self.fails_next != "lost":
                self.items[name] = item
            return True

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Fail once if `fails_next` is set."""
        if not self.is_up:
            raise ServerDownError("down")
        yield
        if self.fails_next:
            self.fails_next = ""
            self.is_up = False
            raise ServerDownError("timeout")

    def probe(self) -> None:
        """Do nothing: a rule brings the server up."""

    def close(self) -> None:
        """Keep the items."""


class HotMachine(RuleBasedStateMachine):
    """Puts, deletes, rotations, failures and restarts in any order; reads after each."""

    def __init__(self) -> None:
        """Start with an empty store and an empty memcached."""
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.memcached = Memcached()
        self.clock = FakeClock()
        self.model: dict[bytes, tuple[bytes, int]] = {}
        self.writes = 0
        self.open()

    def open(self) -> None:
        """Start the process."""
        self.store = open_store(self.directory, volume_num=2, clock=self.clock)
        versions = KeyVersions(
            self.store.journal(), store_id=self.store.store_id, boot_id="boot"
        )
        with mock.patch("volcache.hot.servers.Server", return_value=self.memcached):
            self.hot = MemcachedTier(
                ["m"], versions, timeout=0.05, item_size_max=100_000
            )
        counters = MissCounters(count=2, duration_ms=60_000, clock=self.clock)
        self.cache = Cache(self.store, self.hot, counters)

    def expected(self, key: bytes) -> bytes | None:
        """Return the last acknowledged value; None if it is deleted or expired."""
        value, expires_ms = self.model.get(key, (None, 0))
        if expires_ms and expires_ms <= self.clock.now_ms:
            return None
        return value

    @rule(key=KEYS, life=st.sampled_from([0, 0, 0, 10, 1000]))
    def put(self, key: bytes, life: int) -> None:
        """Store a unique value."""
        self.writes += 1
        value = b"%d." % self.writes
        expires_ms = self.clock.now_ms + life * 1000 if life else 0
        self.cache.put(key, value, expires_ms=expires_ms)
        self.model[key] = (value, expires_ms)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.cache.delete(key)
        self.model.pop(key, None)

    @rule(volumes=st.integers(1, 2))
    def age(self, volumes: int) -> None:
        """Rotate, so that the log overwrites one volume or all."""
        for _ in range(volumes):
            fill_volume(self.store, b"fill")

    @rule(how=st.sampled_from(["lost", "late", "confused", "dropped", "emptied"]))
    def trouble(self, how: str) -> None:
        """Make the next call fail or return a wrong item, or drop items."""
        memcached = self.memcached
        if how == "confused":
            memcached.is_confused = True
        elif how == "emptied":
            memcached.items.clear()
        elif how == "dropped":
            memcached.items.pop(min(memcached.items, default=b""), None)
        else:
            memcached.fails_next = how

    @rule()
    def recover(self) -> None:
        """The server is up with all its items; delayed items arrive."""
        self.memcached.is_up = True
        self.memcached.fails_next = ""
        self.memcached.items.update(self.memcached.delayed)
        self.memcached.delayed.clear()

    @rule(what=st.sampled_from(["stop", "kill", "flush", "minutes"]))
    def interrupt(self, what: str) -> None:
        """Stop or kill the process and restart it, flush, or advance the clock."""
        if what == "flush":
            self.cache.flush()
            self.model.clear()
        elif what == "minutes":
            self.clock.advance(200)
        else:
            self.hot.close()
            if what == "stop":
                self.store.close()
            else:
                kill(self.store)
            self.open()

    @invariant()
    def reads_are_right(self) -> None:
        """Every key is as in the model, or a miss; the reads make keys hot."""
        for key in (b"a", b"b", b"c"):
            for _ in range(1 + self.writes % 3):
                record = self.cache.get(key)
                assert record is None or record.value == self.expected(key)
            head = self.cache.stat(key)
            assert head is None or self.expected(key) is not None
        assert self.store.stats.damaged_records == 0

    def teardown(self) -> None:
        """Read every key once more, and remove the directory."""
        for key in self.model:
            record = self.cache.get(key)
            assert record is None or record.value == self.expected(key)
        self.hot.close()
        self.store.close()
        shutil.rmtree(self.directory)


TestHotModel = HotMachine.TestCase
TestHotModel.settings = settings(
    max_examples=examples(300), stateful_step_count=40, deadline=None
)


def test_machine_reaches_the_hot_tier() -> None:
    """The property is not vacuous: a record that was overwritten is returned."""
    machine = HotMachine()
    machine.put(b"a", 0)
    for _ in range(3):
        machine.reads_are_right()
    machine.age(2)
    record = machine.cache.get(b"a")

    assert record is not None
    assert record.source == "MEMC"
    machine.interrupt("kill")
    record = machine.cache.get(b"a")
    assert record is not None
    assert (record.source, record.value) == (
        "MEMC",
        cast("bytes", machine.expected(b"a")),
    )
    machine.teardown()
