"""Turborepo, through the nginx of the document."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.recipes import (
    FRONT,
    VALUE_BYTES_MAX,
    WAYS,
    Front,
    a_cache,
    need,
    run,
    snippet,
)

pytestmark = [pytest.mark.nightly, pytest.mark.recipes]

LARGE = VALUE_BYTES_MAX + 4096


class Repository:
    """Two packages, one of them with a large output."""

    def __init__(self, folder: Path, host: str, **settings: Any) -> None:
        """Write it."""
        need("turbo", "npm", "git")
        self._folder = folder / "repository"
        text = snippet("Turborepo", "sh").splitlines()[0].removeprefix("export ")
        text = text.replace(FRONT, host)
        self._environment = dict(word.split("=", 1) for word in text.split())
        self._environment |= {
            "TURBO_TELEMETRY_DISABLED": "1",
            "TURBO_TOKEN": "secret",
            "TURBO_REMOTE_CACHE_SIGNATURE_KEY": "0123456789abcdef" * 4,
        }
        self._write(
            "package.json",
            {
                "name": "root",
                "private": True,
                "packageManager": "npm@10.0.0",
                "workspaces": ["packages/*"],
            },
        )
        tasks = {name: {"outputs": ["dist/**"]} for name in ("build", "large")}
        self._write("turbo.json", {"tasks": tasks, **settings})
        scripts = {
            "build": "mkdir -p dist && date +%N > dist/out.txt",
            "large": f"mkdir -p dist && head -c {LARGE} /dev/urandom > dist/large",
        }
        package = {"name": "a", "version": "1.0.0", "scripts": scripts}
        self._write("packages/a/package.json", package)
        (self._folder / ".gitignore").write_text("node_modules\ndist\n.turbo\n")
        run(["git", "init", "-q"], self._folder)
        run(["npm", "install", "--offline", "--no-audit"], self._folder)

    def _write(self, name: str, data: object) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data))

    def run(self, task: str) -> str:
        """Run a task with an empty local cache."""
        for name in (".turbo", "node_modules/.cache", "packages/a/dist"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        return run(["turbo", "run", task], self._folder, self._environment)

    def output(self) -> bytes:
        """Return what the task `build` wrote."""
        return (self._folder / "packages" / "a" / "dist" / "out.txt").read_bytes()


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_second_run_replays_the_first(tmp_path: Path, *, is_signed: bool) -> None:
    """With an empty local cache, and without a warning."""
    with (
        a_cache(tmp_path) as cache,
        Front(tmp_path / "front", cache.placed(snippet("Turborepo", "nginx"))) as front,
    ):
        signature = {"signature": is_signed}
        repository = Repository(tmp_path, front.host, remoteCache=signature)
        assert "cache miss" in repository.run("build")
        built = repository.output()
        text = repository.run("build")
        assert "FULL TURBO" in text
        assert "unavailable" not in text
        assert repository.output() == built


@pytest.mark.parametrize("way", WAYS)
def test_without_this_nginx_it_works_with_a_warning(tmp_path: Path, way: str) -> None:
    """About the status."""
    with a_cache(tmp_path, way) as cache:
        repository = Repository(tmp_path, cache.host)
        assert "unavailable" in repository.run("build")
        assert "FULL TURBO" in repository.run("build")


def test_an_output_above_the_limit_is_a_warning(tmp_path: Path) -> None:
    """The task runs every time."""
    with a_cache(tmp_path, "through nginx") as cache:
        repository = Repository(tmp_path, cache.host)
        assert "413" in repository.run("large")
        assert "cache miss" in repository.run("large")
