"""A disk that fails, is full, is read-only, or whose files vanish during operation."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.extent import Count, every
from support.histories import MOUNT_POINT, Client, open_simulated
from support.simulated import SimulatedFileSystem
from support.stores import (
    fill_volume,
    kill,
    open_fifo,
    open_store,
    reopen,
    scan_keys,
    value_of,
)
from volcache.errors import (
    MountPointError,
    StoreError,
    StoreIOError,
    UnreadableRecordError,
)
from volcache.store import Store, SyncMode

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash]

ERRORS = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT, 0]


def open_once_more(fs: SimulatedFileSystem, **options: Any) -> tuple[Store, int]:
    """Start, a second time if the first is refused; return how often it was."""
    try:
        return open_simulated(fs, **options), 0
    except MountPointError:
        assert fs.descriptors == 0
        return open_simulated(fs, **options), 1


def refused_by(fs: SimulatedFileSystem, sync_mode: SyncMode) -> tuple[int, int]:
    """Do a script, also after kills; return operations of disk and client's refusals."""
    client, refused = Client(faults_borne=1), 0
    for number, volume_num in enumerate((4, 4, 4, 3, 5, 4)):
        options: Any = {"sync_mode": sync_mode, "volume_num": volume_num}
        store, times = open_once_more(fs, is_sparse=number % 2 == 0, **options)
        refused += times
        for _ in range(4):
            client.run(store, 7)
            store.sync()
        if number in {1, 3}:
            fs = fs.after_kill(is_continued=True)
        else:
            store.close()
    store = open_simulated(fs.after_kill(), sync_mode=sync_mode)
    # A volume that failed is sealed early, so the oldest is reclaimed earlier.
    assert client.hits(store, oldest=store.usage().active_seq - 3 + 2 + 1) > 10
    assert store.get(b"never put") is None
    return fs.operations, refused + (client.faults_borne == 0)


@pytest.mark.slow
@pytest.mark.parametrize("sync_mode", ["none", "periodic", "always"])
def test_operation_repeated_after_one_failed_call_succeeds(
    sync_mode: SyncMode, record_property: Count
) -> None:
    """Each call of a script fails once; nothing else is lost, then or after a kill."""
    dice = random.Random(1)  # noqa: S311 - Repeatable on purpose.
    refused = 0
    for number in every(8, 2000, offset=1):
        fs = SimulatedFileSystem()
        fs.fail_at, fs.fail_with = number, dice.choice(ERRORS)
        operations, times = refused_by(fs, sync_mode)
        refused += times
        if operations < number:
            break
    record_property("failed_calls", number)

    assert number > 60
    assert refused > 20


