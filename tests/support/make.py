"""Runs make with stand-ins for what it calls."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.program import Ended, ended

MAKEFILE = Path(__file__).parents[2] / "Makefile"
# In place of Python: prints the settings and the arguments.
PRINT = """#!/bin/sh
env | grep ^VOLCACHE_ | sort
echo "$@"
"""


def make(folder: Path, *words: str, **environ: str) -> Ended:
    """Run make with stand-ins for the installation and for Python and honcho."""
    for name, text in (
        ("tools/setup.sh", "#!/bin/sh\n"),
        (".venv/bin/python", PRINT),
        (".venv/bin/honcho", PRINT),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(MAKEFILE, folder)
    environ.setdefault("PATH", os.environ["PATH"])
    return ended(["make", "--no-print-directory", *words], environ, folder)
