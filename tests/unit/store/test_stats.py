"""The counters of a store."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.histories import MOUNT_POINT
from support.simulated import SimulatedFileSystem
from support.stores import (
    fill_volume,
    open_store,
    value_of,
)
from support.tables import each_row
from volcache.store.stats import ErrorKind, StoreStats


def test_rotation_and_sync_are_timed(tmp_path: Path) -> None:
    """One duration each; a flush is a rotation."""
    store = open_store(tmp_path)
    fill_volume(store)
    fill_volume(store)
    store.flush()
    assert (store.stats.rotations, store.stats.rotating.count) == (3, 3)
    assert store.stats.rotating.total_ns > 0

    thread = threading.Thread(target=store.sync)
    thread.start()
    thread.join()
    assert store.stats.syncs.count == 1
    store.close()
    assert store.stats.syncs.count == 2


def test_refused_writes_of_index_files_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a rotation and at a start, once for each volume; no value is lost."""
    fs = SimulatedFileSystem()
    store = open_store(MOUNT_POINT, fs=fs)
    store.put(b"k", b"v")
    fs.failing_writes[f"{MOUNT_POINT}/index/"] = errno.EIO
    fill_volume(store)
    for is_restarted in (False, True):
        if is_restarted:
            failing = fs.failing_writes
            fs = fs.after_kill()
            fs.failing_writes = failing
            store = open_store(MOUNT_POINT, fs=fs)
        assert store.stats.index_errors == 2
        for line in ("count=1 volume=0", "count=2 volume=1"):
            assert f"index.failed {line}" in caplog.text
        caplog.clear()

    fs.failing_writes.clear()
    store.close()
    assert value_of(open_store(MOUNT_POINT, fs=fs.after_kill()).get(b"k")) == b"v"


@each_row(
    ("kind", "count"),
    [
        ("read", lambda stats, error: stats.count_read_error(error)),
        ("write", lambda stats, error: stats.count_write_error(error)),
        ("write", lambda stats, error: stats.count_rotation_error(error)),
        ("sync", lambda stats, error: stats.count_sync_error(error)),
        ("index", lambda stats, error: stats.count_index_error(error, volume=3)),
        ("damaged", lambda stats, error: stats.count_damaged(error)),
        ("damaged", lambda stats, error: stats.count_reclaim_damage(error)),
    ],
)
def test_count_error_keeps_the_last_of_its_kind(
    kind: ErrorKind, count: Callable[[StoreStats, Exception], None]
) -> None:
    """Its time and its text, on one line of limited length; not those before it."""
    stats = StoreStats(clock=iter([1_000_000_000, 2_500_000_000]).__next__)
    count(stats, OSError(errno.ENOSPC, "first"))
    count(stats, OSError(errno.EIO, "second\nline" + "x" * 1000))
    (found,) = stats.last_errors.items()
    assert found[0] == kind
    assert found[1].at == 2.5
    assert found[1].text.startswith("[Errno 5] second line")
    assert len(found[1].text) == 300
