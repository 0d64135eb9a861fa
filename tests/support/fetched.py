"""Programs that tools/setup.sh extracts from Debian packages into .cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"


def fetched_program(name: str) -> str:
    """Return the path of a program; skip the test if there is none."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:{CACHE}")
    if found is None:
        pytest.skip(f"{name} is missing; the output of tools/setup.sh has the reason")
    return found
