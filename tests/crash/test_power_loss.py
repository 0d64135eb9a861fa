"""
Kill the process, or cut the power, before every operation of a script.

The disk is simulated, so the script runs only once: at each operation that changes the
disk, the test opens what a crash at that moment would leave. `CRASH_EXTENT` multiplies the
number of such images; 0 tears every write at every byte.
"""

from __future__ import annotations

import random

import pytest

from support.extent import EXTENT, SEED, Count
from support.histories import Runner, make_value, open_simulated
from support.simulated import SimulatedFileSystem
from support.stores import value_of
from volcache.store import Store, SyncMode
from volcache.store.files import FileSystem

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash, pytest.mark.slow]

MODES: list[SyncMode] = ["none", "periodic", "always"]
TORN = (1, 17, 18, 59, 63, 64, 70, 100, 400)


class Explorer:
    """Verifies what a crash would leave, at every operation of a run."""

    def __init__(self, sync_mode: SyncMode, *, power_lost: bool) -> None:
        """Prepare a run on an empty disk."""
        self.sync_mode = sync_mode
        self.power_lost = power_lost
        self.runner = Runner(SimulatedFileSystem(), sync_mode)
        self.runner.fs.watch = self.look
        self.images = 0
        self.nested = 0
        self.dice = random.Random(SEED)  # noqa: S311 - Repeatable on purpose.

    def look(self, name: str, data: bytes) -> None:
        """Verify what is left if the crash comes before this operation."""
        fs = self.runner.fs
        if self.power_lost:
            for _ in range(2 * EXTENT or 30):
                self.verify(fs.after_power_loss(self.dice), name)
            return
        self.verify(fs.after_kill(), name)
        for torn in self.torn_lengths(len(data)):
            if fs.tears(torn):
                self.verify(fs.after_kill(torn=torn), f"{name}, torn at {torn}")

    def torn_lengths(self, length: int) -> list[int]:
        """Return the numbers of bytes after which a write is torn."""
        if not EXTENT:
            return list(range(1, length))
        chosen = self.dice.sample(range(length), min(length, 2 * EXTENT))
        if EXTENT == 1:
            chosen += self.dice.sample(TORN, 2)
        else:
            chosen += TORN
        return sorted({torn for torn in chosen if 0 < torn < length})

    def verify(self, image: SimulatedFileSystem, what: str) -> None:
        """Start on an image, sometimes after starts that crash, and compare."""
        self.images += 1
        while self.dice.random() < 0.25:
            image = self.die_in_recovery(image)
        store = self.open(image)
        try:
            self.runner.verify(store, power_lost=self.power_lost)
            assert not store.recovery.meta_lost
            if not self.power_lost:
                assert (store.recovery.damaged, store.stats.damaged_records) == (0, 0)
        except AssertionError as error:
            position = (self.runner.fs.operations, what, self.sync_mode)
            raise AssertionError(position, SEED, *error.args) from error
        if self.images % 7 == 0 and self.sync_mode != "none":
            self.go_on(store, image)

    def open(self, image: SimulatedFileSystem) -> Store:
        """Start on an image."""
        fs: FileSystem = image
        return open_simulated(
            fs,
            sync_mode=self.sync_mode,
            volume_num=self.runner.volume_num,
            is_sparse=self.dice.random() < 1 / 2,
        )

    def die_in_recovery(self, image: SimulatedFileSystem) -> SimulatedFileSystem:
        """Start on an image, crash again during that start, and return what is left."""
        left = self.dice.randrange(14)
        dead = image.dying(
            left, lambda: self.open(image), lambda length: self.crash(image, length)
        )
        self.nested += dead is not None
        return dead or self.crash(image, 0)

    def crash(self, image: SimulatedFileSystem, length: int) -> SimulatedFileSystem:
        """Return what a crash leaves of an image, during a write of `length` bytes."""
        if self.power_lost:
            return image.after_power_loss(self.dice)
        return image.after_kill(torn=self.dice.randrange(length) if length else 0)

    def go_on(self, store: Store, image: SimulatedFileSystem) -> None:
        """Put more keys, lose power and compare: nothing else has changed."""
        found = {key: store.get(key) for key in self.runner.history.ever}
        values = {b"new %d" % n: make_value(b"new", n) for n in range(3)}
        for key, value in values.items():
            store.put(key, value)
        store.sync()
        again = self.open(image.after_power_loss(self.dice))
        for key, value in values.items():
            record = again.get(key)
            assert record is not None, key
            assert record.value == value
        for key, record in found.items():
            # The three puts may have reclaimed it; nothing else may have changed. But an
            # entry without its record hides an older one until the entry is lost, too.
            last = value_of(record)
            allowed = [last, None]
            if last is None:
                allowed += self.runner.history.allowed(key, power_lost=True, oldest=0)
            assert value_of(again.get(key)) in allowed


