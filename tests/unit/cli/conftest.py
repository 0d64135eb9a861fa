"""What tests of the command line begin with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import volcache
from support.wiring import Wiring
from volcache.cli import serve as serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def wiring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wiring]:
    """Put the stand-in where `serve` finds it; leave logging alone."""
    wiring = Wiring()
    monkeypatch.setitem(sys.modules, "volcache.wiring", wiring)
    monkeypatch.setattr(volcache, "wiring", wiring, raising=False)
    monkeypatch.setattr(serving, "setup_logging", lambda *_: None)
    return wiring
