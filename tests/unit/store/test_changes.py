"""
Changes of state: no step that can fail lies behind the one that a start finds.

The random runs of support/rings.py fail calls of the disk, and allocations of the core.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import pytest

from support.histories import MOUNT_POINT
from support.rings import peek
from support.simulated import SimulatedFileSystem
from support.stores import kill, open_store, value_of
from volcache.errors import (
    MountPointError,
    OutOfMemoryError,
    ReadOnlyError,
    StoreError,
    StoreIOError,
)
from volcache.store import Store
from volcache.store.reclaim import Evictor
from volcache.store.rings import Rings

DATA: Final = f"{MOUNT_POINT}/data/"
INDEX: Final = f"{MOUNT_POINT}/index/"
KEY: Final = b"k"


class Disk(SimulatedFileSystem):
    """A disk that refuses to close index files, the next ones."""

    refused_closes = 0

    def close(self, fd: int) -> None:
        """Close, and report perhaps that this was refused."""
        path = self._open[fd][1]
        super().close(fd)
        if path.startswith(INDEX) and self.refused_closes:
            self.refused_closes -= 1
            raise OSError(errno.EIO, "close fails")


def start(disk: SimulatedFileSystem, **options: Any) -> Store:
    """Start a process on a disk."""
    return open_store(MOUNT_POINT, fs=disk, **{"volume_num": 8} | options)


def fail(error: Exception, *_: object, **__: object) -> NoReturn:
    """Take the place of a method that raises."""
    raise error


def fill(store: Store) -> None:
    """Leave no room in the active volume of ring main."""
    volume = store._log.actives[0]
    assert volume is not None
    store.put(b"fill", bytes(volume.capacity - volume.end - 64 - 4 - 20))


# --- Without memory ----------------------------------------------------------------


@pytest.mark.parametrize("ring", ["main", "probation"])
def test_rotation_without_memory_for_the_volume_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, ring: str
) -> None:
    """It is asked for before META.txt names the volume."""
    disk = SimulatedFileSystem()
    store = start(disk)
    store.put(b"before", b"old")
    fill(store)
    if ring == "probation":
        assert store.get(KEY) is None
    meta = bytes(disk.file(f"{MOUNT_POINT}/META.txt").data)
    monkeypatch.setattr(Rings, "prepare", partial(fail, MemoryError("none")))
    with pytest.raises(OutOfMemoryError, match="no memory to start a volume"):
        store.put(KEY, b"refused" * 9)
    assert bytes(disk.file(f"{MOUNT_POINT}/META.txt").data) == meta
    monkeypatch.undo()

    store.put(KEY, b"v" * 9)
    assert store.delete(KEY)
    again = start(disk.after_kill())
    assert value_of(again.get(b"before")) == b"old"
    assert again.get(KEY) is None


def test_start_without_memory_releases_the_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if META.txt was written already."""
    disk = SimulatedFileSystem()
    store = start(disk)
    store.put(KEY, b"v")
    store.close()
    monkeypatch.setattr(Rings, "prepare", partial(fail, MemoryError("none")))
    with pytest.raises(MemoryError):
        start(disk)
    assert disk.descriptors == 0
    monkeypatch.undo()
    assert value_of(start(disk).get(KEY)) == b"v"


# --- Behind the point of no return -------------------------------------------------


def change_none(store: Store) -> None:
    """Ask for what finds nothing to do."""
    store.delete(b"not there")


CHANGES: Final[list[Callable[[Store], object]]] = [
    lambda store: store.put(b"main", b"v"),
    lambda store: store.put(KEY, b"v"),
    lambda store: store.delete(b"there"),
    change_none,
    lambda store: store.flush(),
    lambda store: store.purge(b"the"),
]


@pytest.mark.parametrize("what", ["rotation", "flush"])
def test_change_that_cannot_be_completed_refuses_all_later_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """What was stored is read, synced at the end, and there at the next start."""
    disk = SimulatedFileSystem()
    store = start(disk, sync_mode="periodic")
    store.put(b"there", b"v")
    assert store.get(KEY) is None  # It would be put into the other ring.
    monkeypatch.setattr(Evictor, "record_start", partial(fail, RuntimeError("a bug")))
    with pytest.raises(ReadOnlyError, match=r"could not be completed \(RuntimeError"):
        store.flush() if what == "flush" else store.put(KEY, b"refused")
    monkeypatch.undo()

    assert "store.refuses_writes change='the start of a volume'" in caplog.messages
    files = {path: disk.file(path).data[:] for path in (f"{DATA}0", f"{DATA}1")}
    for change in CHANGES:
        with pytest.raises(ReadOnlyError, match="before the instance is started again"):
            change(store)
    assert store.refusal
    assert {path: disk.file(path).data[:] for path in files} == files
    assert (peek(store, b"there") is None) == (what == "flush")
    assert store.get(KEY) is None
    store.sync()
    store.close()
    assert disk.descriptors == 0
    again = start(disk)
    assert again.refusal == ""
    assert value_of(again.get(b"there")) == (None if what == "flush" else b"v")
    again.put(KEY, b"v")


