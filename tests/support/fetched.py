"""Programs that tools/setup.sh takes out of Debian's packages, without installing them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"


def fetched_program(name: str) -> str:
    """Return the path of a program; skip the test when it could not be fetched."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:{CACHE}")
    if found is None:
        pytest.skip(f"there is no {name}; tools/setup.sh says why")
    return found
