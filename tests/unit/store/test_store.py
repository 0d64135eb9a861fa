"""The store through its public methods."""

from __future__ import annotations

import errno
import os
import threading
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    FakeClock,
    disk_bytes,
    fill_volume,
    open_fifo,
    open_store,
    reopen,
    value_of,
)
from volcache.errors import (
    DiskFullError,
    StoreIOError,
    UnreadableRecordError,
    ValueTooLargeError,
)
from volcache.store.files import OsFileSystem
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES
from volcache.store.index_format import (
    decode_blocks,
    decode_entries,
    decode_segments,
    encode_block,
    encode_segment,
)
from volcache.store.native import IS_NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.index_format import Entry

ROOM = VOLUME_SIZE - VOLUME_HEADER_BYTES - RECORD_OVERHEAD_BYTES - 1


class FailingFileSystem(OsFileSystem):
    """Fails the calls named in `failing` with the error given there."""

    def __init__(self) -> None:
        """Fail nothing yet."""
        self.failing: dict[str, int] = {}

    def __getattribute__(self, name: str) -> Any:
        """Return a method that fails if its name is in `failing`."""
        found = object.__getattribute__(self, name)
        if name not in {"pread", "pwritev", "sync", "allocate", "space"}:
            return found
        failing = object.__getattribute__(self, "failing")

        def call(*arguments: Any) -> Any:
            if name in failing:
                raise OSError(failing[name], os.strerror(failing[name]))
            return found(*arguments)

        return call


def test_get_returns_a_value_with_all_its_metadata(tmp_path: Path) -> None:
    """Put and get agree on every field."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    put = store.put(
        b"a b/\xff",
        b"value",
        content_type=b"image/png",
        content_encoding=b"br",
        flags=7,
    )

    got = store.get(b"a b/\xff")

    assert got == put
    assert got is not None
    assert (got.value, got.content_type, got.content_encoding) == (
        b"value",
        b"image/png",
        b"br",
    )
    assert (got.volume, got.flags, got.offset) == (0, 7, VOLUME_HEADER_BYTES)
    stored_us = clock.now_ms * 1000
    assert (got.stored_us, got.length, got.source) == (stored_us, 5, "DISK")
    assert store.stat(b"a b/\xff") == got._replace(value=b"")
    store.close()


def test_a_key_never_put_is_a_miss(tmp_path: Path) -> None:
    """A miss is None, for get and stat."""
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    assert store.stat(b"k") is None
    assert not store.delete(b"k")
    store.close()


@pytest.mark.parametrize("length", [0, 1, 1000, ROOM])
def test_values_of_every_length_are_stored(tmp_path: Path, length: int) -> None:
    """From an empty value to one that fills a volume."""
    store = open_store(tmp_path)
    value = os.urandom(length)
    store.put(b"k", value)

    assert value_of(store.get(b"k")) == value
    store.close()


def test_a_value_larger_than_a_volume_is_refused_with_both_sizes(
    tmp_path: Path,
) -> None:
    """The error has the size and the limit; nothing changes."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")

    with pytest.raises(ValueTooLargeError, match=f"{ROOM + 1} .* 0 to {ROOM}"):
        store.put(b"k", bytes(ROOM + 1))
    assert value_of(store.get(b"k")) == b"old"
    assert store.stats.rotations == 0
    store.close()


def test_get_returns_the_value_put_last(tmp_path: Path) -> None:
    """An overwritten value is never returned."""
    store = open_store(tmp_path)
    store.put(b"k", b"first")
    store.put(b"k", b"second")

    assert value_of(store.get(b"k")) == b"second"
    assert store.count == 1
    store.close()


def test_an_expired_value_is_a_miss(tmp_path: Path) -> None:
    """From the millisecond of its expiry on, and not before."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.put(b"k", b"v", expires_ms=clock.now_ms + 1000)
    clock.advance(0.999)
    assert value_of(store.get(b"k")) == b"v"
    clock.advance(0.001)

    assert store.get(b"k") is None
    assert store.stat(b"k") is None
    store.close()


def test_delete_of_an_expired_value_returns_false(tmp_path: Path) -> None:
    """It is a miss of its own kind, and stays deleted if the clock is set back."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.put(b"k", b"v", expires_ms=clock.now_ms + 1000)
    clock.advance(1)
    assert store.get(b"k") is None
    assert store.stat(b"k") is None
    assert store.stats.expired_reads == 2
    assert store.stats.damaged_records == 0
    assert not store.delete(b"k")
    clock.advance(-1)
    assert store.get(b"k") is None
    store.close()


