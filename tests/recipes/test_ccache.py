"""ccache as Debian has it, with a volcache as its remote storage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from support.recipes import VALUE_BYTES_MAX, WAYS, a_cache, run

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

SOURCES: Final = 6
# A result and its manifest; ccache 4.7 stores them as two files.
FILES: Final = 2 * SOURCES


class Project:
    """A small C project, compiled by ccache."""

    def __init__(self, folder: Path, url: str) -> None:
        """Write the sources."""
        self._folder = folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "CCACHE_DIR": str(folder / "cache"),
            "CCACHE_CONFIGPATH": str(folder / "none.conf"),
            "CCACHE_REMOTE_STORAGE": url,
        }
        folder.mkdir()
        (folder / "sum.h").write_text("int add(int a, int b);\n")
        for number in range(SOURCES):
            (folder / f"file{number}.c").write_text(
                '#include "sum.h"\n'
                f"int use{number}(void) {{ return add({number}, 1); }}\n"
            )

    def compile(self) -> dict[str, int]:
        """Compile everything without a local cache; return ccache's counters."""
        shutil.rmtree(self._folder / "cache", ignore_errors=True)
        for number in range(SOURCES):
            name = f"file{number}"
            self._run("ccache", "gcc", "-O1", "-c", f"{name}.c", "-o", f"{name}.o")
        lines = self._run("ccache", "--print-stats").splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}

    def objects(self) -> list[bytes]:
        """Return what was compiled, and remove it."""
        paths = sorted(self._folder.glob("*.o"))
        found = [path.read_bytes() for path in paths]
        for path in paths:
            path.unlink()
        return found

    def _run(self, *command: str) -> str:
        return run(command, self._folder, self._environment)


def assert_all_from_remote(counters: dict[str, int]) -> None:
    """Check that nothing had to be compiled."""
    assert counters["direct_cache_hit"] == SOURCES
    assert counters["cache_miss"] == 0
    assert counters["remote_storage_hit"] == SOURCES
    assert counters["remote_storage_miss"] == 0
    assert counters["remote_storage_error"] == 0
    assert counters["remote_storage_timeout"] == 0


@pytest.mark.parametrize("layout", ["subdirs", "flat", "bazel"])
@pytest.mark.parametrize("way", WAYS)
def test_second_build_comes_from_the_cache(
    tmp_path: Path, way: str, layout: str
) -> None:
    """Every object, byte for byte, and again after the service was killed."""
    with a_cache(tmp_path, way) as cache:
        # The token is sent as a password, with every request.
        url = f"http://ci:secret@{cache.host}/ccache|layout={layout}"
        project = Project(tmp_path / "project", url)
        cold = project.compile()
        assert cold["cache_miss"] == SOURCES
        assert cold["remote_storage_write"] == FILES
        assert cold["remote_storage_error"] == 0
        compiled = project.objects()
        assert_all_from_remote(project.compile())
        assert project.objects() == compiled
        cache.server.kill()
        cache.server.restart()
        assert_all_from_remote(project.compile())
        assert project.objects() == compiled


def test_an_object_above_the_limit_is_compiled_every_time(tmp_path: Path) -> None:
    """The others come from the cache, and the build succeeds."""
    with a_cache(tmp_path, "through nginx") as cache:
        project = Project(tmp_path / "project", f"{cache.url}/ccache")
        text = os.urandom(VALUE_BYTES_MAX + 4096).hex()
        (tmp_path / "project" / "file0.c").write_text(f'const char text[] = "{text}";')
        project.compile()
        counters = project.compile()
        assert counters["cache_miss"] == 1
        assert counters["direct_cache_hit"] == SOURCES - 1
