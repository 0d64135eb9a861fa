"""The counters of a store."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from support.stores import (
    UnsyncedFileSystem,
    fill_volume,
    open_store,
    reopen,
    value_of,
)
from support.tables import each_row
from volcache.store.stats import StoreStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest

    from volcache.store.stats import ErrorKind


class NoRoomForIndexFiles(UnsyncedFileSystem):
    """Refuses to write and to create index files while `is_full`."""

    def __init__(self) -> None:
        """Start with disk space."""
        self.is_full = False
        self._index_fds: set[int] = set()

    def open(self, path: str, *, create: bool) -> int:
        """Open a file, if there is disk space."""
        is_index = "/index/" in path
        if is_index and create and self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fd = super().open(path, create=create)
        if is_index:
            self._index_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close; the next file may get the same descriptor."""
        self._index_fds.discard(fd)
        super().close(fd)

    def pwritev(  # type: ignore[override]
        self, fd: int, buffers: Sequence[bytes], offset: int
    ) -> int:
        """Write, if there is disk space."""
        if self.is_full and fd in self._index_fds:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwritev(fd, buffers, offset)


def test_each_rotation_and_each_sync_is_timed(tmp_path: Path) -> None:
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


def test_failed_writes_of_index_files_in_a_rotation_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For the old and the new active volume; no value is lost."""
    fs = NoRoomForIndexFiles()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"v")
    fs.is_full = True
    fill_volume(store)
    assert store.stats.index_errors == 2
    assert "index.failed count=1 volume=0" in caplog.text
    assert "index.failed count=2 volume=1" in caplog.text

    fs.is_full = False
    store.close()
    store = open_store(tmp_path)
    assert value_of(store.get(b"k")) == b"v"
    store.close()


def test_failed_writes_of_index_files_at_startup_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each volume; no value is lost."""
    fs = NoRoomForIndexFiles()
    store = open_store(tmp_path, fs=fs)
    store.put(b"k", b"v")
    fs.is_full = True
    fill_volume(store)
    after = NoRoomForIndexFiles()
    after.is_full = True
    store = reopen(store, tmp_path, fs=after)
    assert store.stats.index_errors == 2
    assert "index.failed count=1 volume=0" in caplog.text
    assert "index.failed count=2 volume=1" in caplog.text
    assert value_of(store.get(b"k")) == b"v"
    store.close()


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
def test_last_error_of_each_kind_is_kept(
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
