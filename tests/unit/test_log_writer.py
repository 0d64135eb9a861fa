"""log_writer.py: lines are written soon, whole and in order, or are counted."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until
from volcache.front import AccessLog
from volcache.log_writer import LogWriter


class Added:
    """Lines that a test adds."""

    dropped = 0

    def __init__(self) -> None:
        """Have none."""
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """Add one."""
        self._lines.append(line)

    def take(self) -> bytes:
        """Return those since the last call."""
        count = len(self._lines)
        taken = "".join(self._lines[:count])
        del self._lines[:count]
        return taken.encode()


@pytest.fixture
def lines() -> Added:
    """Return lines to be written."""
    return Added()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist."""
    return tmp_path / "access.log"


@pytest.fixture
def file(path: Path, lines: Added) -> Iterator[LogWriter]:
    """Open the file."""
    file = LogWriter(str(path), lines)
    yield file
    file.close()


@pytest.mark.parametrize("flushes", [False, True])
def test_close_writes_all_lines_in_order(
    path: Path, lines: Added, *, flushes: bool
) -> None:
    """After the existing content."""
    path.write_text("before\n")
    file = LogWriter(str(path), lines)
    texts = [f"{number}\n" for number in range(20_000)]
    for text in texts:
        lines.add(text)
        if flushes:
            file.flush()
    file.close()
    assert path.read_text() == "before\n" + "".join(texts)


@pytest.mark.slow
def test_file_is_replaced_or_truncated(
    file: LogWriter, path: Path, lines: Added
) -> None:
    """As logrotate does both: no line is lost or written twice."""
    lines.add("one\n")
    wait_until(lambda: path.read_text() == "one\n", "the first line")
    moved = path.rename(path.with_suffix(".1"))
    file.flush()
    wait_until(path.exists, "the new file")
    lines.add("two\n")
    wait_until(lambda: path.read_text() == "two\n", "the second line")
    assert moved.read_text() == "one\n"
    os.truncate(path, 0)
    lines.add("three\n")
    wait_until(lambda: path.read_text() == "three\n", "the third line")


def test_lines_are_kept_until_the_directory_is_back(
    tmp_path: Path, lines: Added, caplog: pytest.LogCaptureFixture
) -> None:
    """The write is repeated; not every failure is logged."""
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogWriter(str(folder / "log"), lines)
    folder.rename(tmp_path / "moved")
    lines.add("one\n")
    file.flush()
    wait_until(lambda: caplog.messages, "the complaint")
    assert caplog.messages[0].startswith("access.failed count=1 error=")
    folder.mkdir()
    file.close()
    assert (folder / "log").read_text() == "one\n"


def test_partial_write_is_completed_later(
    path: Path, lines: Added, monkeypatch: pytest.MonkeyPatch
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
    file = LogWriter(str(path), lines)
    lines.add("one line\n")
    file.flush()
    wait_until(lambda: path.read_text() == "one", "the beginning")
    lines.add("another\n")
    refuses.clear()
    file.close()
    assert path.read_text() == "one line\nanother\n"


def test_lines_behind_a_disk_that_hangs_stay_in_their_buffer(
    path: Path,
    lines: Added,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is dropped meanwhile, as the buffer is bounded, is logged afterwards."""
    real = os.write
    hangs, goes_on = threading.Event(), threading.Event()

    def write(fd: int, data: bytes) -> int:
        hangs.set()
        goes_on.wait(20)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    file = LogWriter(str(path), lines)
    lines.add("0123456789\n")
    file.flush()
    assert hangs.wait(20)
    lines.add("abcdefghi\n")
    lines.dropped = 4
    assert lines._lines == ["abcdefghi\n"]
    goes_on.set()
    file.close()
    assert path.read_text() == "0123456789\nabcdefghi\n"
    assert caplog.messages == ["access.left_out lines=4"]


def test_access_log_without_requests_has_no_lines() -> None:
    """Its lines are those of log.c, which has tests of its own."""
    log = AccessLog(as_json=True)
    assert (log.take(), log.dropped) == (b"", 0)
