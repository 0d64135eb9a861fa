"""log_writer.py: lines are written soon, whole and in order, or are counted."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until
from volcache.log_writer import LogWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist."""
    return tmp_path / "access.log"


@pytest.fixture
def file(path: Path) -> Iterator[LogWriter]:
    """Open the file."""
    file = LogWriter(str(path))
    yield file
    file.close()


@pytest.mark.parametrize("flushes", [False, True])
def test_close_writes_all_lines_in_order(path: Path, *, flushes: bool) -> None:
    """After the existing content; adding and writing need no lock."""
    path.write_text("before\n")
    file = LogWriter(str(path))
    lines = [f"{number}\n" for number in range(20_000)]
    for line in lines:
        file.add(line)
        if flushes:
            file.flush()
    file.close()
    assert path.read_text() == "before\n" + "".join(lines)


class Interrupted(str):
    """A line during whose addition another thread adds one."""

    __slots__ = ("other",)
    other: threading.Thread

    def __len__(self) -> int:
        """Let the other thread go on, unless it waits for this one."""
        if not self.other.ident:
            self.other.start()
            self.other.join(0.1)
        return super().__len__()


def test_lines_of_several_threads_are_counted(path: Path) -> None:
    """The limit of the buffer depends on it."""
    file = LogWriter(str(path))
    line = Interrupted("one\n")
    line.other = threading.Thread(target=file.add, args=["other\n"])
    file.add(line)
    line.other.join()
    file.close()
    assert sorted(path.read_text().splitlines()) == ["one", "other"]
    assert file._added == path.stat().st_size


@pytest.mark.slow
def test_file_is_replaced_or_truncated(file: LogWriter, path: Path) -> None:
    """As logrotate does both: no line is lost or written twice."""
    file.add("one\n")
    wait_until(lambda: path.read_text() == "one\n", "the first line")
    moved = path.rename(path.with_suffix(".1"))
    file.flush()
    wait_until(path.exists, "the new file")
    file.add("two\n")
    wait_until(lambda: path.read_text() == "two\n", "the second line")
    assert moved.read_text() == "one\n"
    os.truncate(path, 0)
    file.add("three\n")
    wait_until(lambda: path.read_text() == "three\n", "the third line")


def test_lines_are_kept_until_the_directory_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The write is repeated; not every failure is logged."""
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


def test_partial_write_is_completed_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves no broken line once it has space."""
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


def test_disk_that_hangs_drops_lines_without_blocking(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The buffer is bounded; the number of dropped lines is logged afterwards."""
    real = os.write
    hangs, goes_on = threading.Event(), threading.Event()

    def write(fd: int, data: bytes) -> int:
        hangs.set()
        goes_on.wait(20)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    file = LogWriter(str(path), buffer_max=20)
    file.add("0123456789\n")
    file.flush()
    assert hangs.wait(20)
    for _ in range(5):
        file.add("abcdefghi\n")
    goes_on.set()
    file.close()
    assert path.read_text() == "0123456789\nabcdefghi\n"
    assert caplog.messages == ["access.left_out lines=4"]
