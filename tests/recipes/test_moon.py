"""moon, with the settings of the document."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.recipes import (
    VALUE_BYTES_MAX,
    WAYS,
    RunningCache,
    a_cache,
    need,
    run,
    snippet,
)

pytestmark = [pytest.mark.nightly, pytest.mark.recipes]

WORKSPACE = """
projects: ['a']
vcs: {client: 'git', defaultBranch: 'master'}
telemetry: false
"""
PROJECT = """
language: 'bash'
tasks:
  build:
    command: 'cp in.txt out.txt'
    inputs: ['in.txt']
    outputs: ['out.txt']
"""


class Workspace:
    """One project."""

    def __init__(self, folder: Path, cache: RunningCache, content: bytes) -> None:
        """Write it; its output is `content`."""
        need("moon", "git")
        self._folder = folder / "workspace"
        for name in (".moon", "a"):
            (self._folder / name).mkdir(parents=True)
        text = WORKSPACE + cache.placed(snippet("moon", "yaml"))
        (self._folder / ".moon" / "workspace.yml").write_text(text)
        (self._folder / "a" / "moon.yml").write_text(PROJECT)
        (self._folder / "a" / "in.txt").write_bytes(content)
        (self._folder / ".gitignore").write_text(".moon/cache\nout.txt\n")
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        run(["git", "init", "-q", "-b", "master"], self._folder)
        run(["git", "add", "-A"], self._folder)
        run(["git", *author, "commit", "-q", "-m", "first"], self._folder)

    def build(self) -> str:
        """Run the task with an empty local cache."""
        shutil.rmtree(self._folder / ".moon" / "cache", ignore_errors=True)
        (self._folder / "a" / "out.txt").unlink(missing_ok=True)
        text = run(["moon", "run", "a:build"], self._folder, {"MOON_TOKEN": "secret"})
        assert (self._folder / "a" / "out.txt").exists()
        return text


@pytest.mark.parametrize("way", WAYS)
def test_a_second_run_is_cached_from_remote(tmp_path: Path, way: str) -> None:
    """With an empty local cache."""
    with a_cache(tmp_path, way) as cache:
        workspace = Workspace(tmp_path, cache, b"content")
        assert "cached from remote" not in workspace.build()
        assert "cached from remote" in workspace.build()


def test_an_output_above_the_limit_is_a_warning(tmp_path: Path) -> None:
    """The task runs every time."""
    with a_cache(tmp_path, "through nginx") as cache:
        content = os.urandom(VALUE_BYTES_MAX + 1)
        workspace = Workspace(tmp_path, cache, content)
        assert "Failed to store blobs" in workspace.build()
        assert "Failed to store blobs" in workspace.build()
