"""Opening a mount point in any state that a crash or damage leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.damage import overwrite
from support.stores import (
    BootedFileSystem,
    UnreadableFileSystem,
    fill_volume,
    kill,
    open_store,
    reopen,
    value_of,
)
from volcache.errors import UnreadableRecordError, UnreadableVolumeError
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.format import TIME_END, Ring, Segment, VolumeUse
from volcache.store.manifest import (
    ListedVolume,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from volcache.store.offline import OfflineStore
from volcache.store.replay import expected_keys
from volcache.store.volume_check import Counts


def test_start_with_a_damaged_volume_header_loses_nothing(tmp_path: Path) -> None:
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


def test_start_with_a_time_near_its_bound_does_not_move_the_clock(
    tmp_path: Path,
) -> None:
    """What is stored then would be out of bounds, and lost at the next start."""
    open_store(tmp_path).close()
    meta = tmp_path / "META.txt"
    manifest = decode_manifest(meta.read_bytes())
    assert manifest is not None
    meta.write_bytes(encode_manifest(manifest._replace(time_us=TIME_END - 1)))
    store = open_store(tmp_path)
    store.put(b"k", b"v")
    store = reopen(store, tmp_path)

    assert value_of(store.get(b"k")) == b"v"
    assert not store.recovery.meta_lost
    store.close()


def test_decode_manifest_with_a_segment_behind_the_end_succeeds() -> None:
    """A power loss has taken its records, and more."""
    lost = ListedVolume(
        VolumeUse(0, 1, Ring.MAIN, 5), "sealed", 100, None, (Segment(200, 6),)
    )
    manifest = Manifest(7, 1, 5, 0, (lost,))

    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_expected_keys_with_deletions_are_those_that_were_put(tmp_path: Path) -> None:
    """Each deletion has a line and a checkpoint, but no entry in memory of its own."""
    store = open_store(tmp_path, volume_size=2**20)
    for number in range(400):
        store.put(b"%d" % number, b"value")
        store.delete(b"%d" % number)
    store.close()
    with OfflineStore.inspect(ReadOnlyFileSystem(), str(tmp_path)) as offline:
        assert 400 <= expected_keys(offline.found, offline.volumes) < 420


# --- Records without an index entry, found by a scan --------------------------------


def test_start_with_an_unreadable_value_supersedes_the_older_one(
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


def test_start_with_an_unreadable_header_behind_the_entries_is_refused(
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
def test_start_with_an_unreadable_sector_without_records_succeeds(
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


@pytest.mark.parametrize(
    ("boots", "sync_mode", "found"),
    [(0, "none", None), (1, "none", b"old"), (1, "always", None)],
)
def test_start_with_damage_in_the_middle_hides_the_older_value_if_it_was_synced(
    tmp_path: Path, boots: int, sync_mode: str, found: bytes | None
) -> None:
    """
    Or if no power was lost; the records behind it are found, and say so.

    An unsynced one may never have been acknowledged.
    """
    fs = BootedFileSystem()
    store = open_store(tmp_path, fs=fs, sync_mode=sync_mode)
    store.put(b"k", b"old")
    damaged = store.put(b"k", b"new" * 9)
    store.put(b"behind", b"v")
    kill(store)
    fs.boots += boots
    overwrite(tmp_path / "data" / "0", damaged.offset + damaged.size - 9, bytes(9))
    counts = Counts()
    with OfflineStore.inspect(ReadOnlyFileSystem(), str(tmp_path)) as offline:
        assert list(offline.check(counts))
    store = open_store(tmp_path, fs=fs, sync_mode=sync_mode)

    assert value_of(store.get(b"k")) == found
    assert value_of(store.get(b"behind")) == b"v"
    assert (store.recovery.damaged, store.recovery.unknown) == (1, 0)
    assert counts.keys == (1 if sync_mode == "always" else 2)
    store.close()


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_start_with_a_lost_header_in_the_middle_drops_the_volume(
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


def test_start_with_a_copy_of_a_record_inside_a_value_ignores_it(
    tmp_path: Path,
) -> None:
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
