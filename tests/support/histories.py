"""
What a store may answer after a crash, and stores on a simulated disk.

After a crash, a get may return:

- *killed*: the last acknowledged value. If an operation on the key was under way, the value
  before or after it.
- *power loss*: if the key was not written since the last sync, its value then. Otherwise
  that value, any value since, or a miss; never a value from before the sync, or of another
  key. In sync mode "always" every acknowledgement is a sync; in mode "none" nothing is.
- A miss, if the value is so old that its volume may have been reclaimed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from typing import Final

from support.simulated import SimulatedFileSystem
from support.stores import fixed_clock, value_of
from volcache.errors import DiskFullError, StoreIOError
from volcache.store import Store, SyncMode
from volcache.store.eviction import Eviction
from volcache.store.files import FileSystem

MOUNT_POINT: Final = "/srv/disk/cache"
VOLUME_BYTES: Final = 2048
CLOCK_MS: Final = 1_790_000_000_000

Value = bytes | None
Files = dict[str, bytes]  # contents by path in the mount point


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


def make_value(key: bytes, number: int) -> bytes:
    """Return a value of 20 to 420 bytes that no other step stores."""
    return (b"%d of %b. " % (number, key)).ljust(20 + number * 37 % 400, b"*")


class Model:
    """
    What a store was told, and what it may answer then; None is a miss.

    Attributes:
        last: What was acknowledged last.
        maybe: What is under way, or was refused since something was acknowledged.
        synced: What was on the disk at the last sync.
        since: What was acknowledged since then.
        unsynced: What was under way or refused since then.
        turns: When it was acknowledged, in volumes that were started.
    """

    def __init__(self) -> None:
        """Have nothing."""
        self.last: defaultdict[bytes, Value] = defaultdict(lambda: None)
        self.synced: defaultdict[bytes, Value] = defaultdict(lambda: None)
        self.since: defaultdict[bytes, list[Value]] = defaultdict(list)
        self.maybe: defaultdict[bytes, set[Value]] = defaultdict(set)
        self.unsynced: defaultdict[bytes, set[Value]] = defaultdict(set)
        self.turns: dict[bytes, int] = {}

    def begin(self, key: bytes, value: Value) -> None:
        """Note an operation that begins."""
        self.maybe[key].add(value)
        self.unsynced[key].add(value)

    def acknowledge(
        self, key: bytes, value: Value, *, is_synced: bool = False, turn: int = 0
    ) -> None:
        """Note that it is done, which makes invalid what was refused before."""
        self.maybe.clear()
        self.turns[key] = turn
        self.last[key] = value
        if is_synced:
            self._forget_unsynced()
            self.synced[key] = value
            self.since.pop(key, None)
        else:
            self.since[key].append(value)

    def note_synced(self) -> None:
        """Note that all is on the disk."""
        self.synced = self.last.copy()
        self.since.clear()
        self._forget_unsynced()

    def _forget_unsynced(self) -> None:
        """No power loss brings back what was refused before the last acknowledgement."""
        for key, refused in self.unsynced.items():
            refused.intersection_update(self.maybe[key])

    def drop(self, key: bytes) -> None:
        """Note that a value was dropped, and must not return after a power loss."""
        self.last[key] = self.synced[key] = None
        for refused in (self.since, self.maybe, self.unsynced):
            refused.pop(key, None)

    def adopt(self, key: bytes, value: Value) -> None:
        """Go on with what a power loss has left, which is safe."""
        # Of a record that hides another one, the entry may be left, but not the record
        # itself: it may hide it until the index file is removed.
        before = [] if value is not None else [*self.allowed(key, power_lost=True)]
        self.drop(key)
        self.last[key] = self.synced[key] = value
        self.since[key] = before

    def allowed(
        self, key: bytes, *, power_lost: bool = False, oldest: float = inf
    ) -> set[Value]:
        """
        Return what a get may return.

        It is a miss only of what is older than the turn `oldest`, or was not synced
        before a power loss.
        """
        is_kept = self.turns.get(key, 0) >= oldest
        values = {self.last[key], *self.maybe[key]}
        if power_lost:
            unsynced = {*self.since[key], *self.maybe[key], *self.unsynced[key]}
            values = {self.synced[key], *unsynced}
            is_kept &= not unsynced
        return values if is_kept else values | {None}


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


class Client:
    """
    Random operations on a few keys, the same for each seed.

    Attributes:
        model: What the store may answer.
    """

    def __init__(self, seed: int = 1, *, faults_borne: int = 0) -> None:
        """Have stored nothing; `faults_borne` is how often a write is repeated."""
        self.faults_borne = faults_borne
        self.dice = random.Random(seed)  # noqa: S311 - Repeatable.
        self.keys = [b"key %d" % number for number in range(25)]
        self.model = Model()
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
            assert value_of(store.get(key)) in self.model.allowed(key)
        key = dice.choice(self.keys)
        if dice.random() < 0.6:
            store.stat(key)  # What was asked for belongs to ring probation.
        value = None
        if dice.random() >= 0.1:
            self._number += 1
            # Random: a torn write must not differ from a whole one in a single bit.
            value = b"%d." % self._number + dice.randbytes(200)
        self.write(store, key, value)

    def write(self, store: Store, key: bytes, value: Value) -> None:
        """Put or delete a key."""
        self.model.begin(key, value)
        try:
            self._write(store, key, value)
        except (StoreIOError, DiskFullError):
            self.faults_borne -= 1
            if self.faults_borne < 0:
                raise
            assert value_of(store.get(key)) in {self.model.last[key], None}
            self._write(store, key, value)
        self.model.acknowledge(key, value, turn=store.usage(volumes=False).active_seq)

    def _write(self, store: Store, key: bytes, value: Value) -> None:
        if value is None:
            store.delete(key)
        else:
            store.put(key, value)

    def hits(self, store: Store, oldest: float = inf) -> int:
        """Compare all keys; return how many are there."""
        found = {key: value_of(store.get(key)) for key in self.keys}
        for key, value in found.items():
            assert value in self.model.allowed(key, oldest=oldest), key
        return sum(value is not None for value in found.values())

    def adopt(self, store: Store) -> None:
        """Go on with what a kill has left of the operation under way."""
        for key in self.model.maybe:
            found = value_of(store.get(key))
            assert found in self.model.allowed(key), key
            self.model.last[key] = found
        self.model.maybe.clear()
