"""The files that git has of this tree, and copies of them: what a clone would have."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import copy2
from typing import Final

import pytest

from support.program import ended

ROOT: Final = Path(__file__).resolve().parents[2]


def tracked() -> list[str]:
    """Return all files that git has; with those that will be added."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = ended(listed, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return [path for path in done.stdout.split("\0") if (ROOT / path).is_file()]


def copied(folder: Path) -> Path:
    """Copy what git has, and nothing that was built of it; return the folder."""
    for path in tracked():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        copy2(ROOT / path, folder / path)
    return folder


def committed(folder: Path) -> Path:
    """Make a repository of a folder, with all its files; or commit what has changed."""
    who = ["-c", "user.name=name", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder
