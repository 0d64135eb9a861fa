"""Bazel, with the options of the document."""

from __future__ import annotations

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

LARGE = VALUE_BYTES_MAX + 1
BUILD = f"""
genrule(name="first", outs=["first.txt"], cmd="date +%N > $@")
genrule(name="second", outs=["second.txt"], srcs=[":first"], cmd="cat $(SRCS) > $@")
genrule(name="large", outs=["large.txt"], cmd="head -c {LARGE} /dev/urandom > $@")
"""


class Workspace:
    """A Bazel workspace."""

    def __init__(self, folder: Path, cache: RunningCache) -> None:
        """Write it."""
        need("bazel")
        self.folder = folder / "workspace"
        self.folder.mkdir()
        self._root = f"--output_user_root={folder / 'root'}"
        (self.folder / "WORKSPACE").touch()
        (self.folder / "BUILD").write_text(BUILD)
        # The document's is without a token.
        host = f"ci:secret@{cache.host}"
        text = snippet("Bazel", "bazelrc").replace("127.0.0.1:1234", host)
        (self.folder / ".bazelrc").write_text(text)

    def build(self, target: str) -> str:
        """Build with an empty local cache."""
        self._run("clean", "--expunge")
        return self._run("build", target)

    def output(self, name: str) -> bytes:
        """Return a file that was built."""
        return (self.folder / "bazel-bin" / name).read_bytes()

    def _run(self, *arguments: str) -> str:
        return run(["bazel", self._root, "--batch", *arguments], self.folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_build_is_all_hits(tmp_path: Path, way: str) -> None:
    """Two actions, with all that Bazel keeps removed in between."""
    with a_cache(tmp_path, way) as cache:
        workspace = Workspace(tmp_path, cache)
        assert "remote cache hit" not in workspace.build("//:second")
        built = workspace.output("second.txt")
        assert "2 remote cache hit" in workspace.build("//:second")
        assert workspace.output("second.txt") == built


def test_a_file_above_the_limit_is_a_warning(tmp_path: Path) -> None:
    """The build succeeds, and its result is not stored."""
    with a_cache(tmp_path, "through nginx") as cache:
        workspace = Workspace(tmp_path, cache)
        assert "413" in workspace.build("//:large")
        assert "remote cache hit" not in workspace.build("//:large")
        assert len(workspace.output("large.txt")) == LARGE
