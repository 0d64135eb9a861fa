"""What the tests of the memcached protocol begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.memcache_talk import Talk


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    """A client of a server without tokens."""
    with Talk(tmp_path) as opened:
        yield opened
