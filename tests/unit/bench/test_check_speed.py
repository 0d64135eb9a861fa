"""The speed of a check beside a plain read: it runs, and is only of a whole store."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import check_speed
from boot import WorkerError
from support.damage import fill, flip

if TYPE_CHECKING:
    from pathlib import Path


def test_both_ways_have_figures(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the disk and in memory; nothing stays on the disk."""
    arguments = ["--megabytes", "1", "--rounds", "1", "--sizes", "1024"]
    arguments += ["--directory", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["check_speed.py", *arguments])
    assert check_speed.main() == 0
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| 1024 bytes, from the disk",
        "| 1024 bytes, in memory",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_finds_damage_is_no_figure(tmp_path: Path) -> None:
    """It would have taken another way."""
    fill(tmp_path / "store", records=20)
    check_speed.check_all(tmp_path / "store")
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    flip(tmp_path / "store" / "data" / "0", 100, dice)
    with pytest.raises(WorkerError, match="damaged data/0 offset 64"):
        check_speed.check_all(tmp_path / "store")
