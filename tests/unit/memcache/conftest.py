"""What the tests of the memcached protocol begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.memcache_talk import NativeTalk, Talk


@pytest.fixture(params=[Talk, NativeTalk], ids=["python", "native"])
def talk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Talk]:
    """A client of a server without tokens; commands in Python alone, and in C first."""
    with request.param(tmp_path) as opened:
        yield opened
