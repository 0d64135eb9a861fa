"""Packages of Debian are fetched once, one at a time, and again after an interruption."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from debian import Packages, made_once

# In place of apt-get. As it does, an interrupted download leaves a part.
APT = """#!/bin/sh
case "$*" in
    *indextargets*) echo http://host/debian/; exit ;;
    *" update") step=update ;;
    *) step=source; touch part.orig.tar.gz ;;
esac
echo $step >>{folder}/steps
[ "$(cat {folder}/broken)" != $step ] || exit 1
[ $step = update ] || mv part.orig.tar.gz whole.orig.tar.gz
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a stand-in for apt-get in the path; return the file of what it was asked for."""
    program = tmp_path / "apt-get"
    program.write_text(APT.format(folder=tmp_path))
    program.chmod(0o755)
    (tmp_path / "broken").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "steps"


def test_source_by_two_threads_at_once_is_fetched_once(steps: Path) -> None:
    """Two calls of apt with one folder would delete the files of each other."""
    start = Barrier(2)

    def fetch(_: int) -> Path:
        start.wait()
        return Packages(steps.parent, "suite", "amd64").source("libev")

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fetch, range(2))
    assert first == second
    assert first.is_file()
    assert steps.read_text().split() == ["update", "source"]


def test_source_after_an_interruption_is_fetched_again(steps: Path) -> None:
    """Each step; what is complete is kept."""
    packages = Packages(steps.parent, "suite", "amd64")
    for step in ("update", "source"):
        (steps.parent / "broken").write_text(step)
        with pytest.raises(SystemExit, match=f"{step}.*, of suite-amd64"):
            packages.source("libev")
    (steps.parent / "broken").write_text("")
    assert packages.source("libev").name == "whole.orig.tar.gz"
    expected = ["update", "update", "source", "source"]
    assert steps.read_text().split() == expected
    packages.source("libev")
    assert steps.read_text().split() == expected


def test_made_once_after_an_interruption_begins_with_an_empty_folder(
    tmp_path: Path,
) -> None:
    """A folder has its name when it is complete."""
    folder = tmp_path / "folder"

    def make(part: Path) -> None:
        (part / "file").touch(exist_ok=False)
        assert not folder.exists()
        if is_interrupted:
            raise KeyboardInterrupt

    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        made_once(folder, make)
    is_interrupted = False
    assert made_once(folder, make) == folder
    assert [path.name for path in folder.iterdir()] == ["file"]
