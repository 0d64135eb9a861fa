"""The progress bar on terminals of different widths."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from support.waiting import wait_until
from volcache.cli.progress import above, progress


@contextmanager
def terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """Make standard error a terminal; yield a function that reads it."""
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    os.set_blocking(ours, False)
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, monkeypatch.context() as m:
        m.setattr(sys, "stderr", stream)
        m.setenv("COLUMNS", "200")  # Ignored: the terminal has its own width.
        yield partial(_read, ours)
    os.close(ours)


def _read(fd: int, awaited: str) -> str:
    """Return the output on the terminal, up to the awaited text."""
    shown: list[str] = []

    def is_there() -> bool:
        with suppress(BlockingIOError):
            shown.append(os.read(fd, 65536).decode())
        return awaited in "".join(shown)

    wait_until(is_there, f"{awaited!r} on the terminal")
    return "".join(shown)


def test_line_replaces_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole bar is cleared; without a total the number so far is shown."""

    def write(line: str) -> None:
        sys.stderr.write(line)
        sys.stderr.flush()

    with terminal(80, monkeypatch) as read, progress(10, "check") as bar:
        above(bar, write)("damaged")
        shown = read("damaged")
        assert shown.endswith("\rdamaged")
        assert shown.split("\r")[-2].strip() == ""
    with terminal(40, monkeypatch) as read, progress(None, "count", "files") as bar:
        bar.update(1234)
        bar.refresh()
        assert read("1234").rstrip().endswith("\rcount: 1234 files")


def test_without_a_terminal_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has no bars in it."""
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress(10, "check") as bar:
        bar.update(5)
    assert log.getvalue() == ""
