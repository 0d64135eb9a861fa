"""Records without an index entry, found by a scan: torn tails, gaps, stale records."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from support.damage import overwrite
from support.stores import (
    BootedFileSystem,
    UnreadableFileSystem,
    kill,
    open_store,
    reopen,
    value_of,
)
from volcache.errors import UnreadableRecordError, UnreadableVolumeError
from volcache.store.format import IDENTITY_BYTES

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.slow
def test_a_single_wrong_bit_in_the_last_record_is_damage(tmp_path: Path) -> None:
    """Its key is a miss, whichever bit is wrong: an older value does not come back."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    record = store.put(b"k", b"new")
    kill(store)
    path = tmp_path / "data" / "0"
    data = path.read_bytes()
    for bit in range(8 * record.offset, 8 * (record.offset + record.size)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        (tmp_path / "index" / "0").unlink()
        store = open_store(tmp_path)
        assert store.get(b"k") is None
        assert store.recovery.damaged == 1
        kill(store)


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


def test_a_lost_header_in_the_middle_drops_what_may_be_outdated(tmp_path: Path) -> None:
    """It is not known which key it had, so that no older record is served."""
    store = open_store(tmp_path)
    store.put(b"k", b"old")
    damaged = store.put(b"k", b"new")
    store.put(b"behind", b"v")
    kill(store)
    overwrite(tmp_path / "data" / "0", damaged.offset, bytes(64))
    store = open_store(tmp_path)

    assert store.get(b"k") is None
    assert (store.recovery.damaged, store.recovery.unknown, store.count) == (1, 1, 0)
    store.put(b"k", b"newer")
    store = reopen(store, tmp_path)
    assert (value_of(store.get(b"k")), store.count) == (b"newer", 1)
    store.close()


def test_a_header_lost_by_a_power_loss_is_a_gap(tmp_path: Path) -> None:
    """It was not synced; the scan skips to the next record of this volume."""
    fs = BootedFileSystem()
    store = open_store(tmp_path, fs=fs)
    gap = store.put(b"gone", b"v" * 5000)
    store.put(b"behind", b"v")
    kill(store)
    fs.boots += 1
    overwrite(tmp_path / "data" / "0", gap.offset, bytes(64))
    store = open_store(tmp_path, fs=fs)

    assert store.get(b"gone") is None
    assert value_of(store.get(b"behind")) == b"v"
    assert store.recovery.damaged == 1
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