@pytest.mark.parametrize(
    "name",
    ["pwritev", "allocate", "create", "rename", "sync_directory", "unlink", "truncate"],
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_rejects_all_writes_is_still_read(name: str, code: int) -> None:
    """
    Each put fails or is kept; stored values can be read meanwhile.

    Those of the oldest volume, until META.txt names its successor.
    """
    fs = SimulatedFileSystem()
    store = open_simulated(fs)
    while (rotations := store.stats.rotations) < 5:
        store.put(b"%d" % store.count, bytes(300))
    there = [key for keys in scan_keys(store) for key in keys]
    assert len(there) == store.count
    fs.failing[name] = code
    kept = {}
    for number in range(40):
        key = b"new %d" % (number % 8)
        try:
            store.put(key, b"%d" % number * 150)
            kept[key] = b"%d" % number * 150
        except StoreError:
            assert store.stats.write_errors
        if key in kept:
            assert value_of(store.get(key)) == kept[key]
        if (store.stats.rotations, store.stats.given_up_volumes) == (rotations, 0):
            assert all(map(store.get, there))
    fs.failing.clear()
    store.put(b"after", b"v")
    assert value_of(store.get(b"after")) == b"v"
    store.close()
    again = open_simulated(fs.after_kill())
    assert value_of(again.get(b"after")) == b"v"


def test_index_lines_are_not_retried_with_every_put_on_a_full_disk() -> None:
    """Lines that could not be written are retried when there are twice as many."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs, volume_size=1 << 22)
    fs.failing_writes[f"{MOUNT_POINT}/index/"] = errno.ENOSPC
    for number in range(5000):
        store.put(b"%d" % (number % 100), b"")
        if number % 100 == 7:
            store.delete(b"%d" % (number % 100))

    assert store.stats.index_errors == fs.refused_writes
    assert 0 < fs.refused_writes <= 5
    again = open_simulated(fs.after_kill())
    assert value_of(again.get(b"7")) is None
    assert value_of(again.get(b"8")) == b""


def test_failing_reads_make_the_instance_not_ready_until_the_disk_works() -> None:
    """After three in a row, readiness is determined by reads of the disk."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs)
    store.put(b"k", b"v")
    fs.failing["pread"] = errno.EIO
    reads = (store.get, store.stat, store.get)
    for read, is_ready in zip(reads, (True, True, False), strict=True):
        with pytest.raises(UnreadableRecordError, match="cannot be read"):
            read(b"k")
        assert store.stats.is_disk_good == is_ready
    assert not store.is_ready()
    assert not store.is_ready()
    fs.failing.clear()

    assert store.is_ready()
    assert value_of(store.get(b"k")) == b"v"
    assert (store.stats.read_errors, store.stats.read_errors_in_row) == (3, 0)


# --- Files that vanish during operation --------------------------------------------


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize(
    "victim", ["data/0", "data/1", "index/0", "index/1", "META.txt"]
)
def test_a_file_deleted_during_operation_loses_only_its_content(
    tmp_path: Path, victim: str, *, is_replaced: bool
) -> None:
    """The running process has it open; the next one checks what is there, if anything."""
    store = open_store(tmp_path)
    keys = fill_volume(store)
    (tmp_path / victim).unlink()
    if is_replaced:
        (tmp_path / victim).write_bytes(os.urandom(16384))
    assert all(store.get(key) for key in keys)
    store.put(b"new", b"v")
    kill(store)
    store = open_store(tmp_path)

    lost = [key for key in keys if store.get(key) is None]
    assert len(lost) == {"data/0": len(keys) - 1, "data/1": 1}.get(victim, 0)
    assert value_of(store.get(b"new")) == (None if victim == "data/1" else b"v")
    store.put(b"newer", b"v")
    store.close()


def values_of(store: Store, keys: list[bytes]) -> dict[bytes, bytes | None]:
    """Return the values of the keys that a store has."""
    return {key: value_of(store.get(key)) for key in keys if key in store}


def test_a_directory_in_the_place_of_an_index_file_loses_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Rotations continue without the file and log what to do; a start scans the volume, also
    when an index file of an earlier generation is in its place again.
    """
    store = open_fifo(tmp_path)
    keys = []
    for turn in range(4):
        keys += fill_volume(store, b"old %d" % turn)
    path = tmp_path / "index" / "1"
    old = path.read_bytes()
    path.unlink()
    (path / "foreign").mkdir(parents=True)
    for turn in range(4):
        keys += fill_volume(store, b"new %d" % turn)
    store.delete(b"new 2/1")

    assert (store.stats.write_errors, store.stats.index_errors) == (0, 1)
    lines = [line for line in caplog.messages if line.startswith("index.failed")]
    assert len(lines) == 1
    assert "volume=1" in lines[0]
    assert "is a directory in the place of a file, move it away" in lines[0]
    expected = values_of(store, keys)
    assert len(expected) > 40
    store = reopen(store, tmp_path, eviction="fifo")
    assert values_of(store, keys) == expected
    assert (path / "foreign").is_dir()
    kill(store)
    shutil.rmtree(path)
    path.write_bytes(old)
    store = open_fifo(tmp_path)
    assert values_of(store, keys) == expected
    assert path.read_bytes().splitlines()[0] != old.splitlines()[0]
    assert store.stats.index_errors == 0
    store.close()


def test_a_directory_in_the_place_of_an_index_file_does_not_keep_a_volume(
    tmp_path: Path,
) -> None:
    """With a smaller volume_num, the oldest are dropped by the start and by rotations."""
    store = open_fifo(tmp_path)
    newest = [fill_volume(store, b"%d" % turn)[-1] for turn in range(3)][-1]
    store.close()
    for number in ("0", "3"):
        (tmp_path / "index" / number).unlink()
        (tmp_path / "index" / number).mkdir()
    store = open_fifo(tmp_path, volume_num=2)

    assert value_of(store.get(newest)) is not None
    fill_volume(store, b"again")
    fill_volume(store, b"once more")
    assert store.stats.write_errors == 0
    assert (tmp_path / "data" / "3").stat().st_size == 0
    store.close()


def test_a_mount_point_that_was_moved_is_still_served(tmp_path: Path) -> None:
    """Open files are read; a rotation fails, and succeeds when it is back."""
    directory = tmp_path / "cache"
    store = open_store(directory)
    keys = [b"%d" % number for number in range(8)]
    for key in keys:
        store.put(key, key * 500)
    directory.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreIOError, match="No such file or directory"):
        fill_volume(store)
    assert all(store.get(key) for key in keys)
    (tmp_path / "elsewhere").rename(directory)

    store.put(b"big", bytes(15000))
    assert all(store.get(key) for key in keys)
    store.close()
    shutil.rmtree(directory)
    open_store(directory).close()
