"""store.py: what another thread changes while a record is read."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from support.stores import UnsyncedFileSystem, fill_volume, open_fifo, open_store
from volcache.histogram import Histogram
from volcache.monitoring.requests import RequestStats
from volcache.store import Store
from volcache.store.format import Place
from volcache.store.index import Position
from volcache.store.volume import Volume

NEW = b"the new value"


class InterruptedDisk(UnsyncedFileSystem):
    """A disk whose next reads are each interrupted by a call."""

    def __init__(self) -> None:
        """Interrupt nothing yet."""
        self.calls: list[Callable[[], object]] = []
        self.garbled = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read, after the call for this read."""
        if self.calls:
            self.calls.pop(0)()
        if self.garbled:
            self.garbled -= 1
            return bytes(length)
        return os.pread(fd, length, offset)

    def garble(self) -> None:
        """Let this read fail its checks: the native core then leaves it to Python."""
        self.garbled = 1


def overwrite(store: Store) -> None:
    """Write over the record of the key, and store it again."""
    for number in range(5):
        fill_volume(store, b"fill/%d" % number)
    assert store.index.find(b"k") is None
    store.put(b"k", NEW)


@pytest.mark.parametrize("method", ["get", "stat"])
@pytest.mark.parametrize("is_left_to_python", [False, True])
def test_get_record_overwritten_meanwhile_looks_it_up_again(
    tmp_path: Path, method: str, *, is_left_to_python: bool
) -> None:
    """It is not damaged, and the key has a value."""
    disk = InterruptedDisk()
    store = open_fifo(tmp_path, fs=disk)
    store.put(b"k", b"old" * 100)
    disk.calls.append(lambda: overwrite(store))
    if is_left_to_python and method == "get":
        disk.calls.insert(0, disk.garble)

    found = getattr(store, method)(b"k")

    assert found is not None
    assert found.length == len(NEW)
    assert not disk.calls
    assert store.stats.damaged_records == 0
    store.close()


def test_stat_record_whose_volume_is_dropped_looks_it_up_again(
    tmp_path: Path,
) -> None:
    """Its position is of a volume that there is no longer."""
    store = open_fifo(tmp_path)
    store.put(b"k", b"old")
    find = store._reader._find

    def find_then_overwrite(key: bytes) -> Position | None:
        found, store._reader._find = find(key), find
        overwrite(store)
        return found

    store._reader._find = find_then_overwrite
    found = store.stat(b"k")
    assert found is not None
    assert found.length == len(NEW)
    assert store.stats.evicted_reads == 0
    store.close()


def test_validate_copy_during_a_rotation_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of volumes changes while it is looked through."""
    store = open_store(tmp_path)
    store.put(b"k", b"value")
    copy = store.read_raw(b"k")
    assert copy is not None
    assert store.is_current(b"k", copy)
    for number in range(5):
        fill_volume(store, b"fill/%d" % number)
    assert not store.is_current(b"k", copy)
    assert not store.is_current(b"k", b"no record")
    place_at = Volume.place_at

    def rotate_first(volume: Volume, offset: int) -> Place:
        monkeypatch.undo()
        fill_volume(store, b"more")
        return place_at(volume, offset)

    monkeypatch.setattr(Volume, "place_at", rotate_first)
    found = store.validate(b"k", copy)
    assert found is not None
    assert found.value == b"value"
    store.close()


class Started(int):
    """A start that adds one to the histogram when it is compared."""

    histogram: Histogram

    def __ge__(self, other: object) -> bool:
        """Add a duration."""
        self.histogram.long.append((self, 2))
        return True


def test_histogram_since_with_a_duration_added_meanwhile_succeeds() -> None:
    """It may or may not be part of the sum."""
    histogram = Histogram()
    started = Started(1)
    started.histogram = histogram
    histogram.long.extend([(started, 5), (started, 7)])
    assert histogram.since(0) == 12


def test_request_counts_with_a_new_kind_meanwhile_succeed() -> None:
    """It may or may not be counted."""
    stats = RequestStats()

    class Growing(Histogram):
        @property
        def count(self) -> int:
            stats.answers["GET", f"{len(stats.answers)} New", ""] = Histogram()
            return 1

    for status in ("200 OK", "404 Not Found"):
        stats.answers["GET", status, "DISK"] = Growing()
    assert stats.requests()["GET", 200] == 1
    assert stats.hits() == {"MEMC": 0, "DISK": 2}
    assert stats.misses == 0
    assert stats.gets == 2


def test_lock_entered_twice_belongs_to_the_thread_until_left_twice(
    tmp_path: Path,
) -> None:
    """Another thread waits; the owner is told apart from it."""
    store = open_store(tmp_path)
    lock, waits, order = store.lock, Event(), list[str]()

    def wait() -> None:
        assert not lock.is_mine
        with pytest.raises(RuntimeError):
            lock.__exit__()
        waits.set()
        with lock:
            order.append("other")

    other = Thread(target=wait)
    with lock:
        with lock:
            other.start()
            assert waits.wait(60)
        assert lock.is_mine
        order.append("owner")
    other.join()
    assert order == ["owner", "other"]
    store.close()


def test_lock_with_a_signal_meanwhile_stops_waiting(tmp_path: Path) -> None:
    """As that of Ctrl-C does; the lock then is not acquired."""
    store = open_store(tmp_path)
    is_blocked, is_over = Event(), Event()

    def hold() -> None:
        with store.lock:
            is_blocked.set()
            is_over.wait()

    def interrupt(*_: object) -> None:
        raise InterruptedError

    def interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with store.lock:
            pytest.fail("the lock is held")

    other = Thread(target=hold)
    other.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        is_blocked.wait()
        with pytest.raises(InterruptedError):
            interrupted()
    finally:
        signal.signal(signal.SIGALRM, before)
        is_over.set()
    other.join()
    assert not store.lock.is_mine
    store.close()
