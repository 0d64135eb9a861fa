"""
What a crash during a reclaim must not bring back, or refuse.

Random runs, which die at any operation, are in support/rings.py.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from support.histories import MOUNT_POINT
from support.rings import lose_an_entry, peek
from support.simulated import SimulatedFileSystem
from support.stores import (
    FakeClock,
    kill,
    open_store,
    ring_of,
    value_of,
)
from support.unsynced import lose
from volcache.store import Store, SyncMode
from volcache.store.eviction import Eviction
from volcache.store.stats import VolumeUsage

pytestmark = pytest.mark.crash


# Start a process on a disk.
start = partial(
    open_store,
    MOUNT_POINT,
    volume_size=2048,
    volume_num=6,
    eviction="frequency",
    reinsert_reads=1.0,
    clock=FakeClock(),
)


def ask_and_put(store: Store, key: bytes, value: bytes) -> None:
    """Put a value that was asked for, which belongs to ring probation."""
    assert store.get(key) is None
    store.put(key, value)


def reclaimed(store: Store) -> VolumeUsage | None:
    """Return the volume that is reclaimed."""
    usage = store.usage()
    return usage.volumes[at] if (at := usage.eviction.reclaiming) >= 0 else None


def put_main(store: Store, key: bytes, length: int = 900) -> None:
    """Put a value that no request asked for, which belongs to ring main."""
    store.put(key, key.ljust(length, b"."))
    assert ring_of(store, key) == "main"


def copied(disk: SimulatedFileSystem, sync_mode: SyncMode = "none") -> Store:
    """Return a store with a key in ring probation, and a copy of it in ring main."""
    store = start(fs=disk, sync_mode=sync_mode)
    put_main(store, b"main", 100)
    ask_and_put(store, b"k1", b"old".ljust(300, b"."))
    for number in range(2):
        ask_and_put(store, b"later %d" % number, bytes(700))
    store.sync()
    for _ in range(3):
        store.get(b"k1")
    number = 0
    while ring_of(store, b"k1") == "probation":
        number += 1
        put_main(store, b"fill %d" % number, 300)
        if number % 5 == 0:
            ask_and_put(store, b"more %d" % number, bytes(900))
    volume = reclaimed(store)
    assert volume is not None
    assert volume.ring == "probation"
    return store


@pytest.mark.parametrize("newer", [b"new", None])
def test_a_probation_volume_with_copies_is_reclaimed_before_any_of_ring_main(
    newer: bytes | None,
) -> None:
    """Else the original in it would return when what replaced its copy is reclaimed."""
    disk = SimulatedFileSystem()
    store = copied(disk)
    victim = reclaimed(store)
    assert victim is not None
    seq = victim.seq
    if newer is None:
        store.delete(b"k1")
    else:
        store.put(b"k1", newer)
    left: set[int] = set()
    for round_ in range(50):
        kill(store)
        # The share of ring probation grows: the policy would choose ring main.
        store = start(fs=disk, volume_num=20)
        assert peek(store, b"k1") in {newer, None}
        mains = {v.seq for v in store.usage().volumes if v.ring == "main"}
        for number in range(2):
            put_main(store, b"round %d %d" % (round_, number))
            assert peek(store, b"k1") in {newer, None}
        left = {v.seq for v in store.usage().volumes}
        assert seq not in left or mains <= left
    assert seq not in left
    assert peek(store, b"k1") is None


def test_a_start_after_the_newest_volume_was_dropped_is_not_refused() -> None:
    """META.txt must not be older than LOCK says."""
    disk = SimulatedFileSystem()
    store = start(fs=disk)
    for number in range(9):
        put_main(store, b"main %d" % number)
    ask_and_put(store, b"probation", bytes(30))
    newest = max(volume.seq for volume in store.usage().volumes)
    assert ring_of(store, b"probation") == "probation"
    lose_an_entry(store)
    store.put(b"displaced", b"")
    kill(store)
    store = start(fs=disk)
    number = 0
    while store.usage().eviction.reclaimed < 1:
        number += 1
        put_main(store, b"some %d" % number, 100)
    # The only volume of ring probation is reclaimed first.
    victim = reclaimed(store)
    assert victim is not None
    assert victim.seq == newest
    kill(store)
    store = start(fs=disk)
    for number in range(12):
        put_main(store, b"more %d" % number)

    seqs = {volume.seq for volume in store.usage().volumes}
    assert newest not in seqs
    assert newest < max(seqs)


@pytest.mark.parametrize("eviction", ["frequency", "fifo"])
def test_copies_of_a_killed_process_are_synced_before_the_originals_are_dropped(
    eviction: Eviction,
) -> None:
    """The next process does not copy them again, and has not written them itself."""
    disk = SimulatedFileSystem()
    kill(copied(disk, "periodic"))
    store = start(fs=disk, eviction=eviction, sync_mode="periodic")
    value = value_of(store.get(b"k1"))
    oldest = min(v.seq for v in store.usage().volumes if v.ring == "probation")
    number = 0
    while oldest in {v.seq for v in store.usage().volumes}:
        store.put(b"new %d" % number, bytes(900))
        number += 1
    assert peek(store, b"k1") == value is not None

    # Nothing of what is not synced reaches the disk.
    left = SimulatedFileSystem(lose(disk.root, random.Random(1), 0.0, {}))  # noqa: S311
    left.boots = disk.boots + 1
    assert value_of(start(fs=left).get(b"k1")) == value
