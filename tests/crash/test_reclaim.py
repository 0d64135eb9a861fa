"""
Kill the process at operation 1, 2, 3 ... of a script that reclaims volumes of both rings.

After each crash the store is opened with either eviction policy, compared with what was
acknowledged, used until more volumes were reclaimed, killed and compared once more.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Final

import pytest

from support.extent import every
from support.histories import MOUNT_POINT, Client
from support.rings import lose_an_entry, peek
from support.simulated import SimulatedFileSystem
from support.stores import (
    Crash,
    CrashingFileSystem,
    FakeClock,
    ProcessFileSystem,
    kill,
    open_store,
    ring_of,
    value_of,
)
from support.unsynced import lose
from volcache.store import Store, SyncMode
from volcache.store.eviction import Eviction
from volcache.store.stats import VolumeUsage

pytestmark = [pytest.mark.sampled(5), pytest.mark.crash, pytest.mark.slow]

VOLUME_SIZE: Final = 2048
VOLUME_NUM: Final = 6


def start(
    disk: SimulatedFileSystem | ProcessFileSystem,
    eviction: Eviction = "frequency",
    sync_mode: SyncMode = "none",
    volume_num: int = VOLUME_NUM,
) -> Store:
    """Start a process on a disk."""
    return open_store(
        MOUNT_POINT,
        volume_size=VOLUME_SIZE,
        volume_num=volume_num,
        eviction=eviction,
        sync_mode=sync_mode,
        reinsert_reads=1.0,
        fs=disk,
        clock=FakeClock(),
    )


class Script(Client):
    """Operations on a few keys, and in which volumes these were before the last one."""

    def __init__(self) -> None:
        """Begin with an empty store."""
        lengths = (30, 150, 150, 300, 300, 1500)
        super().__init__(3, keys=16, lengths=lengths, reads=6, deletions=0.15)
        self.seqs: dict[bytes, int] = {}

    def do(self, store: Store) -> None:
        """Note in which volume each key is, and do an operation."""
        self.see(store)
        super().do(store)

    def see(self, store: Store) -> None:
        """Note in which volume each key is."""
        volumes = store.usage().volumes
        found = {key: store.peek(key) for key in self.keys}
        self.seqs = {key: volumes[at.volume].seq for key, at in found.items() if at}

    def verify(self, store: Store) -> None:
        """Compare every key with its allowed values."""
        self.hits(store)
        seqs = {volume.seq for volume in store.usage().volumes}
        for key in self.keys:
            if key not in store and key != self.under_way[0]:
                # It was a miss, or its volume is gone.
                assert self.seqs.get(key) not in seqs, key

    def adopt(self, store: Store) -> None:
        """Go on with what a crash has left."""
        super().adopt(store)
        self.see(store)


OPERATIONS: Final = 110


def test_the_script_does_everything_that_may_crash() -> None:
    """Without a crash: it reclaims both rings, copies, drops early, finishes at once."""
    script, seen = Script(), Counter[str]()
    store = start(SimulatedFileSystem())
    for _ in range(OPERATIONS):
        before, rotations = store.usage(), store.stats.rotations
        script.do(store)
        valid = {volume.seq for volume in store.usage().volumes}
        for volume in before.volumes:
            if volume.seq in valid:
                continue
            seen[f"{volume.ring} reclaimed"] += 1
            if store.stats.rotations == rotations:
                seen["dropped early"] += 1
            elif before.eviction.reclaimed < 1:
                seen["finished at once"] += 1
    script.see(store)
    script.verify(store)

    assert seen["probation reclaimed"] >= 2
    assert seen["main reclaimed"] >= 2
    assert seen["dropped early"] >= 2
    assert seen["finished at once"] >= 2
    assert store.stats.fate.copied >= 10


def crash_and_verify(survive: int, torn: int, sync_mode: SyncMode) -> bool:
    """Run the script until it dies; return whether it completed instead."""
    script, disk, has_ended = Script(), SimulatedFileSystem(), False
    fs = CrashingFileSystem(disk, survive, torn)
    with suppress(Crash):
        script.run(start(fs, sync_mode=sync_mode), OPERATIONS)
        has_ended = True
    fs.die()
    other: Eviction = "fifo" if survive % 2 else "frequency"
    for eviction in ("frequency", other):
        again = start(disk, eviction)
        script.verify(again)
        assert (again.recovery.damaged, again.stats.damaged_records) == (0, 0)
        kill(again)
    again = start(disk, other)
    script.adopt(again)
    rotations = 0
    for _ in range(60):
        script.do(again)
        rotations = again.stats.rotations
    assert rotations >= 4
    script.see(again)
    kill(again)
    last = start(disk, "frequency")
    script.verify(last)
    kill(last)
    return has_ended


@pytest.mark.slow
@pytest.mark.parametrize("torn", [0, 1, 17, 59, 63, 70, 200])
@pytest.mark.parametrize("sync_mode", ["none", "always"])
def test_a_kill_at_any_operation_of_a_reclaim_loses_nothing(
    torn: int, sync_mode: SyncMode
) -> None:
    """
    Each operation is the last one once; a write is torn after `torn` bytes.

    A sample takes every twentieth operation, beginning with another one for each length.
    """
    for survive in every(20, 2000, offset=torn):
        try:
            if crash_and_verify(survive, torn, sync_mode):
                break
        except AssertionError as error:
            raise AssertionError((survive, torn, sync_mode), *error.args) from error
    else:
        pytest.fail("the script never completed")

    assert survive > 200


# --- What a crash must not bring back ---------------------------------------------------


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
    store = start(disk, sync_mode=sync_mode)
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
        store = start(disk, volume_num=20)
        assert peek(store, b"k1") in {newer, None}
        mains = {v.seq for v in store.usage().volumes if v.ring == "main"}
        for number in range(2):
            put_main(store, b"round %d %d" % (round_, number))
            assert peek(store, b"k1") in {newer, None}
        left = {v.seq for v in store.usage().volumes}
        assert seq not in left or mains <= left
    assert seq not in left
    assert peek(store, b"k1") is None


def test_a_store_of_four_volumes_with_two_used_takes_puts_to_both_rings() -> None:
    """There is nothing to reclaim yet when both active volumes are nearly full."""
    store = start(SimulatedFileSystem(), volume_num=4)
    put_main(store, b"main", 1500)
    ask_and_put(store, b"probation", bytes(1500))

    store.put(b"small", b"v")

    assert value_of(store.get(b"small")) == b"v"


def test_a_start_after_the_newest_volume_was_dropped_is_not_refused() -> None:
    """META.txt must not be older than LOCK says."""
    disk = SimulatedFileSystem()
    store = start(disk)
    for number in range(9):
        put_main(store, b"main %d" % number)
    ask_and_put(store, b"probation", bytes(30))
    newest = max(volume.seq for volume in store.usage().volumes)
    assert ring_of(store, b"probation") == "probation"
    lose_an_entry(store)
    store.put(b"displaced", b"")
    kill(store)
    store = start(disk)
    number = 0
    while store.usage().eviction.reclaimed < 1:
        number += 1
        put_main(store, b"some %d" % number, 100)
    # The only volume of ring probation is reclaimed first.
    victim = reclaimed(store)
    assert victim is not None
    assert victim.seq == newest
    kill(store)
    store = start(disk)
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
    store = start(disk, eviction, "periodic")
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
    assert value_of(start(left).get(b"k1")) == value


def test_what_a_reclaim_has_dropped_does_not_return_without_the_manifest() -> None:
    """
    A kill may come between META.txt and the end of the volume that it does not name.

    A key that is a miss then, and is deleted, must not return when META.txt is lost later.
    """
    has_ended = False
    for survive in every(3, 2000):
        script, disk, has_ended = Script(), SimulatedFileSystem(), False
        fs = CrashingFileSystem(disk, survive)
        with suppress(Crash):
            script.run(start(fs), OPERATIONS)
            has_ended = True
        fs.die()
        store = start(disk)
        script.adopt(store)
        misses = [key for key in script.keys if store.get(key) is None]
        for key in misses:
            assert not store.delete(key)
            script.last[key] = None
        store.close()
        disk = disk.after_kill()
        disk.unlink(f"{MOUNT_POINT}/META.txt")
        again = start(disk)
        for key in script.keys:
            found = value_of(again.get(key))
            assert found in {script.last.get(key), None}, (survive, key)
        if has_ended:
            break
    assert has_ended
