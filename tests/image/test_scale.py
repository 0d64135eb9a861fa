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
    for names in (*FILES.values(), [TARGETS, str(SCRIPT)]):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_files_are_those_of_three_instances(project: Path, name: str) -> None:
    """Also after they were those of more and of fewer."""
    paths = [*FILES[name], *([TARGETS] if name == "compose" else [])]
    others = {p for names in FILES.values() for p in names} - {*paths}
    before = {path: (project / path).read_text() for path in (*paths, *others)}
    for number in ("12", "1"):
        assert run(project, name, number).returncode == 0
        for path in paths:
            assert (project / path).read_text() != before[path]
    assert run(project, name, "3").returncode == 0
    assert {path: (project / path).read_text() for path in before} == before


@rows("", "compose", "compose 0", "compose 101", "compose +5", "x 3", "compose 3 4")
def test_what_is_not_allowed_changes_nothing(words: str) -> None:
    """The answer says what is."""
    done = run(ROOT, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: tools/scale.py compose|kubernetes 1..100\n"
