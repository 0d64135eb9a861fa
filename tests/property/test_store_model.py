"""
The store with one ring against a dict with an age limit, at any time of the clock.

`test_rings.py` does the same with two rings.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.extent import examples
from support.stores import VOLUME_NUM, VOLUME_SIZE, disk_bytes, kill, open_fifo
from volcache.store.clock import Clock

if TYPE_CHECKING:
    from volcache.store import Store

pytestmark = pytest.mark.property

KEYS = st.sampled_from(
    [b"a", b"b/c", b"b c", b"%20", b"#", "gr\xfcn".encode(), b"x" * 300]
)
LENGTHS = st.one_of(st.integers(0, 200), st.integers(0, VOLUME_SIZE - 1000))
HOUR_MS = 3_600_000
# Negative: the clock of the machine is set back. It may stay as it is.
JUMPS_MS = st.sampled_from([0, 0, -HOUR_MS, -5000, -1, 1, 5000, HOUR_MS])
WAITS_MS = st.sampled_from([0, 1, 999, 5000, HOUR_MS])
LIVES_MS = st.sampled_from([1, 1000, 5000, 6000, HOUR_MS, 2 * HOUR_MS])
# A start after a kill may begin this much later than the time at the kill.
AHEAD_MS_MAX = 1000


class Stored(NamedTuple):
    """A value, the number of its volume, counted from the first, and its expiry."""

    value: bytes
    turn: int
    expires_ms: int = 0  # by the clock of the store; 0 = never


class StoreMachine(RuleBasedStateMachine):
    """Every operation in every order, with restarts and kills between."""

    def __init__(self) -> None:
        """Start with an empty store."""
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.machine_ms = 1_790_000_000_000
        self.elapsed_ms = 0
        self.latest_ms = self.machine_ms  # that the clock of the store may show
        self.store = self.start()
        self.model: dict[bytes, Stored] = {}
        self.expired: set[bytes] = set()  # by a get, and not stored again since
        self.purged: set[bytes] = set()  # and not stored again since
        self.turn = 0
        self.writes = 0

    def start(self) -> Store:
        """Open the store in a new process, with a clock that only the test advances."""
        clock = Clock(
            lambda: self.machine_ms * 1000, lambda: self.elapsed_ms * 1_000_000
        )
        return open_fifo(self.directory, clock=clock)

    def pass_time(self, jump_ms: int, wait_ms: int) -> None:
        """Set the clock of the machine, then let time pass."""
        for jump, wait in ((jump_ms, 0), (0, wait_ms)):
            self.machine_ms += jump + wait
            self.elapsed_ms += wait
            self.latest_ms = max(self.latest_ms + wait, self.machine_ms)

    def is_kept(self, key: bytes) -> bool:
        """Return whether the volume of a value is valid: not older than a full turn."""
        stored = self.model.get(key)
        return stored is not None and stored.turn > self.turn - VOLUME_NUM

    def expected(self, key: bytes) -> bytes | None:
        """Return what a get must answer: nothing that was reclaimed or has expired."""
        if not self.is_kept(key) or key in self.purged:
            return None
        stored = self.model[key]
        if 0 < stored.expires_ms <= self.store.clock.now_ms():
            return None
        return stored.value

    def see_turn(self) -> None:
        """Follow the active volume, which a tombstone may have changed."""
        self.turn = self.store.usage().active_seq

    @rule(key=KEYS, length=LENGTHS)
    def put(self, key: bytes, length: int) -> None:
        """Store a value that no other put stores."""
        self.writes += 1
        value = (b"%d." % self.writes * length)[:length]
        self.store.put(key, value, content_type=b"t/%d" % self.writes)
        self.see_turn()
        self.model[key] = Stored(value, self.turn)
        self.expired.discard(key)
        self.purged.discard(key)

    @rule(key=KEYS, life_ms=LIVES_MS)
    def put_for_a_time(self, key: bytes, life_ms: int) -> None:
        """Store a value that expires."""
        self.writes += 1
        value = b"%d" % self.writes
        expires_ms = self.store.clock.now_ms() + life_ms
        self.store.put(key, value, expires_ms=expires_ms)
        self.see_turn()
        self.model[key] = Stored(value, self.turn, expires_ms)
        self.expired.discard(key)
        self.purged.discard(key)

    @rule(jump_ms=JUMPS_MS, wait_ms=WAITS_MS)
    def let_time_pass(self, jump_ms: int, wait_ms: int) -> None:
        """Set the clock of the machine, and let time pass."""
        self.pass_time(jump_ms, wait_ms)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        """Delete returns whether there was a value."""
        was_there = self.expected(key) is not None

        assert self.store.delete(key) == was_there
        self.see_turn()
        self.model.pop(key, None)
        self.expired.discard(key)
        self.purged.discard(key)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        """A get returns the last value, or a miss if it is too old."""
        record = self.store.get(key)

        assert (None if record is None else record.value) == self.expected(key)

    @rule(key=KEYS, length=st.integers(1, 5))
    def purge(self, key: bytes, length: int) -> None:
        """Drop what begins with a part of a key; time passes between put and purge."""
        self.pass_time(0, 1)
        self.store.purge(key[:length])
        self.purged |= {other for other in self.model if other.startswith(key[:length])}

    @rule(jump_ms=JUMPS_MS, wait_ms=WAITS_MS)
    def restart(self, jump_ms: int, wait_ms: int) -> None:
        """Stop and start; meanwhile the clock may be set."""
        self.store.close()
        self.pass_time(jump_ms, wait_ms)
        self.store = self.start()

    @rule(jump_ms=JUMPS_MS, wait_ms=WAITS_MS)
    def kill(self, jump_ms: int, wait_ms: int) -> None:
        """Kill and start; meanwhile the clock may be set."""
        kill(self.store)
        self.latest_ms += AHEAD_MS_MAX
        self.pass_time(jump_ms, wait_ms)
        self.store = self.start()

    @precondition(lambda self: self.writes)
    @rule()
    def lose_index_files(self) -> None:
        """Stop, lose every index file, start."""
        self.store.close()
        shutil.rmtree(self.directory / "index")
        self.store = self.start()

    @invariant()
    def is_whole(self) -> None:
        """Every key is as the model says; nothing is damaged; the disk is bounded."""
        for key in self.model:
            record = self.store.get(key)
            assert (None if record is None else record.value) == self.expected(key)
        there = [key for key in self.model if self.is_kept(key)]
        assert self.store.count == len(there)
        assert self.store.stats.damaged_records == 0
        assert (self.store.recovery.damaged, self.store.recovery.torn) == (0, 0)
        assert disk_bytes(self.directory) <= VOLUME_NUM * VOLUME_SIZE

    @invariant()
    def no_expired_value_returns(self) -> None:
        """Whatever the clocks say; and no value expires too early."""
        for key in self.model:
            record = self.store.get(key)
            assert record is None or key not in self.expired
            if record is None and self.is_kept(key) and key not in self.purged:
                assert 0 < self.model[key].expires_ms <= self.latest_ms
                self.expired.add(key)
        assert self.store.clock.now_ms() <= self.latest_ms

    def teardown(self) -> None:
        """Remove the directory; a start that failed must not hide its error."""
        kill(self.store)
        shutil.rmtree(self.directory)


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
