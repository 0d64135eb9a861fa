"""
What the disk has refused is not found by a start in place of what was acknowledged later.

The random runs of support/rings.py look for such a sequence; here are those that they, or
an attacker, have found, reduced to a few calls.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from support.histories import MOUNT_POINT
from support.rings import peek
from support.simulated import SimulatedFileSystem
from support.stores import open_store, value_of
from volcache.errors import StoreIOError
from volcache.store import Store
from volcache.store.format import Ring
from volcache.store.manifest import Manifest, decode_manifest
from volcache.store.stats import VolumeUsage

pytestmark = pytest.mark.crash

KEY = b"k"
DATA = f"{MOUNT_POINT}/data/"


class Disk(SimulatedFileSystem):
    """A disk that writes what it refuses to write."""

    def __init__(self) -> None:
        """Refuse nothing yet."""
        super().__init__()
        self.fail_share = 1.0

    def refuse(self, name: str) -> None:
        """Refuse all syncs, writes to data files, any writes, or the next operation."""
        if name == "data":
            self.failing_writes[DATA] = errno.EIO
        elif name == "next":
            self.fail_at, self.fail_with = self.operations + 1, errno.EIO
        else:
            self.failing[name] = errno.EIO


def start(disk: SimulatedFileSystem, sync_mode: str = "always") -> Store:
    """Start a process on a disk."""
    sizes = {"volume_size": 16_384, "volume_num": 8}
    return open_store(
        MOUNT_POINT, fs=disk, sync_mode=sync_mode, reinsert_reads=1.0, **sizes
    )


def manifest_of(disk: SimulatedFileSystem) -> Manifest:
    """Return what META.txt says."""
    found = decode_manifest(bytes(disk.file(f"{MOUNT_POINT}/META.txt").data))
    assert found is not None
    return found


def refuse_put(store: Store, value: bytes = b"refused") -> None:
    """Put a value that the disk refuses."""
    with pytest.raises(StoreIOError):
        store.put(KEY, value)


def put_again(disk: Disk, store: Store) -> bytes | None:
    """The put after a miss goes to the other ring, which is replayed before."""
    disk.recover()
    assert store.get(KEY) is None
    store.put(KEY, b"acknowledged")
    return b"acknowledged"


def delete_again(disk: Disk, store: Store) -> bytes | None:
    """A deletion that finds nothing writes no tombstone."""
    disk.recover()
    assert not store.delete(KEY)
    return None


def only_read(disk: Disk, store: Store) -> bytes | None:
    """What was refused does not appear later."""
    disk.recover()
    return value_of(store.get(KEY))


def lose_the_index_file(disk: Disk, store: Store) -> bytes | None:
    """The index file of the volume cannot be completed, so that it is scanned."""
    put_again(disk, store)
    disk.failing_writes[f"{MOUNT_POINT}/index/"], disk.fail_share = errno.EIO, 0.0
    store.put(b"other", bytes(15_000))
    disk.recover()
    for number in range(12):
        store.put(KEY, b"acknowledged %d" % number)
        store.put(b"other %d" % number, bytes(2000))
    return value_of(store.get(KEY))


@pytest.mark.parametrize("refused", ["sync", "data", "pwritev", "next"])
@pytest.mark.parametrize("sync_mode", ["none", "always"])
@pytest.mark.parametrize(
    "go_on", [put_again, delete_again, only_read, lose_the_index_file]
)
def test_what_was_refused_does_not_replace_what_was_acknowledged(
    go_on: Callable[[Disk, Store], bytes | None], sync_mode: str, refused: str
) -> None:
    """After a kill, and if each put is synced, after a power loss."""
    if (refused, sync_mode) == ("sync", "none"):
        return
    disk = Disk()
    store = start(disk, sync_mode)
    store.put(b"before", b"v")
    disk.refuse(refused)
    refuse_put(store)
    expected = go_on(disk, store)
    images = [disk.after_kill()]
    if sync_mode == "always" and go_on is not only_read:
        dice = random.Random(1)  # noqa: S311 - Repeatable.
        images += [disk.after_power_loss(dice) for _ in range(20)]
    for image in images:
        assert value_of(start(image, sync_mode).get(KEY)) == expected


def test_nothing_is_acknowledged_while_the_disk_refuses_to_forget() -> None:
    """Puts of any key and deletions of nothing are refused; reads go on."""
    disk = Disk()
    store = start(disk)
    assert store.get(b"probation") is None
    store.put(b"probation", b"v")
    store.put(b"main", b"v")
    disk.refuse("pwritev")
    refuse_put(store)
    for key in (KEY, b"probation", b"main", b"new"):
        with pytest.raises(StoreIOError, match="refused to write"):
            store.put(key, b"v")
    with pytest.raises(StoreIOError, match="refused to write"):
        store.delete(KEY)
    assert value_of(store.get(b"main")) == b"v"
    assert store.get(KEY) is None
    rooms = [volume.used for volume in store.usage().volumes if volume.seq]
    disk.recover()

    assert not store.delete(KEY)
    store.put(b"new", b"v")
    assert len([v for v in store.usage().volumes if v.seq]) == len(rooms)


@pytest.mark.parametrize(
    ("sync_mode", "state"), [("periodic", "sealed"), ("always", "synced")]
)
def test_a_volume_that_cannot_be_erased_is_closed_where_it_was_good(
    sync_mode: str, state: str
) -> None:
    """
    META.txt says where; what is behind is not valid, whatever the index file says.

    It stays closed after a restart: a power loss may bring the record behind its end back.
    """
    disk = Disk()
    store = start(disk, sync_mode)
    store.put(b"before", b"v")
    end = store.usage().active_end
    disk.refuse("data")
    refuse_put(store)

    listed = manifest_of(disk).volumes[-1]
    assert (listed.state, listed.end) == (state, end)
    image = disk.after_kill()
    image.unlink(f"{MOUNT_POINT}/index/{listed.use.volume}")
    again = start(image, sync_mode)
    assert again.get(KEY) is None
    assert value_of(again.get(b"before")) == b"v"
    store.close()
    start(disk, sync_mode)
    last = manifest_of(disk).volumes[-1]
    assert (last.use, last.is_open, last.end) == (listed.use, False, end)


def test_a_copy_that_was_refused_does_not_replace_a_newer_value() -> None:
    """The reclaim of ring probation copies to ring main, which is replayed last."""
    disk = Disk()
    store = start(disk, "none")
    assert store.get(KEY) is None
    store.put(KEY, b"older" * 60)
    number = 0

    def put_some() -> None:
        nonlocal number
        number += 1
        key = b"other %d" % number
        store.get(key)
        store.put(key, bytes(700))
        store.get(KEY)

    def reclaimed() -> VolumeUsage | None:
        usage = store.usage()
        at = usage.eviction.reclaiming
        is_probation = at >= 0 and usage.volumes[at].ring == "probation"
        return usage.volumes[at] if is_probation else None

    while not (volume := reclaimed()):
        put_some()
    assert manifest_of(disk).probation_first == volume.seq
    volumes = store.usage().volumes
    (main,) = (v.id for v in volumes if (v.ring, v.state) == ("main", "active"))
    disk.failing_writes[f"{DATA}{main}"] = errno.EIO
    while store.stats.write_errors == 0 and reclaimed():
        put_some()
    disk.recover()
    assert store.stats.write_errors
    assert peek(store, KEY) == b"older" * 60
    store.put(KEY, b"newer")

    assert value_of(start(disk.after_kill(), "none").get(KEY)) == b"newer"


def test_a_volume_without_its_header_is_not_written_until_it_has_one() -> None:
    """META.txt names it already, and a start takes one without it for another one."""
    disk = Disk()
    store = start(disk)
    number = 0
    while store.usage().active_end < 15_000:
        number += 1
        store.put(b"%d" % number, bytes(1000))
    disk.fail_share = 0.5
    disk.refuse("data")
    for _ in range(3):
        with pytest.raises(StoreIOError):
            store.put(b"large", bytes(3000))
        assert value_of(start(disk.after_kill()).get(b"1")) == bytes(1000)
    store.sync()
    rotations = store.stats.rotations
    disk.recover()

    store.put(b"large", bytes(3000))
    assert store.stats.rotations == rotations == 1
    for image in (disk.after_kill(), disk):
        if image is disk:
            store.close()
        assert value_of(start(image).get(b"large")) == bytes(3000)


def test_a_record_older_than_one_in_the_other_ring_is_not_replayed() -> None:
    """A second line of defence: the time stored decides between rings."""
    disk = Disk()
    store = start(disk, "none")
    store.put(b"before", b"v")
    disk.refuse("pwritev")
    refuse_put(store)
    refused = disk.after_kill()
    put_again(disk, store)
    # As if nothing had been erased.
    path = f"{DATA}{manifest_of(disk).volumes[0].use.volume}"
    disk.file(path).data[:] = refused.file(path).data
    image = disk.after_kill()
    again = start(image)

    assert value_of(again.get(KEY)) == b"acknowledged"
    again.put(b"main", b"v")
    again.close()
    assert value_of(start(image.after_kill()).get(KEY)) == b"acknowledged"


def test_a_volume_whose_sync_has_failed_is_closed_before_the_next_put() -> None:
    """What was erased in it may be on the disk again, and a later sync proves nothing."""
    disk = Disk()
    store = start(disk, "periodic")
    store.put(b"before", b"v")
    end = store.usage().active_end
    assert store.get(b"after") is None
    store.put(b"after", b"v")

    def refuse_first(name: str, _data: bytes) -> None:  # Of ring main.
        if name == "sync":
            disk.watch = None
            raise OSError(errno.EIO, "sync fails")

    disk.watch = refuse_first
    store.sync()
    assert store.stats.sync_errors == 1
    assert [listed.is_open for listed in manifest_of(disk).volumes] == [True, True]
    store.put(b"after", b"again")

    first, last = manifest_of(disk).volumes
    assert (first.state, first.end) == ("sealed", end)
    assert (last.use.ring, last.is_open) == (Ring.PROBATION, True)


def test_a_volume_that_was_given_up_is_not_listed_when_a_put_is_acknowledged() -> None:
    """A power loss could undo that its file was emptied."""
    disk = Disk()
    store = start(disk)
    store.purge(b"purged/")  # It is needed as long as the first volume.
    for number in range(24):
        store.put(b"%d" % number, bytes(2000))
    store.close()
    store = start(disk)
    oldest = min(volume.use.seq for volume in manifest_of(disk).volumes)
    disk.failing_writes[DATA] = disk.failing["sync"] = errno.ENOSPC
    disk.fail_share, disk.capacity = 0.0, disk.used + 100
    refuse_put(store)
    disk.recover()
    assert store.stats.given_up_volumes
    assert manifest_of(disk).volumes[0].use.seq == oldest
    start(disk.after_kill()).close()  # PURGE.txt is there while META.txt names it.
    disk.capacity = 1 << 50
    store.put(KEY, b"v")

    assert manifest_of(disk).volumes[0].use.seq > oldest
