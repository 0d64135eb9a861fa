"""The file system layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from volcache.store import files
from volcache.store.files import OsFileSystem, write_all

FS = OsFileSystem()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """Return the descriptor of an empty file."""
    made = FS.open(str(tmp_path / "file"), create=True)
    yield made
    FS.close(made)


def test_write_without_progress_is_an_error(fd: int) -> None:
    """The caller does not loop forever."""

    class FullFileSystem(OsFileSystem):
        pwritev = staticmethod(lambda *_: 0)

    with pytest.raises(OSError, match="wrote nothing of 10 bytes at offset 6"):
        write_all(FullFileSystem(), fd, b"0123456789", 6)


def test_allocate_takes_and_counts_space(tmp_path: Path, fd: int) -> None:
    """A hole takes none."""
    FS.truncate(fd, 1 << 20)
    assert FS.stat(fd).st_blocks == 0
    FS.allocate(fd, 1 << 20)

    assert FS.stat(fd).st_blocks >= 1 << 11
    assert FS.stat(fd).st_size == 1 << 20
    space = FS.space(str(tmp_path))
    assert 0 < space.free <= space.total
    assert not space.is_read_only


def test_allocate_where_not_supported_sets_the_length(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and a file that is longer stays as it is."""
    monkeypatch.setattr(files, "_fallocate", lambda: None)
    FS.allocate(fd, 1 << 20)
    FS.allocate(fd, 1 << 10)

    assert (FS.stat(fd).st_size, FS.stat(fd).st_blocks) == (1 << 20, 0)


def test_allocate_that_is_refused_is_an_error(fd: int) -> None:
    """With the number of the kernel."""
    with pytest.raises(OSError, match="Invalid argument"):
        FS.allocate(fd, 0)