# --- A disk that refuses to close --------------------------------------------------


@pytest.mark.parametrize("sync_mode", ["none", "periodic", "always"])
def test_rotation_whose_index_file_is_not_closed_loses_nothing(sync_mode: str) -> None:
    """Neither does the sync raise that closes the index files of sealed volumes."""
    disk = Disk()
    store = start(disk, sync_mode=sync_mode)
    disk.refused_closes = 3
    number = 0
    while disk.refused_closes:
        number += 1
        store.put(b"%d" % (number % 40), b"%d" % number + bytes(900))
        if number % 7 == 0:
            store.sync()
    assert store.stats.index_errors == 3
    last = [b"%d" % (one % 40) for one in range(number - 39, number + 1)]
    expected = {key: value_of(store.get(key)) for key in last}
    assert None not in expected.values()
    again = start(disk.after_kill(), sync_mode=sync_mode)
    assert {key: value_of(again.get(key)) for key in last} == expected


@pytest.mark.parametrize("end", ["close", "drop", "refused start"])
def test_end_of_a_store_whose_closes_fail_releases_its_directory(
    end: str,
) -> None:
    """What is refused is counted."""
    disk = SimulatedFileSystem()
    store = start(disk)
    store.put(KEY, b"v")
    if end == "refused start":
        store.close()
        disk.failing["rename"] = errno.EIO
    disk.failing["close"] = errno.EIO
    if end == "refused start":
        with pytest.raises(MountPointError):
            start(disk)
    else:
        getattr(store, end)()
        assert store.stats.write_errors
    assert disk.descriptors == 0
    disk.failing.clear()
    assert value_of(start(disk).get(KEY)) == b"v"


# --- Other refusals ----------------------------------------------------------------


def test_rotation_on_a_disk_that_does_not_tell_its_space_is_completed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An index file is refused for want of space, after META.txt names the volume."""
    caplog.set_level(logging.ERROR)
    disk = SimulatedFileSystem()
    store = start(disk)
    fill(store)
    disk.failing_writes[INDEX] = errno.ENOSPC
    free = disk.space

    def space(path: str) -> Any:
        if disk.refused_writes:
            raise OSError(errno.EIO, "no answer")
        return free(path)

    disk.space = space  # type: ignore[method-assign]
    store.put(KEY, b"v" * 99)
    assert store.stats.index_errors
    disk.space = free  # type: ignore[method-assign]
    assert value_of(store.get(KEY)) == b"v" * 99


@pytest.mark.parametrize("what", ["put", "delete"])
def test_put_small_value_when_a_new_volume_is_refused_is_not_too_large(
    what: str,
) -> None:
    """The header of the new volume is refused, and then what erases behind it."""
    disk = SimulatedFileSystem()
    store = start(disk)
    store.put(b"there", b"v")
    fill(store)
    disk.failing_writes[DATA] = errno.EIO
    with pytest.raises(StoreIOError, match="refused to write"):
        store.put(KEY, b"small" * 9) if what == "put" else store.delete(b"there")
    assert disk.refused_writes == 2
    disk.failing_writes.clear()

    assert store.delete(b"there")
    store.put(KEY, b"small")
    kill(store)
    again = start(disk)
    assert again.get(b"there") is None
    assert value_of(again.get(KEY)) == b"small"


def test_put_too_large_on_a_disk_that_refuses_writes_is_too_large() -> None:
    """The cause is not guessed from what the disk has refused."""
    disk = SimulatedFileSystem()
    store = start(disk)
    disk.failing["pwritev"] = errno.EIO
    with pytest.raises(StoreIOError):
        store.put(KEY, b"small")
    with pytest.raises(
        Exception, match="value is 99999 bytes long; allowed are"
    ) as found:
        store.put(KEY, bytes(99_999))
    assert not isinstance(found.value, StoreError)
