"""A disk that is smaller than the settings say, that others fill, or that is read-only."""

from __future__ import annotations

import errno
import random
from functools import partial
from typing import Final

import pytest

from support.extent import every
from support.histories import MOUNT_POINT, Client, Model
from support.simulated import SimulatedFileSystem
from support.stores import kill, open_store, value_of
from volcache.errors import (
    DiskFullError,
    DiskTooSmallError,
    ReadOnlyError,
    StoreIOError,
)
from volcache.store import Store
from volcache.store.disk import reserve_bytes
from volcache.store.eviction import Eviction

pytestmark = pytest.mark.crash

VOLUME_BYTES: Final = 4096
VOLUME_NUM: Final = 10
POLICIES: Final[tuple[Eviction, ...]] = ("fifo", "frequency")
FILL: Final = "/srv/disk/fill"


@pytest.fixture(autouse=True)
def allocations_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took long is not soon tried again, which depends on the load."""
    monkeypatch.setattr("volcache.store.space.perf_counter_ns", lambda: 0)


def small_disk(volumes: int) -> SimulatedFileSystem:
    """Return a disk that has space for a number of volumes."""
    fs = SimulatedFileSystem()
    fs.capacity = volumes * VOLUME_BYTES + reserve_bytes(VOLUME_BYTES, volumes) + 2000
    return fs


def fill(fs: SimulatedFileSystem, left: int = 0) -> None:
    """Let another program take all that is free, but some bytes."""
    fs.make_directory("/srv/disk")
    fd = fs.open(FILL, create=True)
    free = fs.space("/").free
    fs.pwritev(fd, [bytes(max(0, free - left))], fs.stat(fd).st_size)
    fs.close(fd)
    assert fs.space("/").free <= left


# Start a process on a disk.
start = partial(
    open_store,
    MOUNT_POINT,
    volume_size=VOLUME_BYTES,
    volume_num=VOLUME_NUM,
    eviction="fifo",
    reinsert_reads=1.0,
)


def volumes_of(store: Store) -> int:
    """Return how many valid volumes there are."""
    return sum(volume.seq > 0 for volume in store.usage().volumes)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("volumes", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("eviction", POLICIES)
def test_a_small_disk_refuses_nothing_and_determines_the_capacity(
    eviction: Eviction, volumes: int, *, is_sparse: bool
) -> None:
    """The oldest volume is reclaimed, over restarts, kills, flushes and purges."""
    fs, client = small_disk(volumes), Client()
    store = start(fs=fs, eviction=eviction, is_sparse=is_sparse)
    for turn in range(4):
        client.run(store, 150)
        usage = store.usage()
        assert volumes - 1 <= usage.disk.volumes <= volumes
        assert volumes_of(store) <= usage.disk.volumes
        assert usage.disk.is_limited
        assert usage.free <= fs.space("/").free
        assert client.hits(store) >= 5
        if turn == 1:
            store.flush()
            assert client.hits(store) == 0
            client.model = Model()
        elif turn == 2:
            store.purge(b"key 1")
            for key in client.keys:
                if key.startswith(b"key 1"):
                    client.model.drop(key)
        if turn % 2:
            store.close()
        else:
            kill(store)
        fs = fs.after_kill()
        store = start(fs=fs, eviction=eviction, is_sparse=is_sparse)
        client.hits(store)
        assert store.recovery.damaged == store.stats.damaged_records == 0

    assert (store.stats.write_errors, store.stats.index_errors) == (0, 0)
    assert fs.refusals == 0


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_store_shrinks_and_grows_with_the_space_that_others_leave(
    eviction: Eviction,
) -> None:
    """No PUT is refused; what another program frees is used by the next volumes."""
    fs, client = small_disk(8), Client()
    store = start(fs=fs, eviction=eviction)
    client.run(store, 40)
    few = volumes_of(store)
    fill(fs)
    client.run(store, 200)
    assert volumes_of(store) <= few + 1
    store.close()
    store = start(fs=fs, eviction=eviction)
    client.run(store, 100)
    fs.unlink(FILL)
    client.run(store, 300)

    assert store.usage().disk.volumes >= 7
    assert volumes_of(store) >= 6
    client.hits(store)


def test_a_quota_that_refuses_a_volume_does_not_stop_writes() -> None:
    """The disk says that there is space, and refuses it."""
    fs, client = SimulatedFileSystem(), Client()
    store = start(fs=fs)
    client.run(store, 60)
    before = volumes_of(store)
    fs.failing["allocate"] = errno.EDQUOT
    client.run(store, 200)

    assert volumes_of(store) == before
    assert store.stats.given_up_volumes == 0
    fs.failing.clear()
    client.run(store, 200)
    assert volumes_of(store) == VOLUME_NUM


def test_a_write_that_finds_no_space_in_an_allocated_volume_is_retried() -> None:
    """Some file systems allocate what they do not have: the oldest volume is given up."""
    fs, client = small_disk(5), Client()
    store = start(fs=fs)
    client.run(store, 150)
    active = store.usage().active_id
    fill(fs)
    fs.file(f"{MOUNT_POINT}/data/{active}").held = store.usage().active_end
    fill(fs)
    refusals = fs.refusals
    client.run(store, 20)

    assert fs.refusals > refusals
    assert store.stats.given_up_volumes == 1
    assert store.stats.write_errors == 0
    client.hits(store)


LARGE_BYTES: Final = 32_768
FILLED: Final = [
    (volumes, puts, left, is_read, is_watched)
    for volumes in (4, 8)
    for puts in (20, 33, 50, 90, 140, 200, 300)
    for left in (0, 700, 5000, 20_000)
    for is_read in (False, True)
    for is_watched in (False, True)
]


def large_store(
    volumes: int,
    eviction: Eviction,
    *,
    is_sparse: bool = False,
    fs: SimulatedFileSystem | None = None,
) -> tuple[SimulatedFileSystem, Store]:
    """Return a store whose volumes are larger than its other files, and its disk."""
    if fs is None:
        fs = SimulatedFileSystem()
        fs.capacity = volumes * LARGE_BYTES + reserve_bytes(LARGE_BYTES, volumes) + 3000
    sizes = {"volume_size": LARGE_BYTES, "volume_num": 16}
    return fs, start(fs=fs, eviction=eviction, is_sparse=is_sparse, **sizes)


def put_while_others_fill_the_disk(
    fs: SimulatedFileSystem, store: Store, puts: int, left: int, *, is_read: bool
) -> tuple[bool, dict[bytes, bytes]]:
    """Put values until some are refused; return whether, and those that were stored."""
    dice = random.Random(puts)  # noqa: S311 - Repeatable.
    stored: dict[bytes, bytes] = {}
    refused = 0
    for put in range(puts + 200):
        if put == puts:
            fill(fs, left)
        key, value = b"key %d" % put, bytes(dice.randrange(200, 2500))
        if is_read:
            store.get(key)
        has_older = volumes_of(store) > len(store.usage().rings)
        try:
            store.put(key, value)
            stored[key] = value
        except DiskFullError:
            assert put >= puts
            assert not has_older
            assert not store.stats.given_up_volumes
            refused += 1
        if refused == 3:
            break
    fs.unlink(FILL)  # A start on a full disk may give up a volume.
    return refused > 0, stored


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_full_disk_in_the_middle_of_a_sparse_volume_loses_nothing(
    eviction: Eviction,
) -> None:
    """Without older volumes, puts are refused; with them, it goes on in their place."""
    outcomes = set[tuple[bool, bool]]()
    for at in every(2, len(FILLED)):
        volumes, puts, left, is_read, _ = FILLED[at]
        fs, store = large_store(volumes, eviction, is_sparse=True)
        is_refused, stored = put_while_others_fill_the_disk(
            fs, store, puts, left, is_read=is_read
        )
        found = {key: key in store for key in stored}
        lost = list(found.values()).count(False)
        assert lost == store.stats.evicted_records, FILLED[at]
        outcomes.add((is_refused, lost > 0))
        kill(store)
        again = large_store(0, eviction, is_sparse=bool(at % 2), fs=fs.after_kill())[1]
        assert found == {key: key in again for key in stored}, FILLED[at]
    assert {(True, False), (False, True)} <= outcomes


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_full_disk_refuses_nothing_while_a_volume_can_be_reclaimed(
    eviction: Eviction, caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever another program fills it: no error, no report, no vain allocation."""
    caplog.set_level("ERROR", "volcache.store")
    for at in every(3, len(FILLED)):
        case = FILLED[at]
        volumes, puts, left, is_read, is_watched = case
        fs, store = large_store(volumes, eviction)
        dice = random.Random(puts)  # noqa: S311 - Repeatable.
        for put in range(puts + 400):
            if put == puts:
                if volumes_of(store) == 1:
                    break
                fill(fs, left)
                fs.watch = partial(refuse_vain_allocation, fs)
            key = b"key %d" % dice.randrange(60)
            if is_read:
                store.get(key)
            store.put(key, bytes(dice.randrange(200, 2500)))
            if is_watched:
                assert store.usage().disk.state == "", case
        stats = store.stats
        assert (stats.write_errors, stats.index_errors) == (0, 0), case
        assert not caplog.records, case


