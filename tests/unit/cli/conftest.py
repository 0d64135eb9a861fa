"""Fixtures for the tests of the command line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import volcache
from support.command_line import Done, Run, Screens
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
def screens(run: Run, monkeypatch: pytest.MonkeyPatch) -> Screens:
    """Return a function that runs a command on a terminal, and ends it by Ctrl-C."""

    def screens(*words: str, steps: Iterable[Callable[[], object]] = ()) -> list[str]:
        left = iter(steps)

        def sleep(_: float) -> None:
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        shown = io.StringIO()
        with monkeypatch.context() as patched:
            patched.setattr(shown, "isatty", lambda: True)
            patched.setattr(sys, "stdout", shown)
            patched.setattr("volcache.cli.screen.time.sleep", sleep)
            assert run(*words).code == 130
        begin, *texts = shown.getvalue().split("\x1b[H")
        assert begin == ""
        assert all(text.endswith("\x1b[K\n\x1b[J") for text in texts)
        return [text.removesuffix("\x1b[K\n\x1b[J") for text in texts]

    return screens


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
