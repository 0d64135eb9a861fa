"""What several tests of the embedded cache need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.embedded import Cache, open_small


@pytest.fixture(params=["owner", "guest"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    """Open a small cache, which owns its directory or is a guest there."""
    with ExitStack() as stack:
        if request.param == "guest":
            stack.enter_context(open_small(tmp_path / "cache"))
        yield stack.enter_context(open_small(tmp_path / "cache"))