def test_a_power_loss_after_the_newest_volume_was_given_up_refuses_no_start() -> None:
    """Its index file must not come back, which would be newer than META.txt."""
    fs, store = large_store(4, "frequency")
    dice = random.Random(20)  # noqa: S311 - Repeatable.
    for put in range(25):
        if put == 20:
            assert volumes_of(store) == 2
            store.sync()
            fill(fs)
        key = b"key %d" % dice.randrange(60)
        store.get(key)
        store.put(key, bytes(dice.randrange(200, 2500)))
    assert store.stats.given_up_volumes == volumes_of(store) == 1
    assert store.usage().active_seq == 1

    for _ in range(40):
        kill(start(fs=fs.after_power_loss(dice), eviction="frequency"))


def refuse_vain_allocation(fs: SimulatedFileSystem, name: str, *_: object) -> None:
    """Fail the test if space is allocated although none is left."""
    assert name != "allocate" or fs.space("/").free > 0


def test_a_disk_with_one_volume_and_no_space_refuses_and_says_so() -> None:
    """There is nothing to give up; when there is space, it goes on."""
    fs = small_disk(4)
    store = start(fs=fs)
    store.put(b"k", b"v")
    fill(fs)
    store.put(b"rest", bytes(3700))
    with pytest.raises(DiskFullError, match="4096 bytes, 0 are free"):
        store.put(b"large", bytes(3000))
    usage = store.usage()
    assert (usage.disk.state, usage.disk.volumes, usage.free) == ("full", 1, 0)
    assert value_of(store.get(b"k")) == b"v"
    fs.unlink(FILL)
    store.put(b"large", bytes(3000))

    assert store.usage().disk.state == ""


