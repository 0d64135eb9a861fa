"""
Both tiers against a dict, with a memcached that drops, delays and loses as it likes.

The rule is one: a get answers the last acknowledged value, or a miss.
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
from support.stores import FakeClock, abandon, fill_volume, open_store
from volcache.cache import TieredCache
from volcache.hot.memcached import MemcachedTier
from volcache.hot.promotion import MissCounters
from volcache.hot.servers import ServerDownError
from volcache.hot.versions import KeyVersions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.property

KEYS = st.sampled_from([b"a", b"b", b"c"])


class Memcached:
    """A dict, and what is still on its way to it."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.items: dict[bytes, bytes] = {}
        self.on_their_way: list[tuple[bytes, bytes]] = []
        self.is_up = True
        self.fails_next = ""
        self.is_confused = False

    def get(self, name: bytes) -> bytes | None:
        """Return an item, or, told so, the answer to some other request."""
        with self._answering():
            if self.is_confused and self.items:
                self.is_confused = False
                return self.items[min(self.items)]
            return self.items.get(name)

    def set(self, name: bytes, item: bytes, _expire: int) -> bool:
        """Store an item, unless it is told to do so later, or never."""
        with self._answering():
            if self.fails_next == "late":
                self.on_their_way.append((name, item))
            elif self.fails_next != "lost":
                self.items[name] = item
            return True

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Do what is asked, or fail as told, once."""
        if not self.is_up:
            raise ServerDownError("down")
        yield
        if self.fails_next:
            self.fails_next = ""
            self.is_up = False
            raise ServerDownError("timeout")

    def probe(self) -> None:
        """Stay as it is: a rule says when it is up again."""

    def close(self) -> None:
        """Keep the items: it is another process."""


class HotMachine(RuleBasedStateMachine):
    """Puts, deletes, age, trouble and restarts in any order; reads after each."""

    def __init__(self) -> None:
        """Begin with an empty store and an empty memcached."""
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
        names = KeyVersions(
            self.store.journal(), store_id=self.store.store_id, boot_id="boot"
        )
        with mock.patch("volcache.hot.servers.Server", return_value=self.memcached):
            self.hot = MemcachedTier(["m"], names, timeout=0.05, item_size_max=100_000)
        counters = MissCounters(count=2, duration_ms=60_000, clock=self.clock)
        self.cache = TieredCache(self.store, self.hot, counters)

    def expected(self, key: bytes) -> bytes | None:
        """Return the last acknowledged value, None when it is gone or expired."""
        value, expires_ms = self.model.get(key, (None, 0))
        if expires_ms and expires_ms <= self.clock.now_ms:
            return None
        return value

    @rule(key=KEYS, life=st.sampled_from([0, 0, 0, 10, 1000]))
    def put(self, key: bytes, life: int) -> None:
        """Store a value that no other put stores."""
        self.writes += 1
        value = b"%d." % self.writes
        expires_ms = self.clock.now_ms + life * 1000 if life else 0
        self.cache.put(key, value, expires_ms=expires_ms)
        self.model[key] = (value, expires_ms)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        """Forget a key."""
        self.cache.delete(key)
        self.model.pop(key, None)

    @rule(volumes=st.integers(1, 2))
    def age(self, volumes: int) -> None:
        """Let the cycle overwrite one volume, or all."""
        for _ in range(volumes):
            fill_volume(self.store, b"fill")

    @rule(how=st.sampled_from(["lost", "late", "confused", "dropped", "emptied"]))
    def trouble(self, how: str) -> None:
        """Make the next call fail, or answer it wrongly, or drop items."""
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
        """The server answers again with all it had; what was on its way arrives."""
        self.memcached.is_up = True
        self.memcached.fails_next = ""
        self.memcached.items.update(self.memcached.on_their_way)
        self.memcached.on_their_way.clear()

    @rule(what=st.sampled_from(["stop", "kill", "flush", "minutes"]))
    def interrupt(self, what: str) -> None:
        """Stop or kill the process and start it again, flush, or let time pass."""
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
                abandon(self.store)
            self.open()

    @invariant()
    def answers_are_right(self) -> None:
        """Every key is as the model says, or a miss; reading makes keys hot at times."""
        for key in (b"a", b"b", b"c"):
            for _ in range(1 + self.writes % 3):
                record = self.cache.get(key)
                assert record is None or record.value == self.expected(key)
            head = self.cache.stat(key)
            assert head is None or self.expected(key) is not None
        assert self.store.stats.damaged_records == 0

    def teardown(self) -> None:
        """Read everything once more, and leave nothing behind."""
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


def test_the_machine_does_reach_the_hot_tier() -> None:
    """What it checks is not checked in vain: a file gone from the disk is answered."""
    machine = HotMachine()
    machine.put(b"a", 0)
    for _ in range(3):
        machine.answers_are_right()
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