def test_rotation_evicts_the_oldest_volume_only(tmp_path: Path) -> None:
    """After a full turn the newest volumes are readable and the files have not grown."""
    store = open_fifo(tmp_path)
    turns = [fill_volume(store, b"%d" % turn) for turn in range(VOLUME_NUM + 2)]

    assert [store.get(key) for key in turns[0][:-1]] == [None] * (len(turns[0]) - 1)
    for keys in turns[-VOLUME_NUM + 1 :]:
        for key in keys:
            assert value_of(store.get(key)) == key.ljust(1000, b".")
    assert disk_bytes(tmp_path) == VOLUME_NUM * VOLUME_SIZE
    assert store.stats.evicted_records > 0
    store.close()


def test_rotation_keeps_a_newer_copy_of_an_overwritten_key(tmp_path: Path) -> None:
    """Only keys whose current record is in the reclaimed volume are evicted."""
    store = open_fifo(tmp_path)
    store.put(b"k", b"first")
    fill_volume(store)
    store.put(b"k", b"second")
    for turn in range(VOLUME_NUM - 1):
        fill_volume(store, b"%d" % turn)

    assert value_of(store.get(b"k")) == b"second"
    store.close()


def test_rotation_over_a_deleted_key_works(tmp_path: Path) -> None:
    """The volume of a deleted record can be reclaimed."""
    store = open_store(tmp_path)
    store.put(b"k", b"v")
    assert store.delete(b"k")
    for turn in range(2 * VOLUME_NUM):
        fill_volume(store, b"%d" % turn)

    assert store.get(b"k") is None
    store.close()


@pytest.mark.skipif(
    IS_NATIVE, reason="a sweep of the native index takes thousands of puts"
)
def test_memory_of_evicted_keys_is_freed(tmp_path: Path) -> None:
    """The index does not grow with the number of turns."""
    store = open_store(tmp_path)
    sizes = []
    for turn in range(6 * VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
        sizes.append(store.count + store.stale_entries)

    assert max(sizes[VOLUME_NUM:]) <= 2 * max(sizes[:VOLUME_NUM])
    store.close()


def test_a_damaged_record_is_a_miss_and_leaves_the_index(tmp_path: Path) -> None:
    """A changed byte on the disk is detected and counted."""
    store = open_store(tmp_path)
    record = store.put(b"k", b"value")
    with Path(tmp_path, "data", "0").open("r+b") as volume:
        volume.seek(record.offset + record.size - 1)
        volume.write(b"E")

    assert store.get(b"k") is None
    assert store.stats.damaged_records == 1
    assert store.count == 0
    store.close()


def test_a_record_in_a_truncated_volume_is_a_miss(tmp_path: Path) -> None:
    """A read after the end of the file counts as damage."""
    store = open_store(tmp_path)
    store.put(b"k", b"value")
    os.truncate(Path(tmp_path, "data", "0"), 70)

    assert store.stat(b"k") is None
    assert store.stats.damaged_records == 1
    store.close()


def test_a_read_error_is_no_miss_and_the_key_stays(tmp_path: Path) -> None:
    """The disk may recover; after three errors in a row it counts as failed."""
    fs = FailingFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"v")
    fs.failing["pread"] = errno.EIO
    for read in (store.get, store.stat, store.get):
        with pytest.raises(UnreadableRecordError, match="cannot be read"):
            read(b"k")
    assert (store.stats.read_errors, store.stats.is_disk_good) == (3, False)
    fs.failing.clear()

    assert value_of(store.get(b"k")) == b"v"
    assert store.stats.is_disk_good
    store.close()


def test_a_refused_write_keeps_the_old_value(tmp_path: Path) -> None:
    """A put or delete that fails changes nothing, and the next one works."""
    fs = FailingFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"old")
    fs.failing["pwritev"] = errno.EIO
    with pytest.raises(StoreIOError, match="Input/output error"):
        store.put(b"k", b"new")
    with pytest.raises(StoreIOError):
        store.delete(b"k")
    assert value_of(store.get(b"k")) == b"old"
    fs.failing.clear()

    store.put(b"k", b"newer")
    assert value_of(store.get(b"k")) == b"newer"
    assert store.stats.write_errors == 2
    store.close()


