"""front: without its extension, or with that of another version, one line says so."""

from __future__ import annotations

import os
import sys

import pytest

from support.program import ended

HIDDEN = "sys.modules['volcache.front._native'] = None"
# A capsule with another name.
OTHER = (
    "from datetime import datetime_CAPI; from volcache.store._core import _native;"
    "_native.functions = datetime_CAPI"
)
SERVE = "from volcache.cli.main import main; sys.exit(main(['serve']))"


@pytest.mark.slow
def test_without_the_front_one_line_says_how_to_get_it() -> None:
    """With the reason."""
    for before, reason in (
        (HIDDEN, "import of volcache.front._native halted"),
        (OTHER, "the front was built for another version of the core"),
    ):
        done = ended(
            [sys.executable, "-c", f"import sys; {before}; {SERVE}"],
            {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert reason in line
        assert "pip install --force-reinstall --no-cache-dir volcache" in line
