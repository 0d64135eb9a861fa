"""`volcache` on the command line: in this process, or in one with a broken output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from support.process import SOURCE, settings_environment

VOLCACHE: Final = "import sys; from volcache.cli.main import main; sys.exit(main())"


class Done(NamedTuple):
    """What a command has printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of its output."""
        return self.out.splitlines()


# Runs a command in this process; the arguments may be paths.
Run = Callable[..., Done]
Screens = Callable[..., list[str]]  # What was shown, one after the other.


def run_unheard(
    folder: Path,
    *argv: str,
    unbuffered: bool = False,
    is_full: bool = False,
) -> tuple[int, str]:
    """
    Run a command whose output cannot be written.

    Args:
        folder: Its working directory.
        argv: Its arguments.
        unbuffered: Write each line by itself, not all at the end.
        is_full: The output is a full disk; else a pipe whose reader has closed it.

    Returns:
        Its exit code and its error output.
    """
    if is_full:
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, *(["-u"] if unbuffered else []), "-c", VOLCACHE, *argv],
            cwd=folder,
            env={"PYTHONPATH": str(SOURCE), "VOLCACHE_MAX_VALUE_SIZE": "8000"},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


def run_volcache(
    *argv: str, data: bytes = b"", folder: str | Path | None = None, **settings: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a process of its own, with settings in its environment."""
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-c", VOLCACHE, *argv],
        env=path | settings_environment(settings),
        cwd=folder,
        input=data,
        capture_output=True,
        check=False,
        timeout=60,
    )
