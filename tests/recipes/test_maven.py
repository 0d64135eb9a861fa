"""Maven's build cache extension, with the files of the document."""

from __future__ import annotations

import os
import re
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

POM = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>demo</groupId> <artifactId>demo</artifactId> <version>1.0</version>
  <properties>
    <maven.compiler.source>11</maven.compiler.source>
    <maven.compiler.target>11</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
</project>
"""
SETTINGS = """
<settings><servers><server>
  <id>volcache</id><username>ci</username><password>secret</password>
</server></servers></settings>
"""


class Project:
    """A Maven project of one module."""

    def __init__(self, folder: Path, cache: RunningCache) -> None:
        """Write it."""
        need("mvn")
        version = re.search(r"Maven (\d+)\.(\d+)", run(["mvn", "-version"], folder))
        assert version
        if (int(version[1]), int(version[2])) < (3, 9):
            pytest.skip(f"{version[0]} is too old; 3.9 is needed")
        self._folder = folder / "project"
        self._local = folder / "local"
        extension, configuration = (
            cache.placed(snippet("Maven", "xml", number)) for number in (0, 1)
        )
        self.write(".mvn/extensions.xml", extension.encode())
        self.write(".mvn/maven-build-cache-config.xml", configuration.encode())
        self.write("pom.xml", POM.encode())
        self.write("settings.xml", SETTINGS.encode())
        self.write("src/main/java/A.java", b"class A {}\n")

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the project."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def build(self) -> str:
        """Build without results and without a local cache."""
        for folder in (self._folder / "target", self._local):
            shutil.rmtree(folder, ignore_errors=True)
        local = f"-Dmaven.build.cache.location={self._local}"
        command = ["mvn", "-B", "-s", "settings.xml", local, "package"]
        text = run(command, self._folder)
        assert (self._folder / "target" / "demo-1.0.jar").exists()
        return text


@pytest.mark.parametrize("way", WAYS)
def test_a_second_build_is_restored(tmp_path: Path, way: str) -> None:
    """Without results and without a local cache."""
    with a_cache(tmp_path, way) as cache:
        project = Project(tmp_path, cache)
        assert "Found cached build" not in project.build()
        assert "Found cached build, restoring" in project.build()


def test_a_jar_above_the_limit_is_built_every_time(tmp_path: Path) -> None:
    """The build succeeds."""
    with a_cache(tmp_path, "through nginx") as cache:
        project = Project(tmp_path, cache)
        project.write("src/main/resources/large", os.urandom(VALUE_BYTES_MAX + 1))
        assert "Unable to save to remote cache" in project.build()
        assert "Unable to save to remote cache" in project.build()