def test_a_mount_point_on_a_disk_that_is_too_small_is_refused() -> None:
    """Two volumes must fit; one that has volumes is served."""
    fs = small_disk(1)
    with pytest.raises(DiskTooSmallError, match="two volumes of volume_size = 4096"):
        start(fs=fs)
    fs.capacity += VOLUME_BYTES
    store = start(fs=fs)
    store.put(b"k", b"v")
    store.close()
    fs.capacity = fs.used
    store = start(fs=fs)
    assert value_of(store.get(b"k")) == b"v"


@pytest.mark.parametrize("eviction", POLICIES)
def test_auto_uses_the_disk_and_does_not_change_at_a_restart(
    eviction: Eviction,
) -> None:
    """A store that has filled the disk finds itself there."""
    fs, client = SimulatedFileSystem(), Client()
    fs.capacity = 1 << 18
    store = start(fs=fs, eviction=eviction, volume_num=None)
    number = store.usage().volume_num
    assert number * VOLUME_BYTES >= fs.capacity // 2
    for _ in range(3):
        client.run(store, 1200)
        assert volumes_of(store) >= number * 3 // 4
        assert fs.space("/").free > fs.capacity // 20
        store.close()
        fs = fs.after_kill()
        fs.capacity = 1 << 18
        store = start(fs=fs, eviction=eviction, volume_num=None)
        assert number * 3 // 4 <= store.usage().volume_num <= number
        number = store.usage().volume_num
    assert store.recovery.dropped == 0


def test_an_index_file_that_could_not_be_sealed_has_all_entries_later() -> None:
    """The rotation fails, too, and is tried again: the entries must not be lost."""
    fs = SimulatedFileSystem()
    store = start(fs=fs)
    store.put(b"k", b"old")
    store.put(b"k", b"new")
    fs.failing_writes[f"{MOUNT_POINT}/index/0"] = errno.ENOSPC
    fs.failing["rename"] = errno.EIO
    with pytest.raises(StoreIOError):
        store.put(b"large", bytes(3900))
    assert store.stats.index_errors == 1
    fs.failing_writes.clear()
    fs.failing.clear()
    store.put(b"large", bytes(3900))
    kill(store)
    store = start(fs=fs)

    assert store.recovery.scanned == 1
    assert value_of(store.get(b"k")) == b"new"


