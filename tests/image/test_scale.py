"""One number decides how many instances there are."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from scale import FILES, TARGETS
from support.program import Ended, ended
from support.tables import rows

ROOT = Path(__file__).parents[2]
SCRIPT = Path("tools") / "scale.py"


def run(folder: Path, *words: str) -> Ended:
    """Run the script of a copy of the project."""
    return ended([sys.executable, folder / SCRIPT, *words])


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Path:
    """Return a folder with the files that the script rewrites."""
    for name in (*FILES, TARGETS, str(SCRIPT)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_files_are_those_of_three_instances(project: Path) -> None:
    """Also after they were those of more and of fewer."""
    before = {path: (project / path).read_text() for path in (*FILES, TARGETS)}
    for number in ("12", "1"):
        assert run(project, number).returncode == 0
        for path, text in before.items():
            assert (project / path).read_text() != text
    assert run(project, "3").returncode == 0
    assert {path: (project / path).read_text() for path in before} == before


@rows("", "compose", "0", "101", "+5", "x 3", "3 4")
def test_what_is_not_allowed_changes_nothing(words: str) -> None:
    """The answer says what is."""
    done = run(ROOT, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: tools/scale.py 1..100\n"
