"""The release script refuses what is not ready; `make package` runs it."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[1]
PLACES = {
    "src/volcache/version.py": '__version__: Final = "{}"\n',
    "docs/CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## {}, 2026-11-22\n\n## 0.0.1\n",
    "docs/openapi.yaml": "info:\n  version: {}\n",
    "docs/volcache.1": '.TH VOLCACHE 1 "" "volcache {}" "User Commands"\n',
}


def commit(folder: Path) -> None:
    """Commit all files of a repository."""
    who = ["-c", "user.name=name", "-c", "user.email=a@b"]
    for words in (["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository that is ready for a release."""
    for place, text in PLACES.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text.format("1.2.3"))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def test_tree_that_is_not_ready_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version in one place, unless it is a draft; a file that is not committed."""
    assert release.check_versions(is_draft=False) == "1.2.3"
    assert {place for place, _ in release.versions(tree)} == set(PLACES)
    for place, text in PLACES.items():
        (tree / place).write_text(text.format("1.2.4"))
        commit(tree)
        with pytest.raises(SystemExit, match=r"not ready .* or give --draft"):
            release.check_versions(is_draft=False)
        assert f"1.2.4      {place}\n" in capsys.readouterr().out
        release.check_versions(is_draft=True)
        (tree / place).write_text(text.format("1.2.3"))
    commit(tree)
    (tree / "new.py").touch()  # The build would not have it.
    with pytest.raises(SystemExit, match="not ready"):
        release.check_versions(is_draft=False)
    assert "new.py" in capsys.readouterr().out


def wheel(path: Path, **files: str) -> Path:
    """Write a wheel."""
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name.replace("_", "."), text)
    return path


def test_different_wheels_are_refused(tmp_path: Path) -> None:
    """By names and by bytes; what was compiled has paths of its build in it."""
    first = wheel(tmp_path / "a", a_py="1", b_so="1")
    release.require_equal(first, wheel(tmp_path / "b", a_py="1", b_so="2"))
    for other in ({"a_py": "2", "b_so": "1"}, {"a_py": "1"}):
        with pytest.raises(SystemExit, match=r"differ: \['[ab]\.(py|so)'\]"):
            release.require_equal(first, wheel(tmp_path / "c", **other))


def test_python_that_cannot_make_environments_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a wrapper of a version that is not installed."""
    for name, code in (("python3.11", 0), ("python3.12", 127)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert release.found_pythons() == [str(tmp_path / "python3.11")]
    (tmp_path / "python3.11").unlink()
    with pytest.raises(SystemExit, match="give --python PATH"):
        release.found_pythons()


def test_environment_of_builds_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an installation would be tested with the modules of the checkout."""
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setenv("VOLCACHE_PORT", "1")
    assert {"PYTHONPATH", "VOLCACHE_PORT"} & release._clean().keys() == set()
