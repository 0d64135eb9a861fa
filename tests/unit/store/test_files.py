"""The file system layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from volcache.store import files
from volcache.store.files import OsFileSystem, write_all


def test_a_write_without_progress_is_an_error(tmp_path: Path) -> None:
    """The caller does not loop forever."""

    class FullFileSystem(OsFileSystem):
        pwritev = staticmethod(lambda *_: 0)

    fs = FullFileSystem()
    fd = fs.open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match="wrote nothing of 10 bytes at offset 6"):
        write_all(fs, fd, b"0123456789", 6)
    fs.close(fd)


def test_allocated_space_is_taken_and_counted(tmp_path: Path) -> None:
    """A hole takes none."""
    fs = OsFileSystem()
    path = str(tmp_path / "file")
    fd = fs.open(path, create=True)
    fs.truncate(fd, 1 << 20)
    assert fs.stat(fd).st_blocks == 0
    fs.allocate(fd, 1 << 20)

    assert fs.stat(path).st_blocks >= 1 << 11
    assert fs.stat(fd).st_size == 1 << 20
    space = fs.space(path)
    assert 0 < space.free <= space.total
    assert not space.is_read_only
    fs.close(fd)


def test_a_file_system_that_cannot_allocate_sets_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and a file that is longer stays as it is."""
    fs = OsFileSystem()
    fd = fs.open(str(tmp_path / "file"), create=True)
    monkeypatch.setattr(files, "_fallocate", lambda: None)
    fs.allocate(fd, 1 << 20)
    fs.allocate(fd, 1 << 10)

    assert (fs.stat(fd).st_size, fs.stat(fd).st_blocks) == (1 << 20, 0)
    fs.close(fd)


def test_an_allocation_that_is_refused_is_an_error(tmp_path: Path) -> None:
    """With the number of the kernel."""
    fs = OsFileSystem()
    fd = fs.open(str(tmp_path / "file"), create=True)
    with pytest.raises(OSError, match="Invalid argument"):
        fs.allocate(fd, 0)
    fs.close(fd)
