"""Appending to a volume: which bytes are written, and when index entries are."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores import WatchedFileSystem, open_store


def recorded() -> tuple[WatchedFileSystem, list[tuple[int, int]]]:
    """Return a disk, and offset and length of each write to it."""
    fs, writes = WatchedFileSystem(), list[tuple[int, int]]()
    fs.before_write = lambda _, data, offset: writes.append((offset, len(data)))
    return fs, writes


def test_put_writes_index_entries_in_batches(tmp_path: Path) -> None:
    """So that a put is one write; the progress in LOCK is written with them."""
    fs, writes = recorded()
    store = open_store(tmp_path, volume_size=1 << 20, fs=fs)
    writes.clear()
    for number in range(1024):
        store.put(b"%d" % number, b"v")

    assert len(writes) == 1024 + 2 * 2
    store.close()


@pytest.mark.parametrize(("mode", "unit"), [("always", 4096), ("none", 2**18)])
def test_put_writes_a_page_first_as_a_whole(
    tmp_path: Path, mode: str, unit: int
) -> None:
    """
    For part of a page that is not in memory, the kernel would read it first.

    Without syncs, many pages are written at a time.
    """
    size, (fs, writes) = 10 * unit + 1000, recorded()
    store = open_store(tmp_path, volume_size=size, fs=fs, sync_mode=mode)
    store.put(b"first", b"")
    writes.clear()
    while store.stats.rotations == 0:
        store.put(b"%d" % len(writes), bytes(1 + len(writes) * 97 % (unit + 1000)))

    ends = [offset + written for offset, written in writes if offset > 64]
    assert max(ends) <= size
    present = unit  # The first put has written so far.
    for offset, written in writes:
        if offset <= 64:
            break  # The next volume.
        end = offset + written
        assert offset <= present
        assert end <= present or end in {size, end // unit * unit}
        present = max(present, end)
    assert present > 8 * unit
    store.close()
