"""
Both tiers against a dict, with a memcached that drops, delays and loses items, and a disk
that refuses reads and writes.

The property: a get returns the last acknowledged value, or a miss, or an error.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.extent import examples
from support.histories import MOUNT_POINT
from support.simulated import SimulatedFileSystem
from support.stores import FakeClock, fill_volume, kill, open_store
from support.tiers import FakeServer, make_keys, make_tier
from volcache.cache import Cache
from volcache.errors import StoreError, UnreadableRecordError
from volcache.hot.versions import encode
from volcache.store import Store

pytestmark = pytest.mark.property

KEYS = st.sampled_from([b"a", b"b", b"c"])


class Memcached(FakeServer):
    """Items, and those that have not arrived yet."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.delayed: list[tuple[bytes, bytes]] = []
        self.fails_next = ""
        self.is_confused = False

    def get(self, name: bytes) -> bytes | None:
        """Return an item; if `is_confused`, that of another key."""
        found = super().get(name)
        if self.is_confused and self.items:
            self.is_confused = False
            found = self.items[min(self.items)]
        return found if self._answers() else None

    def set(self, name: bytes, item: bytes, _expire: int) -> bool:
        """Store an item; if `fails_next`, later or never."""
        if self.fails_next == "late":
            self.delayed.append((name, item))
        elif self.fails_next != "lost":
            self.items[name] = item
        return self._answers()

    def _answers(self) -> bool:
        """Return whether a reply arrives: not once, and then it is down, if it fails."""
        if self.fails_next:
            self.fails_next = ""
            self.is_up = False
        return self.is_up


class HotMachine(RuleBasedStateMachine):
    """Puts, deletes, rotations, failures and restarts in any order; reads after each."""

    def __init__(self) -> None:
        """Start with an empty store and an empty memcached."""
        super().__init__()
        self.disk = SimulatedFileSystem()
        self.memcached = Memcached()
        self.clock = FakeClock()
        self.model: dict[bytes, tuple[bytes, int]] = {}
        self.writes = 0
        self.open()

    def open_store(self) -> Store:
        """Start the store alone."""
        return open_store(MOUNT_POINT, volume_num=2, clock=self.clock, fs=self.disk)

    def open(self) -> None:
        """Start the process, on a disk that works."""
        self.disk.recover()
        self.store = self.open_store()
        self.keys = make_keys(*self.store.take_hot_snapshot(), reads=2)
        with mock.patch("volcache.hot.memcached.Server", return_value=self.memcached):
            self.hot = make_tier(["m"], self.keys, item_size_max=100_000)
        self.cache = Cache(self.store, self.hot)

    def close(self) -> None:
        """Stop the process cleanly."""
        self.hot.close()
        self.disk.recover()
        self.store.write_hot_snapshot(partial(encode, self.keys))
        self.store.close()

    def expected(self, key: bytes) -> bytes | None:
        """Return the last acknowledged value; None if it is deleted or expired."""
        value, expires_ms = self.model.get(key, (None, 0))
        if expires_ms and self.cache.remaining_ms(expires_ms) == 0:
            return None
        return value

    @rule(key=KEYS, life=st.sampled_from([0, 0, 0, 10, 1000]))
    def put(self, key: bytes, life: int) -> None:
        """Store a unique value; if it is refused, the old one stays."""
        self.writes += 1
        value = b"%d." % self.writes
        expires_ms = 0
        if life:
            expires_ms = self.cache.expiry_of(self.clock.now_ms + life * 1000)
        with suppress(StoreError):
            self.cache.put(key, value, expires_ms=expires_ms)
            self.model[key] = (value, expires_ms)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        """Delete a key; if it is refused, the value stays."""
        with suppress(StoreError):
            self.cache.delete(key)
            self.model.pop(key, None)

    @rule(reads=st.booleans(), writes=st.booleans())
    def refuse(self, reads: bool, writes: bool) -> None:  # noqa: FBT001
        """Break or repair the disk."""
        self.disk.recover()
        self.disk.failing |= {"pread": errno.EIO} if reads else {}
        self.disk.failing |= {"pwritev": errno.ENOSPC} if writes else {}

    @rule(volumes=st.integers(1, 2))
    def age(self, volumes: int) -> None:
        """Rotate, so that the log overwrites one volume or all."""
        self.disk.recover()
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

    @rule(how=st.sampled_from(["stop", "kill", "off"]))
    def restart(self, how: str) -> None:
        """Stop or kill the process and restart it, also with the tier off meanwhile."""
        if how == "kill":
            self.hot.close()
            kill(self.store)
        else:
            self.close()
        if how == "off":
            store = self.open_store()
            store.put(b"a", b"off")
            store.delete(b"b")
            store.close()
            self.model[b"a"] = (b"off", 0)
            self.model.pop(b"b", None)
        self.open()

    @rule()
    def flush(self) -> None:
        """Delete every key, unless the disk refuses."""
        with suppress(StoreError):
            self.cache.flush()
            self.model.clear()

    @rule(seconds=st.sampled_from([200, -300]))
    def set_clock(self, seconds: int) -> None:
        """Let minutes pass, or set the clock of the machine back."""
        self.clock.advance(seconds)

    @invariant()
    def reads_are_right(self) -> None:
        """Every key is as in the model, or a miss; the reads make keys hot."""
        for key in (b"a", b"b", b"c"):
            for _ in range(1 + self.writes % 3):
                self.read(key)
            with self.errors_of_a_bad_disk():
                head = self.cache.stat(key)
                assert head is None or self.expected(key) is not None
        assert self.store.stats.damaged_records == 0

    def read(self, key: bytes) -> None:
        """Check one key."""
        with self.errors_of_a_bad_disk():
            record = self.cache.get(key)
            assert record is None or record.value == self.expected(key)

    @contextmanager
    def errors_of_a_bad_disk(self) -> Iterator[None]:
        """Accept that a record cannot be read, while the disk refuses reads."""
        try:
            yield
        except UnreadableRecordError:
            assert "pread" in self.disk.failing

    def teardown(self) -> None:
        """Read every key once more."""
        for key in self.model:
            self.read(key)
        self.close()


TestHotModel = HotMachine.TestCase
TestHotModel.settings = settings(max_examples=examples(300), stateful_step_count=40)
