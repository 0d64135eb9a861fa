"""The files of a folder: order, special files, and a limit on what is read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from volcache.cli.tree import read_regular_file, walk
from volcache.errors import ValueTooLargeError

if TYPE_CHECKING:
    from pathlib import Path


def test_files_of_a_folder_come_before_its_folders(tmp_path: Path) -> None:
    """Each in the order of their names, with the size; folders are not yielded."""
    for name in ("b", "a/2", "a/1/x", "c", "d/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "empty").mkdir()
    for folder in (bytes(tmp_path), bytes(tmp_path) + b"/"):
        entries = list(walk(folder))
        paths = [b"b", b"c", b"a/2", b"a/1/x", b"d/1"]
        assert [(entry.path, entry.size, entry.why) for entry in entries] == [
            (path, len(path), "") for path in paths
        ]
        assert [entry.file for entry in entries] == [
            bytes(tmp_path) + b"/" + path for path in paths
        ]


def test_links_and_special_files_have_a_reason(tmp_path: Path) -> None:
    """A link to a folder is not followed, and a pipe is not opened."""
    (tmp_path / "folder").symlink_to("/")
    (tmp_path / "link").symlink_to("missing")
    os.mkfifo(tmp_path / "pipe")
    assert [(entry.path, entry.why) for entry in walk(bytes(tmp_path))] == [
        (b"folder", "is a symbolic link"),
        (b"link", "is a symbolic link"),
        (b"pipe", "is not a regular file"),
    ]


def test_missing_folder_is_one_entry_with_a_reason(tmp_path: Path) -> None:
    """No error is raised."""
    (entry,) = walk(bytes(tmp_path / "missing"))
    assert entry.path == b""
    assert entry.why == "cannot be read: No such file or directory"


def test_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """A larger one is refused with both numbers."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular_file(bytes(path), 5) == b"12345"
    with pytest.raises(ValueTooLargeError, match="5 bytes long; allowed are 0 to 4"):
        read_regular_file(bytes(path), 4)


def test_pipe_and_link_are_not_read(tmp_path: Path) -> None:
    """Also if they replaced the file after it was listed; nothing blocks."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="is not a regular file"):
        read_regular_file(bytes(tmp_path / "pipe"), 10)
    with pytest.raises(OSError, match="symbolic links"):
        read_regular_file(bytes(tmp_path / "link"), 10)
