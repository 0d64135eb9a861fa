"""The release script refuses what is not ready; `make wheels` runs it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import release
import wheels
from support.checkout import committed

ROOT = Path(__file__).parents[1]
PLACES = {
    "src/volcache/version.py": '__version__: Final = "{}"\n',
    "docs/CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## {}, 2026-11-22\n\n## 0.0.1\n",
    "src/pyproject.toml": 'version = "{}"\n',
    "pyproject.toml": 'dependencies = ["volcache-client=={}"]\n',
    "docs/openapi.yaml": "info:\n  version: {}\n",
    "docs/volcache.1": '.TH VOLCACHE 1 "" "volcache {}" "User Commands"\n',
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository that is ready for a release."""
    for place, text in PLACES.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text.format("1.2.3"))
    committed(tmp_path)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def test_check_versions_of_an_unready_tree_refuses_only_a_release(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version in one place, or a file that is not committed; builds are not."""
    assert release.check_versions(is_release=True) == "1.2.3"
    assert {place for place, _ in release.versions(tree)} == set(PLACES)
    for place, text in PLACES.items():
        (tree / place).write_text(text.format("1.2.4"))
        committed(tree)
        with pytest.raises(SystemExit, match="not ready for a release"):
            release.check_versions(is_release=True)
        assert f"1.2.4      {place}\n" in capsys.readouterr().out
        release.check_versions(is_release=False)
        (tree / place).write_text(text.format("1.2.3"))
    committed(tree)
    (tree / "new.py").touch()  # The build would not have it.
    with pytest.raises(SystemExit, match="not ready"):
        release.check_versions(is_release=True)
    assert "new.py" in capsys.readouterr().out
    release.check_versions(is_release=False)
    assert "not in the packages:\n?? new.py" in capsys.readouterr().out


def test_different_wheels_are_refused(tmp_path: Path) -> None:
    """The same commit gives the same bytes."""
    first, second = tmp_path / "a.whl", tmp_path / "b.whl"
    first.write_bytes(b"1")
    second.write_bytes(b"1")
    release.require_equal(first, second)
    second.write_bytes(b"2")
    with pytest.raises(SystemExit, match=r"two builds of a\.whl differ"):
        release.require_equal(first, second)


def test_there_is_a_wheel_for_each_version_and_machine() -> None:
    """Versions are those of the classifiers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [
        line.rpartition(" ")[2]
        for line in project["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert [*wheels.PYTHONS] == versions
    assert len(wheels.TARGETS) == 2 * len(versions)


def test_environment_of_builds_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an installation would be tested with the modules of the checkout."""
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.setenv("VOLCACHE_PORT", "1")
    assert {"PYTHONPATH", "VOLCACHE_PORT"} & wheels.clean().keys() == set()
