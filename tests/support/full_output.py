"""A command whose output goes to a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.process import SOURCE
from support.unheard import VOLCACHE


def run_with_full_output(
    folder: Path, *argv: str, unbuffered: bool = False
) -> tuple[int, str]:
    """
    Run `volcache` with /dev/full as standard output.

    Args:
        folder: The working directory.
        argv: The arguments.
        unbuffered: Each line is written by itself; otherwise all are at the end.

    Returns:
        The exit code and the text on standard error.
    """
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, *(["-u"] if unbuffered else []), "-c", VOLCACHE, *argv],
            cwd=folder,
            env={"PYTHONPATH": str(SOURCE), "VOLCACHE_MAX_VALUE_SIZE": "8000"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
        )
    return done.returncode, done.stderr
