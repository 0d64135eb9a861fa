"""A program whose standard output is a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from support.process import SOURCE

if TYPE_CHECKING:
    from pathlib import Path

VOLCACHE: Final = "import sys; from volcache.cli.main import main; sys.exit(main())"


def run_unheard(
    folder: Path, *argv: str, program: str = VOLCACHE, unbuffered: bool = False
) -> tuple[int, str]:
    """
    Run a program; the reader of its output has closed the pipe before it starts.

    Args:
        folder: Its working directory.
        argv: Its arguments.
        program: Python code.
        unbuffered: Write each line by itself, not all at the end.

    Returns:
        Its exit code and its error output.
    """
    reader, writer = os.pipe()
    os.close(reader)
    environ = {"PYTHONPATH": str(SOURCE), "VOLCACHE_MAX_VALUE_SIZE": "8000"}
    try:
        done = subprocess.run(
            [sys.executable, *(["-u"] if unbuffered else []), "-c", program, *argv],
            cwd=folder,
            env=environ,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr
