"""Records without an index entry, found by a scan: torn tails, gaps, stale records."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from support.damage import overwrite
from support.stores import kill, open_store, reopen, value_of

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
    # Zeros at the end of the identity (volume id, sometimes store id) are in the file
    # without being written.
    identity = data[record.offset :][:18].rstrip(b"\0")
    for length in range(record.size):
        end = record.offset + length
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
    overwrite(tmp_path / "data" / "0", record.offset + record.size - 1, b"y")
    store = open_store(tmp_path)
    assert store.get(b"torn") is None
    assert store.put(b"next", b"v").offset == record.offset
    store = reopen(store, tmp_path)

    assert value_of(store.get(b"next")) == b"v"
    assert store.get(b"torn") is None
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


def test_a_lost_header_in_the_middle_is_a_gap(tmp_path: Path) -> None:
    """The scan skips to the next record of this volume."""
    store = open_store(tmp_path)
    gap = store.put(b"gone", b"v" * 5000)
    store.put(b"behind", b"v")
    kill(store)
    overwrite(tmp_path / "data" / "0", gap.offset, bytes(64))
    store = open_store(tmp_path)

    assert store.get(b"gone") is None
    assert value_of(store.get(b"behind")) == b"v"
    assert store.recovery.damaged == 1
    store.close()


def test_a_copy_of_a_record_inside_a_value_is_ignored(tmp_path: Path) -> None:
    """Also if the record that contains it is damaged."""
    store = open_store(tmp_path)
    store.put(b"k", b"secret old value")
    image = (tmp_path / "data" / "0").read_bytes()[64:2000]
    store.put(b"k", b"new")
    holder = store.put(b"backup", image)
    store.put(b"behind", b"v")
    kill(store)
    overwrite(tmp_path / "data" / "0", holder.offset, bytes(20))
    store = open_store(tmp_path)

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
