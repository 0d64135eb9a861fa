"""Opening a mount point in any state that a crash or damage leaves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from support.damage import overwrite
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    BootedFileSystem,
    disk_bytes,
    fill_volume,
    kill,
    open_fifo,
    open_store,
    reopen,
    value_of,
)
from volcache.store.manifest import decode_manifest

if TYPE_CHECKING:
    from pathlib import Path


def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    """Records of sealed volumes and of the active one are there after a clean stop."""
    store = open_store(tmp_path)
    keys = [*fill_volume(store), b"in the head"]
    store.put(keys[-1], keys[-1].ljust(1000, b"."))
    store.close()
    store = open_store(tmp_path)

    for key in keys:
        assert value_of(store.get(key)) == key.ljust(1000, b".")
    assert store.recovery.scanned == 0
    store.close()


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    """Records without an index entry are found by a scan."""
    store = open_store(tmp_path)
    keys = fill_volume(store)
    store = reopen(store, tmp_path)

    for key in keys:
        assert value_of(store.get(key)) == key.ljust(1000, b".")
    assert store.recovery.scanned == 1
    assert (store.recovery.torn, store.recovery.damaged) == (0, 0)
    store.close()


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_deleted_key_stays_deleted(tmp_path: Path, index: str) -> None:
    """After a kill, and also when the index files are gone."""
    store = open_store(tmp_path)
    store.put(b"k", b"v")
    store.put(b"other", b"v")
    store.delete(b"k")
    kill(store)
    if index == "lost":
        shutil.rmtree(tmp_path / "index")
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    assert value_of(store.get(b"other")) == b"v"
    assert store.count == 1
    store.close()


def test_an_overwritten_value_is_not_returned_after_a_kill(tmp_path: Path) -> None:
    """The newer record is current, whatever volume it is in."""
    store = open_store(tmp_path)
    store.put(b"k", b"first")
    fill_volume(store)
    store.put(b"k", b"second")
    store = reopen(store, tmp_path)

    assert value_of(store.get(b"k")) == b"second"
    store.close()


def test_the_order_of_volumes_survives_a_full_turn(tmp_path: Path) -> None:
    """After a full turn, volume 0 is newer than volume 3."""
    store = open_store(tmp_path)
    for turn in range(VOLUME_NUM + 1):
        store.put(b"k", b"%d" % turn)
        fill_volume(store, b"%d" % turn)
    store = reopen(store, tmp_path)

    assert value_of(store.get(b"k")) == b"%d" % VOLUME_NUM
    assert store.put(b"k", b"next").volume == 1
    store.close()


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "flipped", "cut"])
def test_a_damaged_index_file_is_rebuilt_from_its_volume(
    tmp_path: Path, damage: str
) -> None:
    """Nothing is lost, and the next start does not scan."""
    store = open_store(tmp_path)
    keys = fill_volume(store)
    store.close()
    path = tmp_path / "index" / "0"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        overwrite(path, len(data) // 2, bytes([data[len(data) // 2] ^ 4]))
    else:
        path.write_bytes(
            {"empty": b"", "garbage": b"\xff" * 999, "cut": data[:-40]}[damage]
        )
    store = open_store(tmp_path)
    for key in keys:
        assert value_of(store.get(key)) == key.ljust(1000, b".")
    store.close()

    assert path.read_bytes().splitlines()[0] == data.splitlines()[0]
    store = open_store(tmp_path)
    assert store.recovery.scanned == 0
    assert store.count == len(keys)
    store.close()


def test_all_index_files_may_be_lost(tmp_path: Path) -> None:
    """Every record is found in the volumes."""
    store = open_fifo(tmp_path)
    last = [fill_volume(store, b"%d" % turn) for turn in range(6)][-VOLUME_NUM + 1 :]
    store.close()
    shutil.rmtree(tmp_path / "index")
    store = open_fifo(tmp_path)

    for keys in last:
        for key in keys:
            assert value_of(store.get(key)) == key.ljust(1000, b".")
    assert store.recovery.rebuilt == VOLUME_NUM
    store.close()


@pytest.mark.parametrize("damage", [None, b"", b"0\n", b"\xff" * 80])
def test_a_damaged_manifest_is_rebuilt(tmp_path: Path, damage: bytes | None) -> None:
    """The volumes contain the active volume, the generation and the store id."""
    store = open_store(tmp_path)
    keys = [fill_volume(store, b"%d" % turn) for turn in range(6)][-1]
    store.close()
    path = tmp_path / "META.txt"
    before = decode_manifest(path.read_bytes())
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    store = open_store(tmp_path)
    after = decode_manifest(path.read_bytes())

    assert before is not None
    assert after is not None
    assert after.store_id == before.store_id
    assert [v.use for v in after.volumes] == [v.use for v in before.volumes]
    assert after.mount_count > before.mount_count
    assert value_of(store.get(keys[-1])) == keys[-1].ljust(1000, b".")
    assert store.recovery.meta_lost
    store.close()


def test_a_damaged_volume_header_loses_nothing(tmp_path: Path) -> None:
    """The index file, or else the first record, has the generation."""
    store = open_store(tmp_path)
    keys = fill_volume(store)
    store.close()
    overwrite(tmp_path / "data" / "0", 0, bytes(64))
    store = open_store(tmp_path)
    assert value_of(store.get(keys[0])) == keys[0].ljust(1000, b".")
    assert store.recovery.damaged == 1
    store.close()
    (tmp_path / "index" / "0").unlink()
    store = open_store(tmp_path)

    assert value_of(store.get(keys[0])) == keys[0].ljust(1000, b".")
    store.close()


def test_a_lost_volume_makes_no_older_value_current(tmp_path: Path) -> None:
    """The index file of a lost volume still supersedes older records."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    fill_volume(store, b"0")
    store.put(b"k", b"new")
    fill_volume(store, b"1")
    store.close()
    (tmp_path / "data" / "1").unlink()
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    store.close()


