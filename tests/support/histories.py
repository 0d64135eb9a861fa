"""
A script of operations on a store, and the values allowed after a crash in it.

The history records for each key the last acknowledged value, the value at the last sync,
and all values since. After a crash, a get may return:

- *killed*: the last acknowledged value. If an operation on the key was under way, the value
  before or after it.
- *power loss*: if the key was not written since the last sync, its value then. Otherwise
  that value, any value since, or a miss; never a value from before the sync, or of another
  key. In sync mode "always" every acknowledgement is a sync; in mode "none" nothing is, and
  any value that the key ever had is allowed.
- A miss, if the value is so old that its volume may have been reclaimed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from support.simulated import SimulatedFileSystem
from support.stores import fixed_clock, value_of
from volcache.errors import DiskFullError, MountPointError, StoreIOError
from volcache.store import Store, SyncMode
from volcache.store.eviction import Eviction
from volcache.store.files import FileSystem

MOUNT_POINT: Final = "/srv/disk/cache"
VOLUME_BYTES: Final = 2048
CLOCK_MS: Final = 1_790_000_000_000

VOLUME_NUM_FROM: Final = {28: 3, 45: 5, 56: 4}  # by the number of the step

Value = bytes | None
Files = dict[str, bytes]  # contents by path in the mount point
Step = tuple[str, bytes, int]  # what, key, number


def make_disk(files: Files) -> SimulatedFileSystem:
    """Return a disk with these files in the mount point."""
    fs = SimulatedFileSystem()
    for folder in ("data", "index"):
        fs.make_directory(f"{MOUNT_POINT}/{folder}")
    for path, data in files.items():
        fd = fs.open(f"{MOUNT_POINT}/{path}", create=True)
        fs.pwritev(fd, [data], 0)
        fs.close(fd)
    return fs


def files_of(fs: SimulatedFileSystem, paths: Iterable[str]) -> Files:
    """Return the contents of those files in the mount point that exist."""
    found = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name in fs.names(f"{MOUNT_POINT}/{folder}"):
            found[path] = bytes(fs.file(f"{MOUNT_POINT}/{path}").data)
    return found


def steps() -> Iterator[Step]:
    """Yield puts, overwrites, deletes, syncs, kills and stops, over several generations."""
    for number in range(66):
        yield "put", b"same", number
        yield "put", b"key %d" % (number % 17), number
        if number % 5 == 4:
            yield "delete", b"key %d" % ((number - 2) % 17), number
        if number % 6 == 3:
            yield "sync", b"", number
        if number in {13, 40}:
            yield "kill", b"", number
        if number in {20, 50}:
            yield "stop", b"", number
        if number in VOLUME_NUM_FROM:
            yield "volume_num", b"", VOLUME_NUM_FROM[number]


def make_value(key: bytes, number: int) -> bytes:
    """Return a value of 20 to 420 bytes that no other step stores."""
    return (b"%d of %b. " % (number, key)).ljust(20 + number * 37 % 400, b"*")


@dataclass(slots=True)
class History:
    """What was acknowledged and synced, and what is under way."""

    sync_mode: SyncMode
    acknowledged: dict[bytes, Value] = field(default_factory=dict)
    synced: dict[bytes, Value] = field(default_factory=dict)
    since: dict[bytes, list[Value]] = field(default_factory=dict)
    ever: dict[bytes, list[Value]] = field(default_factory=dict)
    turns: dict[bytes, int] = field(default_factory=dict)
    under_way: tuple[bytes, Value] | None = None

    def begin(self, key: bytes, value: Value) -> None:
        """Record an operation that begins."""
        self.under_way = (key, value)
        self.ever.setdefault(key, []).extend([None, value])

    def acknowledge(self, key: bytes, value: Value, turn: int) -> None:
        """Record that it was done; `turn` counts the active volumes from the first."""
        self.under_way = None
        self.acknowledged[key] = value
        self.turns[key] = turn
        if self.sync_mode == "always":
            self.synced[key] = value
        else:
            self.since.setdefault(key, []).append(value)

    def record_sync(self) -> None:
        """Record that everything acknowledged is on the disk."""
        self.synced = dict(self.acknowledged)
        self.since = {}

    def allowed(self, key: bytes, *, power_lost: bool, oldest: int) -> list[Value]:
        """Return the values that a get of the key may return; None is a miss."""
        values: list[Value] = [self.acknowledged.get(key)]
        if power_lost and self.sync_mode == "none":
            values = list(self.ever[key])
        elif power_lost:
            values = [self.synced.get(key), *self.since.get(key, [])]
            if key in self.since:
                values.append(None)
        if self.under_way is not None and self.under_way[0] == key:
            values.append(self.under_way[1])
            if power_lost and self.sync_mode == "periodic":
                values.append(None)
        if self.turns.get(key, 0) < oldest:
            values.append(None)
        return values


def open_simulated(
    fs: FileSystem,
    *,
    sync_mode: SyncMode = "none",
    volume_size: int = VOLUME_BYTES,
    volume_num: int = 4,
    eviction: Eviction = "fifo",
    is_sparse: bool = False,
) -> Store:
    """Open a store of tiny volumes on a simulated disk; one ring, as the model has it."""
    return Store.open(
        MOUNT_POINT,
        volume_size=volume_size,
        volume_num=volume_num,
        sync_mode=sync_mode,
        eviction=eviction,
        is_sparse=is_sparse,
        fs=fs,
        clock=fixed_clock(lambda: CLOCK_MS),
    )


class Runner:
    """Runs the script on one disk; `fs.watch` is called at each operation."""

    def __init__(
        self, fs: SimulatedFileSystem, sync_mode: SyncMode, *, faults_borne: int = 0
    ) -> None:
        """Open nothing yet; `faults_borne` is how often a failed operation is repeated."""
        self.faults_borne = faults_borne
        self.refused = 0
        self.fs = fs
        self.history = History(sync_mode)
        self.volume_num = self.volume_num_min = 4
        self.is_sparse = True
        self.turn = 0
        self._active = -1
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store as it is now."""
        assert self._store is not None
        return self._store

    @property
    def oldest(self) -> int:
        """The oldest turn that no rotation, not even one under way, has reclaimed."""
        return self.turn - self.volume_num_min + 2

    def run(self) -> None:
        """Do every step."""
        self._open()
        for step in steps():
            self._do(*step)
        self._stop()

    def _open(self) -> None:
        for _ in range(1 + self.faults_borne):
            try:
                self._store = open_simulated(
                    self.fs,
                    sync_mode=self.history.sync_mode,
                    volume_num=self.volume_num,
                    is_sparse=self.is_sparse,
                )
            except MountPointError:
                assert self.fs.descriptors == 0
                self.refused += 1
            else:
                self.is_sparse = not self.is_sparse
                return
        pytest.fail("the store does not start again")

    def _stop(self) -> None:
        self.store.close()
        self.history.record_sync()
        self.history.ever = {k: [v] for k, v in self.history.acknowledged.items()}

    def _do(self, what: str, key: bytes, number: int) -> None:
        store, before = self.store, self.fs
        if what == "kill":
            self.fs = self.fs.after_kill()
            self.fs.go_on_from(before)
            self._open()
        elif what in {"stop", "volume_num"}:
            self._stop()
            if what == "volume_num":
                self.volume_num = number
                self.volume_num_min = min(self.volume_num_min, number)
            self._open()
        elif what == "sync":
            store.sync()
            if self.history.sync_mode != "none":
                self.history.record_sync()
        else:
            self._write(store, what, key, number)

    def _write(self, store: Store, what: str, key: bytes, number: int) -> None:
        value = make_value(key, number) if what == "put" else None
        self.history.begin(key, value)
        before = store.get(key)
        for _ in range(1 + self.faults_borne):
            try:
                if value is None:
                    store.delete(key)
                else:
                    store.put(key, value)
                break
            except (StoreIOError, DiskFullError):
                self.refused += 1
                assert store.get(key) in {before, None}
        else:
            pytest.fail("the store does not write again")
        usage = store.usage()
        self.turn += usage.active_seq != self._active
        self._active = usage.active_seq
        self.history.acknowledge(key, value, self.turn)

    def verify(self, store: Store, *, power_lost: bool) -> None:
        """Compare every key with its allowed values, and a key that was never put."""
        for key in self.history.ever:
            record = store.get(key)
            found = None if record is None else record.value
            allowed = self.history.allowed(
                key, power_lost=power_lost, oldest=self.oldest
            )
            assert found in allowed, (key, found, allowed)
        assert store.get(b"never put") is None


