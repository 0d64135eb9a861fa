"""Gradle, with the settings of the document."""

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

BUILD = """
apply plugin: 'base'
['small': 100, 'large': %d, 'after': 100].each { name, size ->
    task(name) {
        outputs.cacheIf { true }
        outputs.file("out/${name}.bin")
        doLast {
            def bytes = new byte[size]
            new Random(1).nextBytes(bytes)
            file('out').mkdirs()
            file("out/${name}.bin").bytes = bytes
        }
    }
}
""" % (VALUE_BYTES_MAX + 1)  # noqa: UP031 - The text is full of braces.


class Project:
    """A Gradle project."""

    def __init__(self, folder: Path, cache: RunningCache) -> None:
        """Write it."""
        need("gradle")
        self._folder = folder / "project"
        self._home = folder / "home"
        self._folder.mkdir()
        text = cache.placed(snippet("Gradle", "groovy")).replace("TOKEN", "secret")
        (self._folder / "settings.gradle").write_text(text)
        (self._folder / "build.gradle").write_text(BUILD)

    def build(self, *tasks: str) -> str:
        """Run tasks whose results are not there."""
        run(["rm", "-rf", "out", ".gradle"], self._folder)
        options = ["--no-daemon", "--build-cache", f"--gradle-user-home={self._home}"]
        return run(["gradle", *options, *tasks], self._folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_build_comes_from_the_cache(tmp_path: Path, way: str) -> None:
    """Of a task whose output was removed."""
    with a_cache(tmp_path, way) as cache:
        project = Project(tmp_path, cache)
        assert "FROM-CACHE" not in project.build("small")
        assert ":small FROM-CACHE" in project.build("small")


def test_one_413_switches_the_cache_off_until_the_next_build(tmp_path: Path) -> None:
    """The task after it is not stored."""
    with a_cache(tmp_path, "through nginx") as cache:
        project = Project(tmp_path, cache)
        text = project.build("large", "after")
        assert "413" in text
        assert "remote build cache was disabled during the build" in text
        assert "FROM-CACHE" not in project.build("after")
        assert ":after FROM-CACHE" in project.build("after")