# --- Crashes -----------------------------------------------------------------------


def crash_and_verify(
    survive: int, torn: int, eviction: Eviction, *, is_filled: bool
) -> bool:
    """Run until the process dies; return whether it completed instead."""
    disk, client = small_disk(4), Client(survive)
    is_sparse = bool(survive % 2)
    store = start(fs=disk, eviction=eviction, is_sparse=is_sparse)
    client.run(store, 100)
    if is_filled:
        fill(disk)
    kill(store)
    left = disk.dying(
        survive,
        lambda: client.run(start(fs=disk, eviction=eviction, is_sparse=is_sparse), 60),
        lambda _: disk.after_kill(torn=torn),
    )
    ended = left is None
    disk = left or disk.after_kill()
    for policy in POLICIES:
        again = start(fs=disk, eviction=policy)
        client.hits(again)
        # A volume that was given up, and that META.txt still names, has no header.
        assert again.recovery.damaged == again.recovery.unknown <= 1
        assert again.stats.damaged_records == 0
        kill(again)
    again = start(fs=disk, eviction=eviction)
    client.adopt(again)
    if not again.refusal:
        client.run(again, 60)
    client.hits(again)
    kill(again)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("is_filled", [False, True])
@pytest.mark.parametrize("eviction", POLICIES)
def test_a_kill_at_any_operation_on_a_full_disk_leaves_a_store_that_starts(
    eviction: Eviction, *, is_filled: bool
) -> None:
    """Also where META.txt could be replaced only after a volume was given up."""
    for survive in every(8, 2000):
        if crash_and_verify(survive, survive % 70, eviction, is_filled=is_filled):
            break
    else:
        pytest.fail("the run never completed")

    assert survive > 60


# --- Read-only ---------------------------------------------------------------------


@pytest.mark.parametrize("eviction", POLICIES)
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_read_only_disk_is_served_and_not_changed(
    eviction: Eviction, *, is_stopped: bool
) -> None:
    """Nothing is written; the next start on a writable disk goes on."""
    fs, client = SimulatedFileSystem(), Client()
    store = start(fs=fs, eviction=eviction)
    client.run(store, 100)
    hits = client.hits(store)
    if is_stopped:
        store.close()
    else:
        kill(store)
    fs.is_read_only = True
    operations = fs.operations
    store = start(fs=fs, eviction=eviction)

    assert client.hits(store) == hits
    key = next(key for key in client.keys if store.get(key) is not None)
    for attempt in (
        lambda: store.put(b"new", b"v"),
        lambda: store.delete(key),
        store.flush,
        lambda: store.purge(b"key"),
    ):
        with pytest.raises(ReadOnlyError, match="the disk was read-only when"):
            attempt()
    assert store.usage().disk.state == "read-only"
    assert store.take_hot_snapshot() == (b"", "")
    store.write_hot_snapshot(lambda _: b"not written")
    store.sync()
    store.close()
    assert fs.operations == operations
    fs.is_read_only = False
    store = start(fs=fs, eviction=eviction)
    assert client.hits(store) == hits
    client.run(store, 100)
    assert store.usage().disk.state == ""


def test_an_empty_read_only_disk_is_refused() -> None:
    """There is nothing to be served."""
    fs = SimulatedFileSystem()
    fs.make_directory(MOUNT_POINT)
    fs.is_read_only = True

    with pytest.raises(Exception, match=r"cannot be used: Read-only file system"):
        start(fs=fs)


def test_a_disk_that_becomes_read_only_is_reported_until_it_is_writable() -> None:
    """Without a restart; the state is that of the file system, or of the last write."""
    fs = SimulatedFileSystem()
    store = start(fs=fs)
    store.put(b"k", b"v")
    fs.failing["pwritev"] = errno.EROFS
    with pytest.raises(ReadOnlyError, match="it is read-only"):
        store.put(b"k", b"w")
    assert store.usage().disk.state == "read-only"
    assert value_of(store.get(b"k")) == b"v"
    fs.failing.clear()
    fs.is_read_only = True
    assert store.usage().disk.state == "read-only"
    fs.is_read_only = False
    store.put(b"k", b"x")

    assert store.usage().disk.state == ""
