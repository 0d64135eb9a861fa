"""The store through its public methods."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from support.damage import flip
from support.histories import MOUNT_POINT
from support.index_files import rewrite
from support.simulated import SimulatedFileSystem
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    fill_volume,
    open_store,
    value_of,
)
from volcache.errors import (
    DiskFullError,
    ValueTooLargeError,
)
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES
from volcache.store.index_format import (
    Entry,
    decode_entries,
    encode_entries,
)

ROOM = VOLUME_SIZE - VOLUME_HEADER_BYTES - RECORD_OVERHEAD_BYTES - 1


def test_put_value_larger_than_a_volume_is_refused_with_both_sizes(
    tmp_path: Path,
) -> None:
    """The error has the size and the limit; nothing changes."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")

    with pytest.raises(ValueTooLargeError, match=f"{ROOM + 1} .* 0 to {ROOM}"):
        store.put(b"k", bytes(ROOM + 1))
    assert value_of(store.get(b"k")) == b"old"
    store.put(b"k", value := os.urandom(ROOM))
    assert value_of(store.get(b"k")) == value
    store.close()


@pytest.mark.parametrize("length", [5, 1 << 20])
def test_get_damaged_record_is_a_miss_and_leaves_the_index(
    tmp_path: Path, length: int
) -> None:
    """A bit of its header, its key or its value is wrong, or the file ends in it."""
    store = open_store(tmp_path, volume_size=1 << 24)
    path = tmp_path / "data" / "0"
    for place in (0, 59, 62, -length // 2, -1, None):
        record = store.put(b"key", os.urandom(length))
        at = record.offset + (place or 0) + (record.size if (place or 0) < 0 else 0)
        if place is None:
            os.truncate(path, record.offset + record.size - 2)
        else:
            flip(path, at)
        damaged = store.stats.damaged_records
        read = store.stat if place is not None and 0 <= place < 62 else store.get

        assert read(b"key") is None, place
        assert store.stats.damaged_records == damaged + 1
        assert store.count == 0
    store.close()


def test_open_on_a_full_disk_serves_reads() -> None:
    """Reads are served; puts and flushes are refused until there is disk space."""
    fs = SimulatedFileSystem()
    store = open_store(MOUNT_POINT, fs=fs)
    store.put(b"k", b"v")
    store.close()
    fs = fs.after_kill()
    fs.failing["allocate"] = errno.ENOSPC
    store = open_store(MOUNT_POINT, fs=fs, volume_size=2 * VOLUME_SIZE)

    assert value_of(store.get(b"k")) == b"v"
    with pytest.raises(DiskFullError):
        store.put(b"new", b"v")
    with pytest.raises(DiskFullError):
        store.flush()
    assert value_of(store.get(b"k")) == b"v"
    fs.failing.clear()
    store.put(b"new", b"v")
    assert (store.stats.rotations, value_of(store.get(b"new"))) == (0, b"v")
    store.flush()
    assert store.get(b"k") is None


def test_get_large_value_has_it_in_memory_once(tmp_path: Path) -> None:
    """The value is not copied."""
    value = os.urandom(8 << 20)
    store = open_store(tmp_path, volume_size=1 << 24)
    store.put(b"large", value, content_type=b"text/plain", content_encoding=b"br")

    tracemalloc.start()
    record = store.get(b"large")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert record is not None
    assert record.value == value
    assert (record.content_type, record.content_encoding) == (b"text/plain", b"br")
    assert peak < 1.1 * len(value)
    assert store.stats.reads.count == 1
    store.close()


def test_validate_copy_succeeds_while_the_index_has_its_record(tmp_path: Path) -> None:
    """Not after an overwrite, a delete or its expiry, but after it was reclaimed."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    put = store.put(b"k", b"v", content_type=b"x/y", expires_ms=clock.now_ms + 1000)
    copy = store.read_raw(b"k")
    assert copy is not None
    assert store.validate(b"k", copy) == put
    assert store.validate(b"other", copy) is None
    for length in range(len(copy)):
        assert store.validate(b"k", copy[:length]) is None
    for turn in range(VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
    assert store.get(b"k") is None
    assert store.validate(b"k", copy) == put
    clock.advance(1)
    assert store.validate(b"k", copy) is None

    store.put(b"k", b"old")
    copy = store.read_raw(b"k")
    assert copy is not None
    store.put(b"k", b"new")
    assert store.validate(b"k", copy) is None
    store.delete(b"k")
    assert store.validate(b"k", copy) is None
    assert store.read_raw(b"k") is None
    store.close()


def test_rotation_in_any_sync_mode_leaks_no_descriptors() -> None:
    """Index files of sealed volumes are closed in every mode."""
    for sync_mode in ("none", "periodic", "always"):
        fs = SimulatedFileSystem()
        store = open_store(MOUNT_POINT, fs=fs, sync_mode=sync_mode)
        store.sync()
        before = fs.descriptors
        for turn in range(3 * VOLUME_NUM):
            fill_volume(store, b"%d" % turn)
        store.sync()

        assert fs.descriptors == before
        store.close()
        store.close()  # The second does nothing.
        assert fs.descriptors == 0


# --- What a compact index requires ---------------------------------------------------


def rewrite_index(directory: Path, change: Callable[[bytes, int, int], Entry]) -> None:
    """Change every entry of the index file of volume 0, with right checksums."""

    def change_lines(lines: list[bytes]) -> None:
        entries = decode_entries(b"".join(lines))
        lines[:] = [encode_entries(change(*entry) for entry in entries)]

    rewrite(directory / "index" / "0", change_lines)


def test_get_position_of_another_key_is_an_ordinary_miss(tmp_path: Path) -> None:
    """Fingerprints can collide: nothing is damaged or deleted, and the other key stays."""
    store = open_store(tmp_path)
    other = store.put(b"other", b"value")
    store.put(b"k", b"v")
    store.close()
    rewrite_index(tmp_path, lambda key, *_: (key, other.offset, other.size))
    store = open_store(tmp_path)
    end = store.usage().active_end

    assert store.get(b"k") is None
    assert store.stat(b"k") is None
    assert (store.stats.damaged_records, store.stats.absent_reads) == (0, 2)
    assert not store.delete(b"k")
    assert store.usage().active_end == end
    assert value_of(store.get(b"other")) == b"value"
    store.close()


@pytest.mark.parametrize("length", [10, 5000])
def test_get_with_a_wrong_size_in_the_index_succeeds(
    tmp_path: Path, length: int
) -> None:
    """A wrong one costs a second read, never a wrong or missing value."""
    for hint in (65, 70, 100, 3000, 9000):
        directory = tmp_path / str(hint)
        store = open_store(directory)
        put = store.put(b"k", os.urandom(length), content_type=b"image/png")
        store.put(b"behind", bytes(9000))
        store.close()
        sizes = {b"k": hint}
        rewrite_index(
            directory,
            lambda key, at, size, to=sizes: (key, at, to.get(key, size)),  # type: ignore[misc]
        )
        store = open_store(directory)

        assert store.stat(b"k") == put._replace(value=b"")
        assert store.get(b"k") == put
        assert store.stats.damaged_records == 0
        assert store.delete(b"k")
        store.close()


def test_delete_is_not_counted_as_a_read(tmp_path: Path) -> None:
    """Counters of reads and misses are those of gets and stats."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.put(b"k", b"v", expires_ms=clock.now_ms + 1000)
    clock.advance(1)

    assert not store.delete(b"k")
    assert not store.delete(b"never put")
    assert store.stats.reads.count == 0
    assert sum(store.stats.misses().values()) == 0
    store.close()
