"""Nx, through the nginx of the document."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.recipes import (
    FRONT,
    VALUE_BYTES_MAX,
    WAYS,
    Front,
    RunningCache,
    a_cache,
    need,
    run,
    snippet,
)

pytestmark = [pytest.mark.nightly, pytest.mark.recipes]

LARGE = VALUE_BYTES_MAX + 4096


class Workspace:
    """One project, with a small and a large output."""

    def __init__(self, folder: Path, host: str) -> None:
        """Write it."""
        need("nx", "git")
        self._folder = folder / "workspace"
        self._runs = 0
        lines = snippet("Nx", "sh").replace(FRONT, host).splitlines()[:2]
        words = (line.removeprefix("export ").split("=", 1) for line in lines)
        self._environment = dict(words) | {
            "NX_SELF_HOSTED_REMOTE_CACHE_ACCESS_TOKEN": "secret",
            "NX_DAEMON": "false",
            "NX_NO_CLOUD": "true",
            "NX_TUI": "false",
            "CI": "1",
        }
        self._write("package.json", {"name": "root", "private": True})
        outputs = ["{projectRoot}/dist"]
        defaults = {n: {"cache": True, "outputs": outputs} for n in ("build", "large")}
        self._write("nx.json", {"targetDefaults": defaults, "analytics": False})
        out = "mkdir -p a/dist &&"
        targets = {
            "build": {"command": f"{out} date +%N > a/dist/out.txt"},
            "large": {"command": f"{out} head -c {LARGE} /dev/urandom > a/dist/l"},
        }
        self._write("a/project.json", {"name": "a", "root": "a", "targets": targets})
        (self._folder / ".gitignore").write_text("node_modules\ndist\n.nx\n")
        program = Path(str(shutil.which("nx"))).resolve()
        modules = next(p for p in program.parents if p.name == "node_modules")
        (self._folder / "node_modules").symlink_to(modules)
        run(["git", "init", "-q"], self._folder)

    def _write(self, name: str, data: object) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data))

    def run(self, target: str, *, is_checked: bool = True) -> str:
        """Run a target with an empty local cache."""
        self._runs += 1
        shutil.rmtree(self._folder / "a" / "dist", ignore_errors=True)
        local = self._folder / ".nx" / str(self._runs)
        environment = {
            **self._environment,
            "NX_CACHE_DIRECTORY": str(local / "cache"),
            "NX_WORKSPACE_DATA_DIRECTORY": str(local / "data"),
        }
        command: list[str | Path] = ["nx", "run-many", "-t", target]
        return run(command, self._folder, environment, is_checked=is_checked)


@contextmanager
def front_of(cache: RunningCache, folder: Path) -> Iterator[Front]:
    """Run the nginx of the document."""
    servers = cache.placed(snippet("Nx", "nginx")).replace("256m", "2m")
    with Front(folder / "front", servers) as front:
        yield front


def test_a_second_run_is_a_remote_hit(tmp_path: Path) -> None:
    """With an empty local cache."""
    with a_cache(tmp_path) as cache, front_of(cache, tmp_path) as front:
        workspace = Workspace(tmp_path, front.host)
        assert "[remote cache]" not in workspace.run("build")
        assert "[remote cache]" in workspace.run("build")


def test_neither_the_limit_nor_a_stopped_cache_fails_a_build(tmp_path: Path) -> None:
    """Both are misses."""
    with a_cache(tmp_path) as cache, front_of(cache, tmp_path) as front:
        workspace = Workspace(tmp_path, front.host)
        assert "[remote cache]" not in workspace.run("large")
        assert "[remote cache]" not in workspace.run("large")
        cache.server.kill()
        workspace.run("build")


@pytest.mark.parametrize("way", WAYS)
def test_without_this_nginx_a_run_fails_at_the_limit(tmp_path: Path, way: str) -> None:
    """Below the limit it works."""
    with a_cache(tmp_path, way) as cache:
        workspace = Workspace(tmp_path, cache.host)
        assert "[remote cache]" not in workspace.run("build")
        assert "[remote cache]" in workspace.run("build")
        text = workspace.run("large", is_checked=False)
        assert "Unexpected response status: 413" in text
        assert "failed" in text
