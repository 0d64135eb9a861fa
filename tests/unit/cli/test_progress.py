"""The progress bar on a terminal, and without one."""

from __future__ import annotations

import io
import sys

import pytest

from volcache.cli.progress import above, progress


def test_line_above_a_bar_clears_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole bar is cleared; without a total the number so far is shown."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)
    with progress(20_002, "import", "files") as bar:
        bar.update(10_001)
        bar.refresh()
        *_, text = shown.getvalue().split("\r")
        assert text.startswith("import:  50%")
        assert "10001/20002 files, " in text
        assert text.endswith(" left")
        above(bar, lambda line: print(line, end="", file=shown))("damaged")
        *_, cleared, text = shown.getvalue().split("\r")
        assert (cleared.strip(), text) == ("", "damaged")
    with progress(None, "count", "files") as bar:
        bar.update(1234)
        bar.refresh()
        assert shown.getvalue().rstrip().endswith("\rcount: 1234 files")


def test_progress_without_a_terminal_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log has no bars in it."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with progress(10, "check") as bar:
        bar.update(5)
    assert shown.getvalue() == ""


def test_progress_without_tqdm_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `tools` has it; a tool works without."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(shown, "isatty", lambda: True)
    with progress(10, "check") as bar:
        bar.update(5 - bar.n)
        above(bar, lambda line: print(line, end="", file=shown))("damaged")
    assert shown.getvalue() == "damaged"
