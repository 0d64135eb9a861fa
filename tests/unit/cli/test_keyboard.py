"""`q` ends `volcache stats`, and the terminal is put back whatever ends it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from support.command_line import VOLCACHE
from support.process import SOURCE
from support.stats_server import StatsServer, empty_stats
from support.waiting import wait_until

_LFLAG = 3
# Makes the terminal that of the process, and lets Ctrl-C end it, as a shell does.
IN_FRONT = """
import fcntl, os, signal, sys, termios
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Shown:
    """A command in a terminal."""

    def __init__(self, *words: str) -> None:
        """Start it."""
        self._ours, self._its = pty.openpty()
        os.set_blocking(self._ours, False)
        self.before = self.mode()
        self.text = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_FRONT, "-c", VOLCACHE, *words],
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )

    def mode(self) -> list[Any]:
        """Return the attributes of the terminal."""
        return termios.tcgetattr(self._its)

    def has(self, text: bytes, times: int = 1) -> bool:
        """Whether this was shown so often."""
        with suppress(BlockingIOError):
            self.text += os.read(self._ours, 1 << 16)
        return self.text.count(text) >= times

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._ours, key)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Show the numbers of an instance; the keyboard is read."""
    with (
        StatsServer(empty_stats()) as server,
        closing(Shown("stats", server.url, "--interval", "600")) as shown,
    ):
        wait_until(lambda: shown.has(b"hot tier"), "a report")
        wait_until(lambda: not shown.mode()[_LFLAG] & termios.ICANON, "the keyboard")
        yield shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        *((b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)),
        (signal.SIGINT, 130),
    ],
)
def test_terminal_is_put_back_however_the_command_ends(
    shown: Shown, end: bytes | signal.Signals, code: int
) -> None:
    """By a key or a signal; other keys do nothing. Also while it is suspended by Ctrl-Z."""
    shown.press(b"x")
    wait_until(lambda: shown.has(b"instance ", 2), "the next report")
    stat = Path(f"/proc/{shown.process.pid}/stat")
    shown.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "a stop")
    assert shown.mode() == shown.before
    shown.process.send_signal(signal.SIGCONT)
    wait_until(lambda: shown.mode() != shown.before, "the keyboard")
    if isinstance(end, bytes):
        shown.press(end)
    else:
        shown.process.send_signal(end)
    assert shown.process.wait(20) == code
    assert shown.mode() == shown.before
    assert not shown.has(b"Traceback")
