"""How full the volumes are, against a model that remembers every record."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.damage import overwrite
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    UnsyncedFileSystem,
    counted_size,
    fill_volume,
    open_store,
    reopen,
)
from volcache.store import Store
from volcache.store.eviction import Eviction
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.stats import STATES, EvictionUsage, StoreUsage


class Model:
    """Which records are live, where, and which were evicted."""

    def __init__(self, store: Store) -> None:
        """Start with an empty store."""
        self.store = store
        self.live: dict[bytes, tuple[int, int]] = {}
        self.evicted_records = 0
        self.evicted_bytes = 0

    def put(self, key: bytes, length: int) -> None:
        """Store a value."""
        record = self.store.put(key, bytes(length))
        self._evict()
        seq = self.store.usage().active_seq
        self.live[key] = (seq, counted_size(record.size))

    def delete(self, key: bytes) -> None:
        """Delete a key; the tombstone may cause a rotation."""
        self.store.delete(key)
        self._evict()
        self.live.pop(key, None)

    def _evict(self) -> None:
        """Remove and count the records of reclaimed volumes."""
        valid = {v.seq for v in self.store.usage().volumes if v.used}
        for key, (volume, size) in list(self.live.items()):
            if volume not in valid:
                del self.live[key]
                self.evicted_records += 1
                self.evicted_bytes += size

    def agrees(self) -> None:
        """Compare the usage with the model."""
        usage = self.store.usage()
        by_place: dict[int, list[int]] = {}
        for place, size in self.live.values():
            by_place.setdefault(place, []).append(size)
        for volume in usage.volumes:
            sizes = by_place.get(volume.seq, [])
            live = min(sum(sizes), max(0, volume.used - VOLUME_HEADER_BYTES))
            assert (volume.live_records, volume.live) == (len(sizes), live)
            assert volume.live + volume.dead == volume.used <= volume.size
        assert usage.keys == len(self.live) == self.store.count
        assert_sums(usage)
        short = self.store.usage(volumes=False)
        # The free space of the disk changes meanwhile.
        assert replace(short, disk=usage.disk) == replace(usage, volumes=[])
        assert usage.live + usage.dead + usage.free == VOLUME_NUM * VOLUME_SIZE
        stats = self.store.stats
        assert stats.evicted_records == self.evicted_records
        assert stats.evicted_bytes == self.evicted_bytes


def assert_sums(usage: StoreUsage) -> None:
    """Compare what is computed without the list of volumes with that list."""
    volumes = usage.volumes
    assert usage.states == dict.fromkeys(STATES, 0) | Counter(
        volume.state for volume in volumes
    )
    for name, ring in zip(("main", "probation"), usage.rings, strict=True):
        found = [volume for volume in volumes if volume.ring == name]
        assert ring == (
            len(found),
            sum(volume.used for volume in found),
            sum(volume.live for volume in found),
            sum(volume.live_records for volume in found),
            min((v.started_ms for v in found if v.started_ms), default=0),
        )
    started = [v.started_ms for v in volumes if v.started_ms]
    assert usage.oldest_started_ms == min(started, default=0)
    assert usage.active_started_ms == volumes[usage.active_id].started_ms


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_live_dead_and_evicted_bytes_are_those_of_a_model(
    tmp_path: Path, seed: int
) -> None:
    """Over several turns, with keys overwritten and deleted."""
    chance = random.Random(seed)  # noqa: S311 - No secret.
    store = open_store(tmp_path)
    model = Model(store)
    for _ in range(400):
        key = b"%d" % chance.randrange(60)
        if chance.random() < 0.2:
            model.delete(key)
        else:
            model.put(key, chance.randrange(1500))
        model.agrees()
    assert store.stats.rotations > VOLUME_NUM
    assert model.evicted_records
    store.close()


def test_the_start_time_of_a_volume_survives_a_restart(tmp_path: Path) -> None:
    """It is in the header: of a volume without one, it is unknown."""
    clock = FakeClock()
    first = clock.now_ms
    store = open_store(tmp_path, clock=clock)
    clock.advance(3600)
    records = len(fill_volume(store)) - 1
    began = [first, first + 3_600_000, 0, 0]
    assert [v.started_ms for v in store.usage().volumes] == began

    clock.advance(60)
    store = reopen(store, tmp_path, clock=clock)
    assert [v.started_ms for v in store.usage().volumes] == began
    store.close()
    overwrite(tmp_path / "data" / "0", 0, bytes(VOLUME_HEADER_BYTES))
    store = open_store(tmp_path)
    volume = store.usage().volumes[0]
    assert (volume.started_ms, volume.live_records) == (0, records)
    store.close()


def test_usage_works_if_the_disk_does_not_answer(
    tmp_path: Path,
) -> None:
    """Without the length of the file, its size is what was written."""

    class Silent(UnsyncedFileSystem):
        is_silent = False

        def size(self, fd: int) -> int:
            if self.is_silent:
                raise OSError
            return super().size(fd)

    fs = Silent()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"v")
    fs.is_silent = True
    volume = store.usage().volumes[0]
    assert volume.size == volume.used == store.usage().active_end
    fs.is_silent = False
    store.close()


class Readers:
    """Keys that are read once, again much later, and one that is read all the time."""

    def __init__(self, clock: FakeClock) -> None:
        """Begin with the first key."""
        self.clock = clock
        self.number = 0

    def read(self, store: Store) -> EvictionUsage:
        """Read the next keys, and store what is missing."""
        for key in (self.number, self.number - 120, 0):
            if store.get(b"%d" % key) is None:
                store.put(b"%d" % key, bytes(1000))
        self.number += 1
        self.clock.advance(1)
        return store.usage().eviction


def test_gain_is_known_when_as_much_as_the_capacity_was_put(tmp_path: Path) -> None:
    """It is that since then: what was counted before is not part of it."""
    clock = FakeClock()
    options: dict[str, Any] = {"volume_num": 16, "clock": clock}
    readers = Readers(clock)
    store = open_store(tmp_path, **options)
    while not readers.read(store).fate.unused:
        pass
    store = reopen(store, tmp_path, **options)
    eviction, before = readers.read(store), 0
    while eviction.gained_hits is None:
        assert eviction.put_bytes < 18 * VOLUME_SIZE
        assert eviction.older_hits == 0
        before = eviction.ghost_hits
        eviction = readers.read(store)
    assert eviction.put_bytes >= 16 * VOLUME_SIZE
    assert before > 5
    assert abs(eviction.gained_hits) <= 2  # Those of the last reads.
    for _ in range(100):
        eviction = readers.read(store)
    gained = eviction.older_hits - (eviction.ghost_hits - before)
    assert eviction.gained_hits is not None
    assert gained <= eviction.gained_hits <= gained + 2
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_copy", [False, True])
def test_record_that_is_read_all_the_time_is_an_older_hit_once_per_turn(
    tmp_path: Path, *, is_copy: bool
) -> None:
    """A single ring would have missed it as often; reads from memcached count, too."""
    clock = FakeClock()
    store = open_store(tmp_path, volume_num=16, clock=clock)
    store.put(b"used", bytes(1000))
    copy = store.read_raw(b"used")
    assert copy is not None
    number, turns = 0, 6
    eviction = store.usage().eviction
    while eviction.put_bytes < (turns + 1) * 16 * VOLUME_SIZE:
        for _ in range(3):
            found = store.validate(b"used", copy) if is_copy else store.get(b"used")
            assert found is not None
        store.put(b"%d" % number, bytes(1000))  # No get missed it: it goes to main.
        number += 1
        clock.advance(1)
        eviction = store.usage().eviction
    assert turns - 1 <= eviction.older_hits <= turns + 3
    store.close()


@pytest.mark.parametrize("eviction", ["fifo", "frequency"])
def test_next_volume_is_the_one_that_is_reclaimed(
    tmp_path: Path, eviction: Eviction
) -> None:
    """None while there are only active volumes."""
    store = open_store(tmp_path, volume_num=8, eviction=eviction)
    assert store.usage().eviction.next_id == -1
    number = reclaimed = 0
    while reclaimed < 20:
        usage = store.usage()
        key = b"%d" % number
        if number % 3:
            store.get(key)  # Missed, so it goes to probation.
        store.put(key, bytes(1000))
        number += 1
        left = {volume.seq for volume in store.usage().volumes}
        gone = {volume.seq for volume in usage.volumes if volume.seq} - left
        if gone:
            assert gone == {usage.volumes[usage.eviction.next_id].seq}
            reclaimed += 1
    store.close()
