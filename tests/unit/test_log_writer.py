"""Lines come to the file soon, whole and in order, or are counted."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from support.waiting import wait_until
from volcache.log_writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file that is not there yet."""
    return tmp_path / "access.log"


@pytest.fixture
def file(path: Path) -> Iterator[LogWriter]:
    """Open it."""
    file = LogWriter(str(path))
    yield file
    file.close()


def test_line_comes_without_being_asked_for(file: LogWriter, path: Path) -> None:
    """Who looks at the file sees what happened, also when nothing more happens."""
    file.add("a line\n")
    wait_until(lambda: path.read_text() == "a line\n", "the line")


def test_close_writes_everything_in_order(path: Path) -> None:
    """The end loses nothing, and what was there before stays."""
    path.write_text("before\n")
    file = LogWriter(str(path))
    lines = [f"{number}\n" for number in range(10_000)]
    for line in lines:
        file.add(line)
    file.close()
    assert path.read_text() == "before\n" + "".join(lines)


def test_writer_that_takes_while_lines_are_added_loses_none(path: Path) -> None:
    """Adding and taking need no lock."""
    file = LogWriter(str(path))
    lines = [f"{number}\n" for number in range(50_000)]
    for line in lines:
        file.add(line)
        file.flush()
    file.close()
    assert path.read_text() == "".join(lines)


def test_moved_file_is_followed_by_a_new_one(file: LogWriter, path: Path) -> None:
    """What logrotate does: nothing is lost, nothing is written twice."""
    file.add("one\n")
    wait_until(lambda: path.read_text() == "one\n", "the first line")
    moved = path.rename(path.with_suffix(".1"))
    file.flush()
    wait_until(path.exists, "the new file")
    file.add("two\n")
    wait_until(lambda: path.read_text() == "two\n", "the second line")
    assert moved.read_text() == "one\n"


def test_emptied_file_is_gone_on_with(file: LogWriter, path: Path) -> None:
    """`copytruncate` works, too: a line goes to the end, wherever that is."""
    file.add("one\n")
    wait_until(lambda: path.read_text() == "one\n", "the first line")
    os.truncate(path, 0)
    file.add("two\n")
    wait_until(lambda: path.read_text() == "two\n", "the second line")


def test_lines_wait_until_the_folder_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be written is tried again, and said a few times only."""
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogWriter(str(folder / "log"))
    folder.rename(tmp_path / "moved")
    file.add("one\n")
    file.flush()
    wait_until(lambda: caplog.messages, "the complaint")
    assert caplog.messages[0].startswith("access.failed count=1 error=")
    folder.mkdir()
    file.close()
    assert (folder / "log").read_text() == "one\n"


def test_disk_that_refuses_half_a_line_gets_the_rest_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves no broken line when there is room again."""
    real = os.write
    refuses = threading.Event()
    refused = threading.Event()
    refuses.set()

    def write(fd: int, data: bytes) -> int:
        if refuses.is_set() and not refused.is_set():
            refused.set()
            return real(fd, data[:3])
        if refuses.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    file = LogWriter(str(path))
    file.add("one line\n")
    file.flush()
    wait_until(lambda: path.read_text() == "one", "the beginning")
    file.add("another\n")
    refuses.clear()
    file.close()
    assert path.read_text() == "one line\nanother\n"


def test_disk_that_hangs_costs_lines_and_no_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only so much is kept; how many lines there was no room for is said afterwards."""
    real = os.write
    hangs, goes_on = threading.Event(), threading.Event()

    def write(fd: int, data: bytes) -> int:
        hangs.set()
        goes_on.wait(20)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    file = LogWriter(str(path), kept_max=20)
    file.add("0123456789\n")
    file.flush()
    assert hangs.wait(20)
    for _ in range(5):
        file.add("abcdefghi\n")
    goes_on.set()
    file.close()
    assert path.read_text() == "0123456789\nabcdefghi\n"
    assert caplog.messages == ["access.left_out lines=4"]


def test_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    """A start with a wrong name fails before anything is served."""
    with pytest.raises(IsADirectoryError):
        LogWriter(str(tmp_path))
