"""What several tests of the embedded cache need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.embedded import open_small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.embedded import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """Open a small cache."""
    with open_small(tmp_path / "cache") as opened:
        yield opened
