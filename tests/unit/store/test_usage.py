"""How full the volumes are, against a model that remembers every record."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

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
from volcache.store.format import VOLUME_HEADER_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.store import Store


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
        assert usage.live + usage.dead + usage.free == VOLUME_NUM * VOLUME_SIZE
        stats = self.store.stats
        assert stats.evicted_records == self.evicted_records
        assert stats.evicted_bytes == self.evicted_bytes


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


def test_every_volume_id_is_listed(tmp_path: Path) -> None:
    """A new store has one active volume and empty ones; a turn later none is empty."""
    store = open_store(tmp_path)
    usage = store.usage()
    assert [v.state for v in usage.volumes] == ["active", "empty", "empty", "empty"]
    assert [v.size for v in usage.volumes] == [VOLUME_SIZE] * VOLUME_NUM
    assert usage.dead == usage.active_end == VOLUME_HEADER_BYTES

    for _ in range(VOLUME_NUM):
        fill_volume(store)
    usage = store.usage()
    assert [v.state for v in usage.volumes] == ["active", "sealed", "sealed", "sealed"]
    assert [v.seq for v in usage.volumes] == [5, 2, 3, 4]
    assert (usage.active_id, usage.active_seq) == (0, 5)
    store.close()


def test_the_start_time_of_a_volume_survives_a_restart(tmp_path: Path) -> None:
    """From the clock when it became active, from its header later."""
    clock = FakeClock()
    first = clock.now_ms
    store = open_store(tmp_path, clock=clock)
    clock.advance(3600)
    fill_volume(store)
    began = [first, first + 3_600_000, 0, 0]
    assert [v.started_ms for v in store.usage().volumes] == began

    clock.advance(60)
    store = reopen(store, tmp_path, clock=clock)
    assert [v.started_ms for v in store.usage().volumes] == began
    store.close()


def test_the_start_time_of_a_volume_with_a_damaged_header_is_unknown(
    tmp_path: Path,
) -> None:
    """Its records are read, by its index file."""
    store = open_store(tmp_path, clock=FakeClock())
    keys = fill_volume(store)
    store.close()
    path = tmp_path / "data" / "0"
    data = path.read_bytes()
    path.write_bytes(bytes(VOLUME_HEADER_BYTES) + data[VOLUME_HEADER_BYTES:])

    store = open_store(tmp_path)
    volume = store.usage().volumes[0]
    assert (volume.started_ms, volume.live_records) == (0, len(keys) - 1)
    store.close()


def test_volumes_of_earlier_settings_are_shown_as_they_are(
    tmp_path: Path,
) -> None:
    """A volume gets the new size when its id is used again."""
    store = open_store(tmp_path)
    fill_volume(store)
    store.close()
    store = open_store(tmp_path, volume_num=6, volume_size=2 * VOLUME_SIZE)
    sizes = [v.size for v in store.usage().volumes]
    assert sizes[0] == VOLUME_SIZE
    assert sizes[1:] == [2 * VOLUME_SIZE] * 5
    store.close()
    store = open_store(tmp_path, volume_num=2, volume_size=1024)
    assert store.usage().free == 0
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
