"""`q` ends `volcache stats`, and the terminal is put back whatever ends it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from support.command_line import VOLCACHE
from support.process import SOURCE
from support.stats_server import StatsServer, empty_stats
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


@contextmanager
def shown(*argv: str) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Run a command in a terminal; yield it, our end and its end of the terminal."""
    ours, its = pty.openpty()
    os.set_blocking(ours, False)
    process = subprocess.Popen(
        [sys.executable, "-c", IN_FRONT, "-c", VOLCACHE, *argv],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        yield process, ours, its
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


def output(ours: int) -> Callable[[], bytes]:
    """Return a function that returns all that was shown so far."""
    read = bytearray()

    def so_far() -> bytes:
        with suppress(BlockingIOError):
            read.extend(os.read(ours, 1 << 16))
        return bytes(read)

    return so_far


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (b"q", 0),
        (b"\x03", 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGINT, 130),
    ],
)
def test_terminal_is_put_back_however_the_command_ends(
    end: bytes | signal.Signals, code: int
) -> None:
    """By a key or a signal; other keys do nothing."""
    with (
        StatsServer(empty_stats()) as server,
        shown("stats", server.url, "--interval", "600") as (process, ours, its),
    ):
        before = termios.tcgetattr(its)
        so_far = output(ours)
        wait_until(lambda: b"hot tier" in so_far(), "a report")
        wait_until(
            lambda: not termios.tcgetattr(its)[_LFLAG] & termios.ICANON, "the keyboard"
        )
        os.write(ours, b"x")
        wait_until(lambda: so_far().count(b"instance ") > 1, "the next report")
        if isinstance(end, bytes):
            os.write(ours, end)
        else:
            process.send_signal(end)
        assert process.wait(20) == code
        assert termios.tcgetattr(its) == before
        assert b"Traceback" not in so_far()


@pytest.mark.slow
def test_terminal_is_put_back_while_the_command_is_suspended() -> None:
    """By Ctrl-Z; when it continues, `q` ends it."""
    with (
        StatsServer(empty_stats()) as server,
        shown("stats", server.url) as (process, ours, its),
    ):
        before = termios.tcgetattr(its)
        so_far = output(ours)
        wait_until(
            lambda: so_far() and termios.tcgetattr(its) != before, "the keyboard"
        )
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: stopped(process.pid), "the stop")
        assert termios.tcgetattr(its) == before
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: termios.tcgetattr(its) != before, "the keyboard")
        os.write(ours, b"Q")
        assert process.wait(20) == 0
        assert termios.tcgetattr(its) == before


def stopped(pid: int) -> bool:
    """Whether a process is suspended."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] == "T"