def test_a_full_disk_refuses_the_next_volume_and_serves_reads(
    tmp_path: Path,
) -> None:
    """The error has both numbers; a record that fits the active volume is stored."""
    fs = FailingFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", bytes(10_000))
    fs.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError, match=r"volume 1 needs 16384 bytes, .* are free"):
        store.put(b"big", bytes(10_000))
    store.put(b"small", b"fits")

    assert value_of(store.get(b"k")) == bytes(10_000)
    assert value_of(store.get(b"small")) == b"fits"
    fs.failing.clear()
    store.put(b"big", b"x" * 10_000)
    assert value_of(store.get(b"big")) == b"x" * 10_000
    store.close()


def test_a_store_on_a_full_disk_opens(tmp_path: Path) -> None:
    """Reads are served; puts are refused until there is disk space."""
    store = open_store(tmp_path)
    store.put(b"k", b"v")
    store.close()
    fs = FailingFileSystem()
    fs.failing["allocate"] = errno.ENOSPC
    store = open_store(tmp_path, fs=fs, volume_size=2 * VOLUME_SIZE)

    assert value_of(store.get(b"k")) == b"v"
    with pytest.raises(DiskFullError):
        store.put(b"new", b"v")
    fs.failing.clear()
    store.put(b"new", b"v")
    assert (store.stats.rotations, value_of(store.get(b"new"))) == (0, b"v")
    store.close()


def test_a_volume_whose_sync_failed_is_not_written_again(tmp_path: Path) -> None:
    """In mode "always" the put fails, the old value stays, the next put starts a volume."""
    fs = FailingFileSystem()
    store = open_store(tmp_path, fs=fs, sync_mode="always")
    store.put(b"k", b"old")
    fs.failing["sync"] = errno.EIO
    with pytest.raises(StoreIOError, match="disk refused to sync"):
        store.put(b"k", b"new")
    fs.failing.clear()
    assert value_of(store.get(b"k")) == b"old"

    assert store.put(b"k", b"newer").volume == 1
    assert store.stats.sync_errors == 1
    store.close()


def test_a_large_value_is_in_memory_once_while_it_is_read(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("place", [0, 59, 70, 1 << 19, (1 << 20) - 1])
def test_a_large_record_with_a_flipped_bit_is_a_miss(
    tmp_path: Path, place: int
) -> None:
    """In its header, its key and its value."""
    store = open_store(tmp_path, volume_size=1 << 22)
    record = store.put(b"large", os.urandom(1 << 20))
    with (tmp_path / "data" / "0").open("r+b") as volume:
        volume.seek(record.offset + place)
        (byte,) = volume.read(1)
        volume.seek(record.offset + place)
        volume.write(bytes([byte ^ 1]))

    assert store.get(b"large") is None
    assert store.stats.damaged_records == 1
    store.close()


def test_a_truncated_large_record_is_a_miss(tmp_path: Path) -> None:
    """The file ends within the value."""
    store = open_store(tmp_path, volume_size=1 << 22)
    record = store.put(b"large", bytes(1 << 20))
    os.truncate(tmp_path / "data" / "0", record.offset + (1 << 19))

    assert store.get(b"large") is None
    assert store.stats.damaged_records == 1
    store.close()


def test_a_flush_drops_everything_and_the_store_works(tmp_path: Path) -> None:
    """The records of every volume, the active one too; later puts are stored."""
    store = open_store(tmp_path)
    turns = [fill_volume(store, b"%d" % turn) for turn in range(VOLUME_NUM + 1)]
    store.flush()

    assert store.count == 0
    assert all(store.get(key) is None for keys in turns for key in keys)
    store.put(b"k", b"v")
    turns = [fill_volume(store, b"after/%d" % turn) for turn in range(2 * VOLUME_NUM)]
    assert value_of(store.get(turns[-1][-1])) is not None
    assert disk_bytes(tmp_path) == VOLUME_NUM * VOLUME_SIZE
    store.close()


def test_a_flush_on_a_full_disk_drops_nothing(tmp_path: Path) -> None:
    """It raises the error of a full disk."""
    fs = FailingFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"v")
    fs.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        store.flush()

    assert value_of(store.get(b"k")) == b"v"
    fs.failing.clear()
    store.flush()
    assert store.get(b"k") is None
    store.close()


def test_a_copy_is_valid_while_the_index_has_its_record(tmp_path: Path) -> None:
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


def test_a_second_close_does_nothing(tmp_path: Path) -> None:
    """The lock is released once."""
    store = open_store(tmp_path)
    store.close()
    store.close()


