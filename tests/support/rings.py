"""
Random runs of a store with two rings, and what a crash may leave of it.

The volumes are so small that a few puts fill one: a run of a hundred steps reclaims dozens
of volumes. The disk is simulated, so that after each step, and at operations of the disk in
the middle of some steps, the run can be opened as a crash at that moment would leave it.

What must hold, with the values that were acknowledged as the only model:

- A get returns the last value, or is a miss.
- After a kill, also with another eviction policy, each key has exactly what it had before.
  If the kill came in the middle of a step, a key may also be a miss if that step drops it.
  A key that is a miss after a start stays one.
- Nothing that was purged is returned, whatever is reclaimed later.
- After a power loss, what was synced and not written since is there, if it was before.
  What was written since may have any value since, or be a miss.
- What the disk has refused may be found by a start only until something else is
  acknowledged; after a power loss, until something else is synced.

Runs of the kind "memory" need a process of `memory.py`; this module is its program.
"""

from __future__ import annotations

import errno
import json
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import Any, Final, Literal
from unittest import mock

from google_crc32c import value as crc32c

from support.clocks import ManualClock
from support.extent import EXTENT
from support.histories import MOUNT_POINT, Model
from support.memory import failing, failures
from support.simulated import SimulatedFileSystem
from support.stores import assert_sums, value_of
from volcache.errors import (
    DamagedRecordError,
    DiskFullError,
    MountPointError,
    OutOfMemoryError,
    StoreIOError,
    UnreadableRecordError,
    ValueTooLargeError,
)
from volcache.store import Record, Store, SyncMode
from volcache.store.eviction import Eviction

Kind = Literal["kills", "power", "faults", "memory"]
# A start after a kill may begin this much later than the time at the kill.
_AHEAD_MS: Final = 1000
_TORN: Final = (1, 17, 18, 59, 63, 64, 70, 100, 400)  # In and behind a header.
KINDS: Final[tuple[Kind, ...]] = ("kills", "power", "faults", "memory")


def peek(store: Store, key: bytes) -> bytes | None:
    """Return the value of a key; the policy does not notice that it is read."""
    raw = store.read_raw(key)
    found = store._reader._locate(key)
    if raw is None or found is None:
        return None
    with suppress(DamagedRecordError):
        header = store._reader._read_header(*found, key)
        value = raw[header.value_start :]
        if not store._reader.is_over(key, header) and crc32c(value) == header.checksum:
            return value
    return None


def lose_an_entry(store: Store) -> None:
    """Let the index have lost the entry of the next key, as for want of memory."""
    index, writer = store.index, store._writer

    class Index:
        def __getattr__(self, name: str) -> object:
            if name == "ring_for":
                writer._index = index
                return lambda _: None
            return self._put if name == "put" else getattr(index, name)

        def _put(self, *record: Any) -> object:
            return index.put(*record) if writer._index is index else None

    writer._index = Index()  # type: ignore[assignment]


def with_expiry(value: bytes, expires_ms: int) -> bytes:
    """Return a value as the model has it."""
    return value + b"|%d" % expires_ms


def seen(record: Record | None) -> bytes | None:
    """Return value and expiry of a record; None for a miss."""
    return None if record is None else with_expiry(record.value, record.expires_ms)