class Client:
    """
    Random operations on a few keys, the same for each seed.

    Attributes:
        last: The last acknowledged value of each key; None: deleted.
        under_way: Key and value of an operation that has not returned.
    """

    def __init__(self, seed: int = 1) -> None:
        """Have stored nothing."""
        self.dice = random.Random(seed)  # noqa: S311 - Repeatable.
        self.keys = [b"key %d" % number for number in range(25)]
        self.last: dict[bytes, Value] = {}
        self.under_way: tuple[bytes, Value] = (b"", None)
        self._number = 0

    def run(self, store: Store, operations: int) -> None:
        """Do a number of operations, or die in one of them; a refusal is an error."""
        for _ in range(operations):
            self.do(store)

    def do(self, store: Store) -> None:
        """Read a few keys, then put or delete one."""
        dice = self.dice
        for _ in range(dice.randrange(4)):
            key = min(dice.choices(self.keys, k=2))
            assert value_of(store.get(key)) in {None, self.last.get(key)}
        key = dice.choice(self.keys)
        if dice.random() < 0.6:
            store.stat(key)  # What was asked for belongs to ring probation.
        value = None
        if dice.random() >= 0.1:
            self._number += 1
            # Random: a torn write must not differ from a whole one in a single bit.
            value = b"%d." % self._number + dice.randbytes(200)
        self.under_way = (key, value)
        if value is None:
            store.delete(key)
        else:
            store.put(key, value)
        self.last[key] = value
        self.under_way = (b"", None)

    def allowed(self, key: bytes) -> set[Value]:
        """Return what a get may return after a crash."""
        under_way = {self.under_way[1]} if self.under_way[0] == key else set()
        return {self.last.get(key), None} | under_way

    def hits(self, store: Store) -> int:
        """Compare all keys; return how many are there."""
        hits = 0
        for key in {*self.last, self.under_way[0]} - {b""}:
            found = value_of(store.get(key))
            assert found in self.allowed(key), key
            hits += found is not None
        return hits

    def adopt(self, store: Store) -> None:
        """Go on with what a crash has left."""
        key, value = self.under_way
        if key:
            found = value_of(store.get(key))
            assert found in self.allowed(key), key
            if found == value or key in self.last:
                self.last[key] = found
        self.under_way = (b"", None)
