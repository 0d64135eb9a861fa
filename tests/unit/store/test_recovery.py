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
    UnreadableFileSystem,
    disk_bytes,
    fill_volume,
    kill,
    open_fifo,
    open_store,
    reopen,
    value_of,
)
from volcache.errors import UnreadableRecordError, UnreadableVolumeError
from volcache.store.format import IDENTITY_BYTES
from volcache.store.manifest import decode_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from volcache.store import Store


def values_of(keys: list[bytes]) -> dict[bytes, bytes | None]:
    """Return the values that `fill_volume` has stored."""
    return {key: key.ljust(1000, b".") for key in keys}


def found_in(store: Store, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
    """Return the values that a store has."""
    return {key: value_of(store.get(key)) for key in keys}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_loses_nothing(tmp_path: Path, *, is_killed: bool) -> None:
    """After a kill, records without an index entry are found by a scan."""
    store = open_store(tmp_path)
    store.put(b"k", b"first")
    keys = fill_volume(store)
    store.put(b"k", b"second")
    if is_killed:
        kill(store)
    else:
        store.close()
    store = open_store(tmp_path)

    assert found_in(store, keys) == values_of(keys)
    assert value_of(store.get(b"k")) == b"second"
    assert store.recovery.scanned == 2 * is_killed
    assert (store.recovery.torn, store.recovery.damaged) == (0, 0)
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


@pytest.mark.parametrize(
    "damage", ["missing", "all missing", "empty", "garbage", "flipped", "cut"]
)
def test_a_damaged_index_file_is_rebuilt_from_its_volume(
    tmp_path: Path, damage: str
) -> None:
    """Nothing is lost, and the next start does not scan."""
    store = open_store(tmp_path)
    keys = fill_volume(store)
    store.close()
    path = tmp_path / "index" / "0"
    data = path.read_bytes()
    damaged = {
        "empty": b"",
        "garbage": b"\xff" * 999,
        "cut": data[:-40],
        "flipped": data[:300] + bytes([data[300] ^ 4]) + data[301:],
    }
    if damage == "all missing":
        shutil.rmtree(path.parent)
    else:
        path.unlink()
        if damage in damaged:
            path.write_bytes(damaged[damage])
    store = open_store(tmp_path)
    assert found_in(store, keys) == values_of(keys)
    assert store.recovery.rebuilt == {"all missing": 2, "cut": 0}.get(damage, 1)
    store.close()

    assert path.read_bytes().splitlines()[0] == data.splitlines()[0]
    store = open_store(tmp_path)
    assert store.recovery.scanned == 0
    assert store.count == len(keys)
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
    assert found_in(store, keys) == values_of(keys)
    for turn in range(VOLUME_NUM):
        fill_volume(store, b"%d" % turn)

    assert disk_bytes(tmp_path) == VOLUME_NUM * size
    store.close()


# --- Records without an index entry, found by a scan --------------------------------


def test_a_torn_tail_is_cut_off_at_any_byte(tmp_path: Path) -> None:
    """Whatever part of the last record was written, the old value is current."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    record = store.put(b"k", b"new and longer")
    kill(store)
    volume = tmp_path / "data" / "0"
    data = volume.read_bytes()
    # Zeros at the end of the identity are in the file without being written.
    identity = data[record.offset :][:IDENTITY_BYTES].rstrip(b"\0")
    meta = (tmp_path / "META.txt").read_bytes()
    for length in range(record.size):
        end = record.offset + length
        (tmp_path / "META.txt").write_bytes(meta)
        (tmp_path / "LOCK").unlink()
        volume.write_bytes(data[:end].ljust(len(data), b"\0"))
        shutil.rmtree(tmp_path / "index")
        store = open_store(tmp_path)
        assert value_of(store.get(b"k")) == b"old"
        assert store.recovery.damaged == 0
        assert store.recovery.torn == (length >= len(identity))
        kill(store)


def test_the_next_record_overwrites_a_torn_tail(tmp_path: Path) -> None:
    """It is found at the next start."""
    store = open_store(tmp_path)
    record = store.put(b"torn", b"x" * 100)
    kill(store)
    overwrite(tmp_path / "data" / "0", record.offset + record.size - 1, b"Z")
    store = open_store(tmp_path)
    assert store.get(b"torn") is None
    assert store.put(b"next", b"v").offset == record.offset
    store = reopen(store, tmp_path)

    assert value_of(store.get(b"next")) == b"v"
    assert store.get(b"torn") is None
    store.close()


def test_a_record_whose_value_cannot_be_read_supersedes_an_older_one(
    tmp_path: Path,
) -> None:
    """Its header has the key; the value is there when the disk works again."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    record = store.put(b"k", b"new" * 3000)
    kill(store)
    fs = UnreadableFileSystem(record.offset // 4096 * 4096 + 4096)
    store = open_store(tmp_path, fs=fs)
    with pytest.raises(UnreadableRecordError):
        store.get(b"k")
    fs.bad_sector = -4096

    assert value_of(store.get(b"k")) == b"new" * 3000
    store.close()


def test_an_unreadable_header_behind_the_last_entry_refuses_the_start(
    tmp_path: Path,
) -> None:
    """Records may be there, so older values are not served; nothing is overwritten."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    store.put(b"fill", bytes(4096))
    store.put(b"k", b"new")
    kill(store)
    before = (tmp_path / "data" / "0").read_bytes()
    with pytest.raises(
        UnreadableVolumeError, match="data/0 cannot be read from offset"
    ):
        open_store(tmp_path, fs=UnreadableFileSystem(4096))

    assert (tmp_path / "data" / "0").read_bytes() == before
    store = open_store(tmp_path)
    assert value_of(store.get(b"k")) == b"new"
    store.close()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_unreadable_sector_without_records_does_not_prevent_a_start(
    tmp_path: Path, *, is_stopped: bool
) -> None:
    """Behind the last record, nothing can be lost."""
    store = open_store(tmp_path)
    store.put(b"k", b"v")
    if is_stopped:
        store.close()
    else:
        kill(store)
    store = open_store(tmp_path, fs=UnreadableFileSystem(8192))

    assert value_of(store.get(b"k")) == b"v"
    store.close()


def test_damage_in_the_middle_is_skipped_and_counted(tmp_path: Path) -> None:
    """Records after it are found; the damaged key is a miss, not its old value."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    damaged = store.put(b"k", b"new")
    store.put(b"behind", b"v")
    kill(store)
    overwrite(tmp_path / "data" / "0", damaged.offset + damaged.size - 1, b"X")
    store = open_store(tmp_path)

    assert value_of(store.get(b"behind")) == b"v"
    assert store.get(b"k") is None
    assert store.recovery.damaged == 1
    store.close()


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_lost_header_in_the_middle_drops_what_may_be_outdated(
    tmp_path: Path, *, is_power_lost: bool
) -> None:
    """It is not known which key it had. After a power loss it may not have been synced."""
    fs = BootedFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"old")
    damaged = store.put(b"k", b"new")
    store.put(b"behind", b"v")
    kill(store)
    fs.boots += is_power_lost
    overwrite(tmp_path / "data" / "0", damaged.offset, bytes(64))
    store = open_store(tmp_path, fs=fs)

    assert value_of(store.get(b"k")) == (b"old" if is_power_lost else None)
    assert value_of(store.get(b"behind")) == (b"v" if is_power_lost else None)
    unknown = not is_power_lost
    assert (store.recovery.damaged, store.recovery.unknown) == (1, unknown)
    store.put(b"k", b"newer")
    store = reopen(store, tmp_path, fs=fs)
    assert value_of(store.get(b"k")) == b"newer"
    store.close()


def test_a_copy_of_a_record_inside_a_value_is_ignored(tmp_path: Path) -> None:
    """Also if the record that contains it is lost by a power loss."""
    fs = BootedFileSystem()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"secret old value")
    image = (tmp_path / "data" / "0").read_bytes()[64:2000]
    store.put(b"k", b"new")
    holder = store.put(b"backup", image)
    store.put(b"behind", b"v")
    kill(store)
    fs.boots += 1
    overwrite(tmp_path / "data" / "0", holder.offset, bytes(20))
    store = open_store(tmp_path, fs=fs)

    assert value_of(store.get(b"k")) == b"new"
    assert value_of(store.get(b"behind")) == b"v"
    assert store.get(b"backup") is None
    store.close()


def test_a_stale_record_after_a_new_tail_is_ignored(tmp_path: Path) -> None:
    """An old record right after the last new one has a lower mount count."""
    store = open_store(tmp_path)
    first = store.put(b"a", b"1" * 50)
    stale = store.put(b"k", b"stale")
    image = (tmp_path / "data" / "0").read_bytes()
    kill(store)
    # A power loss loses both; the bytes of the stale record reappear later.
    overwrite(tmp_path / "data" / "0", first.offset, bytes(first.size + stale.size))
    store = open_store(tmp_path)
    again = store.put(b"a", b"2" * 50)
    assert (again.offset, again.size) == (first.offset, first.size)
    kill(store)
    overwrite(
        tmp_path / "data" / "0",
        stale.offset,
        image[stale.offset : stale.offset + stale.size],
    )
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    assert value_of(store.get(b"a")) == b"2" * 50
    store.close()
