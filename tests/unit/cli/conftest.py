"""Fixtures for the tests of the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import volcache
from support.command_line import Done, Run
from support.wiring import Wiring
from volcache.cli import main as cli
from volcache.cli import serve as serving


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process."""

    def run(*words: object) -> Done:
        code = cli.main([str(word) for word in words])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the place of a mount point."""
    return tmp_path / "store"


@pytest.fixture
def wiring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wiring]:
    """Replace `volcache.wiring`; `serve` changes neither logging nor signals."""
    wiring = Wiring()
    monkeypatch.setitem(sys.modules, "volcache.wiring", wiring)
    monkeypatch.setattr(volcache, "wiring", wiring, raising=False)
    monkeypatch.setattr(serving, "setup_logging", lambda *_: None)
    monkeypatch.setattr(serving, "block_hangups", lambda: None)
    return wiring
