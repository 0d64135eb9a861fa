"""A mount point that cannot be opened is not changed, and the error has the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores import open_store, signed
from volcache.errors import (
    ForeignDirectoryError,
    FormatVersionError,
    MountPointError,
    StoreLockedError,
)


@pytest.mark.parametrize(("lost", "holder"), [("", r"\d+"), ("LOCK", "unknown")])
def test_open_directory_in_use_is_refused_with_the_process_id(
    tmp_path: Path, lost: str, holder: str
) -> None:
    """
    The first process is not affected.

    The directory is locked also if LOCK was removed by hand.
    """
    store = open_store(tmp_path)
    if lost:
        (tmp_path / lost).unlink()

    with pytest.raises(StoreLockedError, match=f"process id {holder}"):
        open_store(tmp_path)
    store.put(b"k", b"v")
    store.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thesis.txt", "it contains 'thesis.txt'"),
        ("data/0", "the files in data/ are not volumes"),
        ("data/²", "it contains 'data/²'"),
        ("data/notes.txt", "it contains 'data/notes.txt'"),
    ],
)
def test_open_foreign_directory_does_not_touch_it(
    tmp_path: Path, name: str, text: str
) -> None:
    """A data folder is recognised as foreign by its contents."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"somebody's data")

    with pytest.raises(ForeignDirectoryError, match=text):
        open_store(tmp_path)
    assert not (tmp_path / "META.txt").exists()
    assert path.read_bytes() == b"somebody's data"


def test_open_newer_format_is_refused(tmp_path: Path) -> None:
    """META.txt of a newer version is not read."""
    store = open_store(tmp_path)
    store.close()
    path = tmp_path / "META.txt"
    text = path.read_bytes().replace(b"format 2", b"format 3")
    path.write_bytes(signed(text.partition(b"checksum")[0]))

    with pytest.raises(FormatVersionError, match=r"META\.txt has format 3"):
        open_store(tmp_path)


def test_open_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    """The error names the path and what to check."""
    (tmp_path / "file").touch()

    with pytest.raises(MountPointError, match="cannot be used"):
        open_store(tmp_path / "file")