@pytest.mark.parametrize("sync_mode", MODES)
def test_a_kill_at_any_moment_loses_nothing_acknowledged(
    sync_mode: SyncMode, record_property: Count
) -> None:
    """In any sync mode, as the kernel has what was written."""
    explorer = Explorer(sync_mode, power_lost=False)
    explorer.runner.run()

    record_property("crashes_by_kills", explorer.images)
    record_property("recoveries_ended_by_kills", explorer.nested)
    assert explorer.images > 500


@pytest.mark.parametrize("sync_mode", MODES)
def test_a_power_loss_at_any_moment_keeps_what_was_synced(
    sync_mode: SyncMode, record_property: Count
) -> None:
    """And no older value comes back, whatever else has reached the disk."""
    explorer = Explorer(sync_mode, power_lost=True)
    explorer.runner.run()

    record_property("crashes_by_power_losses", explorer.images)
    record_property("recoveries_ended_by_power_losses", explorer.nested)
    assert explorer.images > 500


def several_values(
    sync_mode: SyncMode, length: int, dice: random.Random
) -> tuple[SimulatedFileSystem, Store, dict[bytes, list[bytes]]]:
    """Return a disk, its store, and for each key the synced value and one to be put."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs, sync_mode=sync_mode, volume_size=1 << 17)
    # Random: no lost sector may differ from a stored one in a single bit.
    values = {
        b"key %d" % number: [dice.randbytes(length), dice.randbytes(length)]
        for number in range(8)
    }
    for key, (before, _) in values.items():
        store.put(key, before)
    store.sync()
    return fs, store, values


def put_new(store: Store, values: dict[bytes, list[bytes]]) -> None:
    """Put the second value of each key, all together."""
    puts = [(key, new, b"", b"", b"", 0, 0, 0) for key, (_, new) in values.items()]
    assert all(store.index.group_commit(puts))


def which_after(
    image: SimulatedFileSystem, sync_mode: SyncMode, values: dict[bytes, list[bytes]]
) -> list[int]:
    """Start on an image, and return which value each key has."""
    started = open_simulated(image, sync_mode=sync_mode, volume_size=1 << 17)
    return [two.index(value_of(started.get(key)) or b"") for key, two in values.items()]


@pytest.mark.parametrize("length", [100, 700, 3000])
@pytest.mark.parametrize("sync_mode", ["none", "always"])
def test_a_power_loss_after_a_write_of_several_values_keeps_those_before(
    sync_mode: SyncMode, length: int, record_property: Count
) -> None:
    """Each key has its synced value or the new one, whatever else is lost."""
    dice = random.Random(SEED)  # noqa: S311 - Repeatable on purpose.
    fs, store, values = several_values(sync_mode, length, dice)
    images: list[SimulatedFileSystem] = []

    def lose_power(name: str, *_: object) -> None:
        if name == "sync" and not images:
            images.extend(fs.after_power_loss(dice) for _ in range(30 * EXTENT or 500))

    fs.watch = lose_power
    put_new(store, values)
    lose_power("sync")

    found = {
        which for image in images for which in which_after(image, sync_mode, values)
    }
    assert found == {0, 1}
    record_property("crashes_by_power_losses", len(images))


def test_a_kill_in_a_write_of_several_values_keeps_the_first_of_them(
    record_property: Count,
) -> None:
    """What is whole is found, and each other key has its value from before."""
    dice = random.Random(SEED)  # noqa: S311 - Repeatable on purpose.
    fs, store, values = several_values("none", 700, dice)
    size = 64 + len(b"key 0") + 700
    images: list[tuple[int, SimulatedFileSystem]] = []

    def kill(name: str, _data: bytes) -> None:
        assert name == "pwritev"
        assert not images
        images.extend(
            (torn, fs.after_kill(torn=torn))
            for torn in dice.sample(range(1, 8 * size + 100), 30 * EXTENT or 2000)
            if fs.tears(torn)
        )

    fs.watch = kill
    put_new(store, values)

    for torn, image in images:
        whole = min(8, torn // size)
        assert which_after(image, "none", values) == [1] * whole + [0] * (8 - whole)
    record_property("crashes_by_kills", len(images))