class RingRun:
    """
    One run. A value of the model ends with its expiry.

    Attributes:
        images: How often the disk was opened as a crash would leave it.
        nested: How often such a start was ended by one more crash.
        rotations: How many volumes were started.
        copied: How many records were copied.
    """

    def __init__(
        self,
        seed: int,
        kind: Kind,
        sync_mode: SyncMode | None = None,
        *,
        is_exhaustive: bool = False,
    ) -> None:
        """
        Open an empty store; the seed decides everything else.

        Args:
            seed: For the same run.
            kind: What is lost.
            sync_mode: Any if not given.
            is_exhaustive: With one ring; a crash comes at each operation, not at some.
        """
        self.seed, self.kind, self.is_exhaustive = seed, kind, is_exhaustive
        self.dice = dice = random.Random(f"{kind} {seed}")  # noqa: S311 - Repeatable.
        self.salts = random.Random(seed)  # noqa: S311 - Likewise.
        self.spaces = random.Random(seed)  # noqa: S311 - Likewise.
        self.volume_num = dice.randint(5, 8)
        self.volume_size = dice.choice([1024, 1500, 2048])
        self.reinsert_reads = dice.choice([0.1, 0.5, 1.0])
        modes: tuple[SyncMode, ...] = ("none", "periodic", "always")
        self.sync_mode = dice.choice(modes) if sync_mode is None else sync_mode
        self.eviction: Eviction = "fifo" if is_exhaustive else "frequency"
        self.volume_num_min = self.volume_num
        self.turn = 0
        self.keys = [b"key %d" % number for number in range(dice.randint(5, 14))]
        self.now_ms = 1_790_000_000_000
        self.version = 0
        self.has_given_up = False  # a volume, in any process
        self.broken_steps = 0  # the disk goes on refusing for so many steps
        self.model = Model()
        self.expires: dict[bytes, int] = dict.fromkeys(self.keys, 0)
        self.is_unknown = False
        self.step_name = ""
        self.under_way: set[bytes] = set()
        self.images = self.nested = self.rotations = self.copied = 0
        self.middle: list[tuple[str, dict[bytes, bytes | None]]] = []
        self.before = dict.fromkeys(self.keys)
        self.fs = SimulatedFileSystem()
        self.fs.watch = self.watch if is_exhaustive else None
        self.store = self.open(self.fs, self.eviction)

    # --- Opening -------------------------------------------------------------------

    def open(self, fs: SimulatedFileSystem, eviction: Eviction) -> Store:
        """Start a process on a disk."""
        with self.repeatable():
            return Store.open(
                MOUNT_POINT,
                volume_size=self.volume_size,
                volume_num=self.volume_num,
                sync_mode=self.sync_mode,
                eviction=eviction,
                reinsert_reads=self.reinsert_reads,
                is_sparse=self.spaces.random() < 1 / 2,
                fs=fs,
                clock=ManualClock(lambda: self.now_ms * 1000, lambda: 0),
            )

    def repeatable(self) -> AbstractContextManager[object]:
        """Let the seed decide on salts, too."""
        return mock.patch.object(secrets, "randbits", self.salts.getrandbits)

    def is_expired(self, key: bytes) -> bool:
        """Return whether the last value of a key has expired."""
        return 0 < self.expires[key] <= self.now_ms

    def may_expire(self, key: bytes) -> bool:
        """Return whether a value may have expired at a start, whose clock may be ahead."""
        return 0 < self.expires[key] <= self.store.clock.now_ms() + 2 * _AHEAD_MS

    def live(self) -> dict[bytes, bytes | None]:
        """Return what each key has now."""
        return {key: self.peek(key) for key in self.keys}

    def peek(self, key: bytes) -> bytes | None:
        """Return value and expiry of a key; the policy does not notice it."""
        value, found = peek(self.store, key), self.store._reader._locate(key)
        if value is None or found is None:
            return None
        return with_expiry(
            value, self.store._reader._read_header(*found, key).expires_ms
        )

    # --- Comparing -----------------------------------------------------------------

    def allowed(self, key: bytes, *, power_lost: bool = False) -> set[bytes | None]:
        """Return what a get may return."""
        oldest = inf
        if self.is_exhaustive and not (self.expires[key] or self.is_unknown):
            # What no rotation, not even one under way, has reclaimed.
            oldest = self.turn - self.volume_num_min + 2
        found = self.model.allowed(key, power_lost=power_lost, oldest=oldest)
        if not power_lost and self.is_expired(key):
            found = found - {self.model.last[key]} | self.model.maybe[key] | {None}
        return found

    def values_of(
        self, image: SimulatedFileSystem, *, power_lost: bool = False
    ) -> dict[bytes, bytes | None]:
        """Start on an image; return what each key has."""
        self.images += 1
        eviction: Eviction = "fifo" if self.dice.random() < 0.25 else "frequency"
        while self.is_exhaustive and self.dice.random() < 0.25:
            image = self.die_in_recovery(image, eviction, power_lost=power_lost)
        with failing(0, self.images):
            store = self.open(image, eviction)
            found = {key: seen(store.get(key)) for key in self.keys}
        # META.txt may name a volume that was given up, whose header is gone.
        if self.kind == "faults":
            self.has_given_up |= self.store.stats.given_up_volumes > 0
        if self.kind != "power" and not self.has_given_up | power_lost:
            assert store.recovery.damaged == 0, self.where()
            assert store.stats.damaged_records == 0, self.where()
        assert not store.recovery.meta_lost, self.where()
        # Two power losses may leave a gap and take the index file.
        self.is_unknown = bool(store.recovery.unknown)
        if self.is_exhaustive and self.images % 7 == 0 and self.sync_mode != "none":
            self.go_on(store, image, found)
        return found

    def die_in_recovery(
        self, image: SimulatedFileSystem, eviction: Eviction, *, power_lost: bool
    ) -> SimulatedFileSystem:
        """Start on an image, crash again in that start; return what is left."""

        def crash(length: int) -> SimulatedFileSystem:
            if power_lost:
                return image.after_power_loss(self.dice)
            return image.after_kill(torn=self.dice.randrange(length) if length else 0)

        left = self.dice.randrange(14)
        dead = image.dying(left, lambda: self.open(image, eviction), crash)
        self.nested += dead is not None
        return dead or crash(0)

    def go_on(
        self,
        store: Store,
        image: SimulatedFileSystem,
        found: dict[bytes, bytes | None],
    ) -> None:
        """Put more keys on an image, lose power and compare: nothing else has changed."""
        values = {b"new %d" % number: self.dice.randbytes(200) for number in range(3)}
        for key, value in values.items():
            store.put(key, value)
        store.sync()
        again = self.open(image.after_power_loss(self.dice), self.eviction)
        for key, value in values.items():
            assert value_of(again.get(key)) == value, self.where()
        for key, last in found.items():
            # The puts may have reclaimed it. But an entry without its record hides an
            # older one until the entry is lost, too.
            allowed = {last, None}
            if last is None:
                allowed = self.model.allowed(key, power_lost=True)
            assert seen(again.get(key)) in allowed, (*self.where(), key)

    def where(self) -> tuple[object, ...]:
        """Return what identifies the present step."""
        return (self.kind, self.seed, self.step_name, self.fs.operations)

    def compare(self, found: dict[bytes, bytes | None], *, power_lost: bool) -> None:
        """Compare values with those allowed."""
        for key, value in found.items():
            allowed = self.allowed(key, power_lost=power_lost)
            assert value in allowed, (*self.where(), key, value, allowed)

    def check(self) -> None:
        """After a step: compare what there is, and what a crash would leave."""
        live = self.live()
        self.compare(live, power_lost=False)
        for what, found in self.middle:
            lost = {
                key
                for key, value in self.before.items()
                if found[key] is None and live[key] is not None and value is not None
                if not self.may_expire(key)
            }
            # A put or delete of the key itself may have been under way.
            lost -= self.under_way
            assert not lost, (*self.where(), what, lost)
        self.middle.clear()
        if self.kind == "power":
            left = self.fs.after_power_loss(self.dice)
            found = self.values_of(left, power_lost=True)
            self.compare(found, power_lost=True)
            if self.sync_mode != "none" and not self.is_unknown:
                self.check_synced(live, found)
            return
        found = self.values_of(self.fs.after_kill())
        self.compare(found, power_lost=False)
        for key, value in live.items():
            if self.may_expire(key) or found[key] in self.model.maybe[key]:
                continue
            if self.kind == "faults" and found[key] is None:
                continue  # META.txt may name another volume, although that failed.
            if self.kind == "memory" and value is None:
                continue  # The index may have lost its entry.
            assert found[key] == value, (*self.where(), "lost", key, found[key])

    def check_synced(
        self, live: dict[bytes, bytes | None], found: dict[bytes, bytes | None]
    ) -> None:
        """What was synced, not written since and not reclaimed, survives."""
        for key, value in live.items():
            if value is None or self.model.since.get(key) or self.may_expire(key):
                continue
            if value == self.model.synced[key] and not self.is_copied(key):
                assert found[key] == value, (*self.where(), "unsynced", key, found[key])

    def is_copied(self, key: bytes) -> bool:
        """
        Return whether the value of a key is a copy of the reclaim under way.

        The entry of an unsynced copy may be left, but not the copy itself: then the entry
        hides the original, and the key is a miss.
        """
        reclaimer = self.store._log.evictor.reclaimer
        found = self.store._reader._locate(key)
        return (
            reclaimer is not None
            and found is not None
            and any(volume is found[0] for volume in reclaimer.targets)
        )

    def watch(self, name: str, data: bytes) -> None:
        """See what a crash in the middle of a step would leave."""
        for torn in self.torn_lengths(len(data)):
            power_lost = self.kind == "power" or (
                self.kind == "faults"
                and self.sync_mode != "none"
                and self.dice.random() < 0.4
            )
            image = self.image_now(torn, power_lost=power_lost)
            found = self.values_of(image, power_lost=power_lost)
            self.compare(found, power_lost=power_lost)
            if self.kind == "kills":
                self.middle.append((name, found))

    def torn_lengths(self, length: int) -> Iterable[int]:
        """Return how much of a write each crash leaves that comes in it."""
        dice = self.dice
        if not self.is_exhaustive:
            if dice.random() > 0.12:
                return ()
            return (dice.randrange(length) if length else 0,)
        if self.kind == "power":
            return [0] * (2 * EXTENT or 30)
        if not EXTENT:
            return range(length or 1)
        chosen = dice.sample(range(length), min(length, 2 * EXTENT))
        chosen += dice.sample(_TORN, min(len(_TORN), 2 * EXTENT))
        return sorted({0, *(torn for torn in chosen if torn < length)})

    def image_now(self, torn: int, *, power_lost: bool) -> SimulatedFileSystem:
        """Return what a crash leaves at an operation, which writes a part."""
        if power_lost:
            image = self.fs.after_power_loss(self.dice)
            image.capacity = 1 << 50  # Without its volumes, a small disk is refused.
            return image
        return self.fs.after_kill(torn=torn)

    # --- Steps ---------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Do so many steps, and look after each what a crash would leave."""
        for number in range(steps):
            self.before = self.live()
            self.under_way.clear()
            chosen = self.dice.random()
            if self.kind == "faults":
                self.break_disk()
            if self.kind == "faults" and self.dice.random() < 0.1:
                self.limit()
            self.fs.watch = self.watch
            share = self.dice.choice([0, 0, 100, 500]) if self.kind == "memory" else 0
            with self.repeatable(), failing(share, number):
                self.do(chosen, number)
            self.fs.watch = None
            self.check()
        self.count()

    def break_disk(self) -> None:
        """Choose what the disk refuses: one operation, several, or a kind for a while."""
        fs, dice = self.fs, self.dice
        if self.broken_steps:
            self.broken_steps -= 1
            return
        self.repair_disk()
        if dice.random() > 0.3:
            return
        code = dice.choice([errno.ENOSPC, errno.EIO])
        fs.fail_share = dice.choice([0.0, 0.5, 0.95, 1.0])
        kinds = ["any", "sync", "pwritev", "rename", "sync_directory", "close", "/"]
        what = dice.choice(kinds)
        if what == "any":
            fs.fail_at = fs.operations + dice.randint(1, 12)
            fs.fail_for, fs.fail_with = dice.choice([1, 1, 2, 5]), code
        elif what == "/":
            path = dice.choice(["data/", "index/", "META.txt"])
            fs.failing_writes[f"{MOUNT_POINT}/{path}"] = code
        else:
            fs.failing[what] = code
        self.broken_steps = dice.choice([0, 0, 1, 3])

    def repair_disk(self) -> None:
        """Let the disk refuse nothing."""
        self.fs.recover()
        self.broken_steps = 0

    def limit(self) -> None:
        """Let a limit of the disk appear, at most what is free, or vanish."""
        self.fs.capacity = 1 << 50
        if self.dice.random() < 0.5:
            spare = self.dice.choice([0, 1000, 20_000, 30_000])
            self.fs.capacity = self.fs.used + spare

    def do(self, chosen: float, number: int) -> None:  # noqa: C901, PLR0912 - One case per step.
        """Do a step."""
        key = self.dice.choice(self.keys)
        if chosen < 0.12:
            self.group_commit(self.dice.choices(self.keys, k=self.dice.randint(1, 5)))
        elif chosen < 0.36:
            self.put(key)
        elif chosen < 0.42:
            self.touch(key)
        elif chosen < 0.72:
            self.get()
        elif chosen < 0.80:
            self.delete(key)
        elif chosen < 0.88:
            self.work()
        elif chosen < 0.91:
            self.step_name = "sync"
            self.store.sync()
            if not self.store.stats.sync_errors:
                self.note_synced()
        elif chosen < 0.93:
            self.step_name = "time"
            self.now_ms += self.dice.choice([1, 500, 5000])
        elif chosen < 0.935:
            self.flush()
        elif chosen < 0.95:
            self.purge(key[: self.dice.randint(4, len(key))])
        elif chosen < 0.97 or number < 5:
            self.stat(key)
        else:
            self.restart()

    def new_value(self) -> tuple[bytes, int]:
        """Return a value that no other step stores, and when it expires."""
        self.version += 1
        room = self.volume_size - 200
        length = self.dice.choice([20, 100, 200, 200, 300, 500, room])
        # Random: a torn write must not differ from a whole one in a single bit.
        value = b"%d." % self.version + self.dice.randbytes(length)
        expires = 0
        if self.dice.random() < 0.1:
            expires = self.now_ms + self.dice.choice([1, 1000, 10_000])
        return value, expires

    def put(self, key: bytes) -> None:
        """Store a value."""
        self.step_name = "put"
        self.put_value(key, *self.new_value())

    def put_value(self, key: bytes, value: bytes, expires: int) -> None:
        """Store this value."""
        stored = with_expiry(value, expires)
        self.begin(key, stored)
        with self.refusable():
            self.store.put(key, value, expires_ms=expires)
            self.acknowledge(key, stored, expires)

    def group_commit(self, keys: list[bytes]) -> None:
        """Store several values with one sync or write, and one by one what that leaves."""
        self.step_name = "put together"
        puts = [(key, *self.new_value()) for key in keys]
        for key, value, expires in puts:
            self.begin(key, with_expiry(value, expires))
        done = self.store.index.group_commit(
            [(key, value, b"", b"", b"", 0, expires, 0) for key, value, expires in puts]
        )
        for (key, value, expires), is_done in zip(puts, done, strict=True):
            if is_done:
                self.acknowledge(key, with_expiry(value, expires), expires)
        left = [put for put, is_done in zip(puts, done, strict=True) if not is_done]
        for key, value, expires in left:
            self.begin(key, with_expiry(value, expires))
        for put in left:
            self.put_value(*put)

    def touch(self, key: bytes) -> None:
        """Change when the value of a key expires."""
        self.step_name = "touch"
        with self.refusable(ValueTooLargeError):  # Volumes may have been larger before.
            record = self.store.get(key)
            if record is None:
                return
            expires = self.now_ms + self.dice.choice([1, 1000, 10_000, 100_000])
            if self.dice.random() < 0.2:
                expires = 0
            stored = with_expiry(record.value, expires)
            self.begin(key, stored)
            touched = self.store.touch(key, record, expires)
            assert touched.stored_us == record.stored_us, self.where()
            self.acknowledge(key, stored, expires)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.step_name = "delete"
        self.begin(key, None)
        with self.refusable():
            self.store.delete(key)
            self.acknowledge(key, None, 0)

    def begin(self, key: bytes, value: bytes | None) -> None:
        """Note an operation that begins."""
        self.under_way.add(key)
        self.model.begin(key, value)

    def acknowledge(self, key: bytes, value: bytes | None, expires: int) -> None:
        """Note that an operation is done."""
        self.turn = self.store.usage(volumes=False).active_seq
        is_synced = self.sync_mode == "always"
        self.model.acknowledge(key, value, is_synced=is_synced, turn=self.turn)
        self.expires[key] = expires

    def refusable(self, *others: type[Exception]) -> suppress:
        """Bear what the disk refuses, or what there is no memory for, and others."""
        if self.kind == "faults":
            others += (DiskFullError, StoreIOError, UnreadableRecordError)
        if self.kind == "memory":
            others += (OutOfMemoryError,)
        return suppress(*others)

    def note_synced(self, *, is_stop: bool = False) -> None:
        """Note that all is on the disk."""
        # What an earlier process has written is synced only if the disk could be written.
        is_synced = is_stop or self.sync_mode != "none"
        if is_synced and not self.store._log.rings.refusal:
            self.model.note_synced()

    def get(self) -> None:
        """Read a few keys, the first ones most."""
        self.step_name = "get"
        for _ in range(self.dice.randint(1, 6)):
            at = min(self.dice.randrange(len(self.keys)) for _ in range(2))
            key = self.keys[at]
            if self.kind == "faults" and self.dice.random() < 0.1:
                self.fs.failing["pread"] = errno.EIO
            with self.refusable():
                found = seen(self.store.get(key))
                assert found in self.allowed(key), (*self.where(), key, found)
            self.fs.failing.pop("pread", None)

    def stat(self, key: bytes) -> None:
        """Ask for a key as HEAD does."""
        self.step_name = "stat"
        with self.refusable():
            record = self.store.stat(key)
            values = (value or b"" for value in self.allowed(key))
            lengths = {len(value.rpartition(b"|")[0]) for value in values}
            assert record is None or record.length in lengths, self.where()

    def work(self) -> None:
        """Go on with a reclaim."""
        self.step_name = "work"
        if self.kind == "faults" and self.dice.random() < 0.3:
            self.fs.failing["pread"] = errno.EIO
        for _ in range(self.dice.randint(1, 4)):
            self.store._log.evictor.continue_reclaim(
                self.dice.randint(1, self.volume_size)
            )
        self.fs.failing.pop("pread", None)

    def flush(self) -> None:
        """Drop every key."""
        self.step_name = "flush"
        for key in self.keys:
            self.model.maybe[key].add(None)
        with self.refusable():
            self.store.flush()
            for key in self.keys:  # META.txt is synced.
                self.model.drop(key)

    def purge(self, prefix: bytes) -> None:
        """Drop every key that begins with a prefix; then no power loss brings it back."""
        self.step_name = "purge"
        keys = [key for key in self.keys if key.startswith(prefix)]
        for key in keys:
            self.model.maybe[key].add(None)
        with self.refusable():
            self.store.purge(prefix)
            for key in keys:
                self.model.drop(key)

    def die(self) -> SimulatedFileSystem:
        """Do steps, and die in the middle of one; return what is left."""

        def crash(length: int) -> SimulatedFileSystem:
            return self.fs.after_kill(torn=self.dice.randrange(length) if length else 0)

        def run() -> None:
            while True:
                self.do(self.dice.random() * 0.95, 0)

        left = self.fs.dying(self.dice.randrange(60), run, crash)
        assert left is not None
        return left

    def restart(self) -> None:  # noqa: C901, PLR0915 - All that may change.
        """End the process in one of the ways it can end, and start another."""
        self.count()
        ways = {"power": "power", "faults": "kill"}
        way = self.dice.choice(["stop", "kill", ways.get(self.kind, "die")])
        self.step_name = way
        self.fs.watch = self.watch if self.is_exhaustive else None
        self.repair_disk()
        before = self.fs
        if way == "stop":
            self.store.close()
            self.note_synced(is_stop=True)
            self.fs = before.after_kill()
        elif way == "kill":
            for key in filter(self.is_copied, self.keys):  # Until the next sync.
                self.model.since[key].append(self.model.last[key])
            self.fs = before.after_kill()
        elif way == "die":
            self.fs = self.die()
        else:
            self.fs = before.after_power_loss(self.dice)
        if self.dice.random() < 0.4 and not self.is_exhaustive:
            self.eviction = self.dice.choice(["fifo", "frequency", "frequency"])
        sizes = (self.volume_num, self.volume_size)
        if self.dice.random() < 0.15:
            self.volume_num = self.dice.randint(4, 9)
            self.volume_num_min = min(self.volume_num, self.volume_num_min)
            self.volume_size = max(1024, self.dice.choice([1024, 1500, 2048]))
            self.step_name += f", sizes {sizes}"
        self.step_name += f", {self.eviction}"
        if way in {"die", "power"} or sizes[1] != self.volume_size:
            self.model.turns.clear()
        self.fs.watch = self.watch if self.is_exhaustive else None
        self.start()
        if way == "power":
            self.adopt()
        else:
            self.adopt_refused()

    def adopt_refused(self) -> None:
        """Go on with the refused values that a start has found, which are valid now."""
        for key in self.keys:
            value, refused = self.peek(key), self.model.maybe[key]
            if value is None and self.kind == "kills":
                self.model.last[key] = None  # A miss stays one.
            elif value in refused and value is not None:
                self.model.last[key] = value
                self.expires[key] = int(value.rpartition(b"|")[2])
                self.model.since[key].append(value)
            refused.clear()

    def adopt(self) -> None:
        """Go on with what a power loss has left, which is safe."""
        # Records that are damaged are noticed when they are read.
        records = {key: self.store.get(key) for key in self.keys}
        found = {key: seen(record) for key, record in records.items()}
        self.compare(found, power_lost=True)
        for key, record in records.items():
            self.model.adopt(key, found[key])
            self.expires[key] = 0 if record is None else record.expires_ms

    def start(self) -> None:
        """Start; a second time if the disk has refused something, or without memory."""
        whole = self.fs.after_kill()
        share = self.dice.choice([0, 50]) if self.kind == "memory" else 0
        try:
            with failing(share, self.images):
                self.store = self.open(self.fs, self.eviction)
        except (MountPointError, MemoryError) as error:
            if self.kind != "memory" and (
                self.kind != "faults" or isinstance(error, MemoryError)
            ):
                raise
            assert not self.fs.descriptors, self.where()
            if self.kind == "faults":
                self.fs = whole
            with failing(0, 0):
                self.store = self.open(self.fs, self.eviction)

    def count(self) -> None:
        """Add up what this process has reclaimed."""
        assert_sums(self.store.usage())
        stats = self.store.stats
        self.copied += stats.disposition.copied
        self.rotations += stats.rotations


def run_all(kind: Kind, first: int, number: int, steps: int) -> Counter[str]:
    """Do a number of runs; return what they have done."""
    total: Counter[str] = Counter()
    for seed in range(first, first + number):
        run = RingRun(seed, kind)
        run.run(steps)
        total.update(rotations=run.rotations, copied=run.copied, images=run.images)
    return total


if __name__ == "__main__":
    _first, _number, _steps = map(int, sys.argv[1:])
    _found = run_all("memory", _first, _number, _steps)
    sys.stdout.write(json.dumps(_found | {"failed": failures()}))