@pytest.mark.parametrize("lost", ["header", "index", "header and index"])
def test_a_power_loss_may_take_the_header_of_a_new_volume(
    tmp_path: Path, lost: str
) -> None:
    """META.txt has its salt; records of the earlier use of its id stay invalid."""
    fs = BootedFileSystem()
    store = open_store(tmp_path, fs=fs)
    for turn in range(VOLUME_NUM - 1):
        fill_volume(store, b"%d" % turn)
    old_header = (tmp_path / "data" / "0").read_bytes()[:64]
    last = fill_volume(store, b"last")[-1]
    kill(store)
    fs.boots += 1
    if "header" in lost:
        overwrite(tmp_path / "data" / "0", 0, old_header)
    if "index" in lost:
        (tmp_path / "index" / "0").unlink()
    store = open_store(tmp_path, fs=fs)

    assert value_of(store.get(last)) == last.ljust(1000, b".")
    assert store.get(b"0/0") is None
    assert store.put(b"k", b"v").volume == 0
    kill(store)
    store = open_store(tmp_path, fs=fs)
    assert value_of(store.get(b"k")) == b"v"
    store.close()


def test_a_higher_volume_num_adds_volumes(tmp_path: Path) -> None:
    """Nothing is lost and the order is kept."""
    store = open_store(tmp_path)
    for turn in range(VOLUME_NUM + 2):
        fill_volume(store, b"%d" % turn)
    count = store.count
    store.close()
    store = open_store(tmp_path, volume_num=2 * VOLUME_NUM)
    assert store.count == count
    for turn in range(2 * VOLUME_NUM):
        keys = fill_volume(store, b"more/%d" % turn)
        store = reopen(store, tmp_path, volume_num=2 * VOLUME_NUM)
        assert value_of(store.get(keys[0])) is not None
        assert disk_bytes(tmp_path) <= 2 * VOLUME_NUM * VOLUME_SIZE
    store.close()


def test_a_lower_volume_num_removes_the_oldest_volumes(tmp_path: Path) -> None:
    """The newest volumes are kept, at once and over many turns and restarts."""
    store = open_fifo(tmp_path, volume_num=6)
    turns = [fill_volume(store, b"%d" % turn) for turn in range(8)]
    store.close()
    store = open_fifo(tmp_path, volume_num=2)
    newest = turns[-1][0]
    assert value_of(store.get(newest)) == newest.ljust(1000, b".")
    assert store.get(turns[-2][0]) is None
    assert store.recovery.dropped == 4
    assert disk_bytes(tmp_path) <= 2 * VOLUME_SIZE
    for turn in range(5):
        keys = fill_volume(store, b"less/%d" % turn)
        store = reopen(store, tmp_path, volume_num=2)
        assert value_of(store.get(keys[0])) == keys[0].ljust(1000, b".")
        assert disk_bytes(tmp_path) <= 2 * VOLUME_SIZE
    store.close()


@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_new_volume_size_is_applied_volume_by_volume(
    tmp_path: Path, factor: float
) -> None:
    """Nothing is lost at the start; after a turn all volumes have the new size."""
    store = open_store(tmp_path)
    keys = fill_volume(store)
    store.close()
    size = int(VOLUME_SIZE * factor)
    store = open_store(tmp_path, volume_size=size)
    assert value_of(store.get(keys[0])) == keys[0].ljust(1000, b".")
    for turn in range(VOLUME_NUM):
        fill_volume(store, b"%d" % turn)

    assert disk_bytes(tmp_path) == VOLUME_NUM * size
    store.close()


@pytest.mark.parametrize("lost", [None, "META.txt", "index"])
def test_a_flush_is_permanent(tmp_path: Path, lost: str | None) -> None:
    """No record returns after a kill, or if META.txt or the index files are lost."""
    store = open_store(tmp_path)
    store.put(b"k", b"v")
    fill_volume(store)
    store.flush()
    store.put(b"after", b"v")
    kill(store)
    if lost == "index":
        shutil.rmtree(tmp_path / "index")
    elif lost:
        (tmp_path / lost).unlink()
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    assert value_of(store.get(b"after")) == b"v"
    assert store.count == 1
    store = reopen(store, tmp_path)
    assert store.count == 1
    store.close()
