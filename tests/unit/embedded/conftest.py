"""What several tests of the embedded cache need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.embedded import Cache, open_small


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """Open a small cache."""
    with open_small(tmp_path / "cache") as opened:
        yield opened
