"""
How much is stored before a value can be evicted, whatever restarts come between.

The rule is in docs/ARCHITECTURE-STORE.md, with its exceptions, which do not occur here.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from support.extent import SEED, examples
from support.rings import peek
from support.simulated import SimulatedFileSystem
from support.stores import kill, open_store, value_of
from volcache.store import Store
from volcache.store.format import Ring

pytestmark = [pytest.mark.property, pytest.mark.slow]

VOLUME_SIZE: Final = 4096
SMALL: Final = range(80, VOLUME_SIZE // 8)
HALVES: Final = range(VOLUME_SIZE // 2, VOLUME_SIZE // 2 + 80)


class Run:
    """Random puts, reads and restarts; notes what was appended before each put."""

    def __init__(self, seed: int, volumes: int, sizes: range = SMALL) -> None:
        """Open an empty store."""
        self.dice = random.Random(f"{volumes} {seed}")  # noqa: S311 - Repeatable.
        self.asked = self.dice.choice([0.05, 0.3, 0.7, 0.97])
        self.reinsert_reads = self.dice.choice([0.0, 0.1, 1.0])
        self.volumes, self.sizes = volumes, sizes
        self.disk = SimulatedFileSystem()
        self.number = 0
        # What was appended to each ring, copies included, and as the process counts it.
        self.appended = dict.fromkeys(Ring, 0)
        self.counted = dict.fromkeys(Ring, 0)
        self.put_at: dict[bytes, tuple[Ring, int]] = {}
        self.least = dict.fromkeys(Ring, volumes * VOLUME_SIZE)
        self.store = self.open()

    def open(self) -> Store:
        """Start a process."""
        return open_store(
            "/srv",
            fs=self.disk,
            volume_size=VOLUME_SIZE,
            volume_num=self.volumes,
            reinsert_reads=self.reinsert_reads,
        )

    def counts(self) -> dict[Ring, int]:
        """Return the bytes appended to each ring, as this process counts them."""
        newest = self.store._log.rings.newest
        return {ring: v.appended if (v := newest[ring]) else 0 for ring in Ring}

    def note_appended(self) -> None:
        """Add up what was appended since the last time."""
        found = self.counts()
        for ring in Ring:
            self.appended[ring] += found[ring] - self.counted[ring]
        self.counted = found

    def step(self) -> None:
        """Put, read, or end the process in one of two ways and start another."""
        chosen = self.dice.random()
        if chosen < 0.78:
            self.put()
        elif chosen < 0.98:
            for _ in range(3):
                back = int(self.dice.expovariate(1 / 60))
                self.store.get(b"%d" % max(1, self.number - back))
        else:
            if self.dice.random() < 0.5:
                kill(self.store)
            else:
                self.store.close()
            self.disk = self.disk.after_kill()
            self.store = self.open()
            self.counted = self.counts()
        self.note_appended()

    def put(self) -> None:
        """Put a new key, which was asked for or not."""
        self.number += 1
        key = b"%d" % self.number
        if self.dice.random() < self.asked:
            self.store.get(key)
        self.store.put(key, bytes(self.dice.choice(self.sizes) - 80))
        self.note_appended()
        found = self.store._reader._locate(key)
        assert found is not None
        ring = found[0].use.ring
        self.put_at[key] = (ring, self.appended[ring])

    def note_evicted(self) -> None:
        """Note how much had been appended after the values that are gone."""
        for key, (ring, at) in list(self.put_at.items()):
            if peek(self.store, key) is None:
                del self.put_at[key]
                self.least[ring] = min(self.least[ring], self.appended[ring] - at)


@pytest.mark.parametrize("sizes", [SMALL, HALVES])
@pytest.mark.parametrize("volumes", [16, 32])
def test_a_value_is_evicted_only_after_enough_was_stored(
    volumes: int, sizes: range
) -> None:
    """Probation: an eighth of the cache less a volume; main: half of the cache."""
    capacity = volumes * VOLUME_SIZE
    for seed in range(SEED, SEED + examples(12)):
        run = Run(seed, volumes, sizes)
        for number in range(1200):
            run.step()
            if number % 5 == 0:
                run.note_evicted()
        headers = 64 * (volumes // 8 + 3)
        assert run.least[Ring.PROBATION] > capacity // 8 - VOLUME_SIZE - headers, seed
        assert run.least[Ring.MAIN] > capacity // 2, seed


@pytest.mark.parametrize("eviction", ["frequency", "fifo"])
@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_lower_volume_num_keeps_the_value_stored_last(
    eviction: str, *, is_asked_for: bool
) -> None:
    """The volume of each ring that is written is removed last."""
    run = Run(SEED, 16)
    for _ in range(400):
        run.put()
    if is_asked_for:
        run.store.get(b"last")
    run.store.put(b"last", b"v")
    for _ in range(30):  # To the other ring.
        run.asked = float(not is_asked_for)
        run.put()
    kill(run.store)
    run.disk = run.disk.after_kill()
    again = open_store(
        "/srv", fs=run.disk, volume_size=VOLUME_SIZE, volume_num=2, eviction=eviction
    )

    assert value_of(again.get(b"last")) == b"v"
