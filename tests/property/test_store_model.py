"""The store against a dict with an age limit."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.extent import examples
from support.stores import VOLUME_NUM, VOLUME_SIZE, disk_bytes, open_store, reopen

pytestmark = pytest.mark.property

KEYS = st.sampled_from(
    [b"a", b"b/c", b"b c", b"%20", b"#", "gr\xfcn".encode(), b"x" * 300]
)
LENGTHS = st.one_of(st.integers(0, 200), st.integers(0, VOLUME_SIZE - 1000))


class Stored(NamedTuple):
    """A value, and the number of its volume, counted from the first."""

    value: bytes
    turn: int


class StoreMachine(RuleBasedStateMachine):
    """Every operation in every order, with restarts and kills between."""

    def __init__(self) -> None:
        """Start with an empty store."""
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = open_store(self.directory)
        self.model: dict[bytes, Stored] = {}
        self.turn = 0
        self.writes = 0

    def expected(self, key: bytes) -> bytes | None:
        """Return what a get must answer: nothing older than a full turn."""
        stored = self.model.get(key)
        if stored is None or stored.turn <= self.turn - VOLUME_NUM:
            return None
        return stored.value

    def see_turn(self) -> None:
        """Follow the active volume, which a tombstone may have changed."""
        usage = self.store.usage()
        self.turn = usage.active_generation * VOLUME_NUM + usage.active_id

    @rule(key=KEYS, length=LENGTHS)
    def put(self, key: bytes, length: int) -> None:
        """Store a value that no other put stores."""
        self.writes += 1
        value = (b"%d." % self.writes * length)[:length]
        record = self.store.put(key, value, content_type=b"t/%d" % self.writes)
        self.turn = record.generation * VOLUME_NUM + record.volume
        self.model[key] = Stored(value, self.turn)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        """Delete returns whether there was a value."""
        was_there = self.expected(key) is not None

        assert self.store.delete(key) == was_there
        self.see_turn()
        self.model.pop(key, None)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        """A get returns the last value, or a miss if it is too old."""
        record = self.store.get(key)

        assert (None if record is None else record.value) == self.expected(key)

    @rule()
    def restart(self) -> None:
        """Stop and start."""
        self.store.close()
        self.store = open_store(self.directory)

    @rule()
    def kill(self) -> None:
        """Kill and start."""
        self.store = reopen(self.store, self.directory)

    @precondition(lambda self: self.writes)
    @rule()
    def lose_index_files(self) -> None:
        """Stop, lose every index file, start."""
        self.store.close()
        shutil.rmtree(self.directory / "index")
        self.store = open_store(self.directory)

    @invariant()
    def is_whole(self) -> None:
        """Every key is as the model says; nothing is damaged; the disk is bounded."""
        for key in self.model:
            record = self.store.get(key)
            assert (None if record is None else record.value) == self.expected(key)
        there = [key for key in self.model if self.expected(key) is not None]
        assert self.store.count == len(there)
        assert self.store.stats.damaged_records == 0
        assert (self.store.recovery.damaged, self.store.recovery.torn) == (0, 0)
        assert disk_bytes(self.directory) <= VOLUME_NUM * VOLUME_SIZE

    def teardown(self) -> None:
        """Remove the directory."""
        self.store.close()
        shutil.rmtree(self.directory)


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
