"""The speed of a check is measured on stores without damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.extra import check_speed
from bench.extra.script import ScriptError
from support.damage import fill, flip


@pytest.mark.slow
def test_a_cold_and_a_warm_store_have_figures_and_no_file_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One row for each."""
    arguments = ["--megabytes", "1", "--rounds", "1", "--sizes", "1024"]
    arguments += ["--directory", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["check_speed.py", *arguments])
    check_speed.main()
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| 1024 bytes, from the disk",
        "| 1024 bytes, in memory",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_has_no_figures(tmp_path: Path) -> None:
    """A check that finds damage takes another path."""
    fill(tmp_path / "store", records=20)
    check_speed.check_all(tmp_path / "store")
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    flip(tmp_path / "store" / "data" / "0", 100, dice)
    with pytest.raises(ScriptError, match="damaged data/0 offset 64"):
        check_speed.check_all(tmp_path / "store")
