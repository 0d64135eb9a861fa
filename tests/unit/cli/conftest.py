"""Fixtures for the tests of the command line."""

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
    """Replace `volcache.wiring`; `serve` changes neither logging nor signals."""
    wiring = Wiring()
    monkeypatch.setitem(sys.modules, "volcache.wiring", wiring)
    monkeypatch.setattr(volcache, "wiring", wiring, raising=False)
    monkeypatch.setattr(serving, "setup_logging", lambda *_: None)
    monkeypatch.setattr(serving, "block_hangups", lambda: None)
    return wiring


@pytest.fixture(params=[False, True], ids=["buffered", "unbuffered"])
def unbuffered(request: pytest.FixtureRequest) -> bool:
    """Whether a command writes each line by itself, or all lines at its end."""
    return bool(request.param)