@pytest.mark.parametrize("sync_mode", ["none", "periodic", "always"])
def test_rotations_leak_no_descriptors_in_any_sync_mode(
    tmp_path: Path, sync_mode: str
) -> None:
    """Index files of sealed volumes are closed in every mode."""
    store = open_store(tmp_path, sync_mode=sync_mode)
    store.sync()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for turn in range(3 * VOLUME_NUM):
        fill_volume(store, b"%d" % turn)
    store.sync()

    assert len(list(Path("/proc/self/fd").iterdir())) == before
    store.close()


# --- What a compact index requires ---------------------------------------------------


def rewrite_index(directory: Path, change: Callable[[bytes, int, int], Entry]) -> None:
    """Change every entry of the index file of volume 0, with right checksums."""
    path = directory / "index" / "0"
    first, *blocks = decode_blocks(path.read_bytes())
    data, checksum = path.read_bytes()[: first.file_end], first.checksum
    for block in blocks:
        entries = [change(*entry) for entry in decode_entries(block.lines)]
        more, checksum = encode_block(
            entries,
            block.volume_end,
            sealed=block.sealed,
            previous=checksum,
            before="".join(map(encode_segment, decode_segments(block.lines))),
        )
        data += more
    path.write_bytes(data)


def test_a_position_of_another_key_is_an_ordinary_miss(tmp_path: Path) -> None:
    """Fingerprints can collide: nothing is damaged, and the other key stays."""
    store = open_store(tmp_path)
    other = store.put(b"other", b"value")
    store.put(b"k", b"v")
    store.close()
    rewrite_index(tmp_path, lambda key, *_: (key, other.offset, other.size))
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    assert store.stat(b"k") is None
    assert (store.stats.damaged_records, store.stats.absent_reads) == (0, 2)
    assert value_of(store.get(b"other")) == b"value"
    store.close()


def test_a_delete_checks_the_key_on_the_disk(tmp_path: Path) -> None:
    """A key whose position is that of another key does not exist."""
    store = open_store(tmp_path)
    other = store.put(b"other", b"value")
    store.put(b"k", b"v")
    store.close()
    rewrite_index(tmp_path, lambda key, *_: (key, other.offset, other.size))
    store = open_store(tmp_path)
    end = store.usage().active_end

    assert not store.delete(b"k")
    assert store.usage().active_end == end
    assert value_of(store.get(b"other")) == b"value"
    store.close()


@pytest.mark.parametrize("length", [10, 5000])
@pytest.mark.parametrize("hint", [65, 70, 100, 3000, 9000])
def test_the_size_in_the_index_is_a_hint(
    tmp_path: Path, length: int, hint: int
) -> None:
    """A wrong one costs a second read, never a wrong or missing value."""
    store = open_store(tmp_path)
    put = store.put(b"k", os.urandom(length), content_type=b"image/png")
    store.put(b"behind", bytes(9000))
    store.close()
    rewrite_index(
        tmp_path,
        lambda key, offset, size: (key, offset, hint if key == b"k" else size),
    )
    store = open_store(tmp_path)

    assert store.stat(b"k") == put._replace(value=b"")
    assert store.get(b"k") == put
    assert store.stats.damaged_records == 0
    assert store.delete(b"k")
    store.close()


def test_a_delete_is_not_counted_as_a_read(tmp_path: Path) -> None:
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


def run_all(threads: list[threading.Thread]) -> None:
    """Run threads at the same time, and return when all have ended."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_writers_and_readers_in_several_threads_see_whole_values(
    tmp_path: Path,
) -> None:
    """Every get is a miss or a value that was put under that key."""
    store = open_store(tmp_path, volume_size=1 << 20)
    keys = [b"%d" % number for number in range(20)]
    wrong: list[bytes] = []

    def write(seed: int) -> None:
        for number in range(400):
            key = keys[(number * 7 + seed) % len(keys)]
            store.put(key, key * (1 + (number * seed) % 500))
            if number % 13 == seed:
                store.delete(keys[number % len(keys)])

    def read() -> None:
        for key in keys * 100:
            value = value_of(store.get(key)) or b""
            wrong.extend([key] if value.replace(key, b"") else [])

    threads = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2, 3)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    threads += [threading.Thread(target=store.sync)]
    run_all(threads)

    assert wrong == []
    assert store.stats.damaged_records == 0
    found = {key: value_of(store.get(key)) for key in keys}
    store = reopen(store, tmp_path, volume_size=1 << 20)
    assert {key: value_of(store.get(key)) for key in keys} == found
    store.close()
