"""What the usage of a store says; test_store_model.py compares how full its volumes are."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.damage import overwrite
from support.stores import (
    VOLUME_SIZE,
    FakeClock,
    UnsyncedFileSystem,
    fail,
    fill_volume,
    open_store,
    reopen,
)
from volcache.store.eviction import Eviction
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.stats import EvictionUsage


def test_usage_after_a_restart_has_the_start_times_of_volumes(tmp_path: Path) -> None:
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


def test_usage_with_a_disk_that_does_not_answer_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the length of the file, its size is what was written."""
    fs = UnsyncedFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"v")
    monkeypatch.setattr(fs, "stat", fail)
    volume = store.usage().volumes[0]
    assert volume.size == volume.used == store.usage().active_end
    monkeypatch.undo()
    store.close()


def test_usage_after_puts_of_the_capacity_has_the_gain(tmp_path: Path) -> None:
    """It is that since then: what was counted before is not part of it."""
    clock = FakeClock()
    options: dict[str, Any] = {"volume_num": 16, "clock": clock}
    numbers = count()

    def read() -> EvictionUsage:
        """Read a new key, one again much later, and one that is read all the time."""
        number = next(numbers)
        for key in (number, number - 120, 0):
            if store.get(b"%d" % key) is None:
                store.put(b"%d" % key, bytes(1000))
        clock.advance(1)
        return store.usage().eviction

    store = open_store(tmp_path, **options)
    while not read().disposition.unused:
        pass
    store = reopen(store, tmp_path, **options)
    eviction, before = read(), 0
    while eviction.gained_hits is None:
        assert eviction.put_bytes < 18 * VOLUME_SIZE
        assert eviction.older_hits == 0
        before = eviction.ghost_hits
        eviction = read()
    assert eviction.put_bytes >= 16 * VOLUME_SIZE
    assert before > 5
    assert abs(eviction.gained_hits) <= 2  # Those of the last reads.
    for _ in range(100):
        eviction = read()
    gained = eviction.older_hits - (eviction.ghost_hits - before)
    assert eviction.gained_hits is not None
    assert gained <= eviction.gained_hits <= gained + 2
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_copy", [False, True])
def test_get_all_the_time_is_an_older_hit_once_per_turn(
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
def test_usage_names_the_volume_that_is_reclaimed_next(
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
