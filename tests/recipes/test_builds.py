"""Build tools with a cache of their own, with the settings of the document."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

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
from support.wire import exchange

pytestmark = [pytest.mark.nightly, pytest.mark.recipes]

LARGE = VALUE_BYTES_MAX + 1


def need_version(text: str, *least: int) -> None:
    """Skip the test if what a program prints as its version is too old."""
    found = re.search(r"\d+(\.\d+)+", text)
    assert found, text
    if tuple(map(int, found[0].split("."))) < least:
        pytest.skip(f"{text.splitlines()[0]} is too old")


class Project(ABC):
    """A project with one result, which may be above the limit."""

    hit: ClassVar[str]  # Printed when the result is from the cache.
    refused: ClassVar[str]  # Printed when it cannot be stored.

    def __init__(
        self, folder: Path, cache: RunningCache, *, is_large: bool = False
    ) -> None:
        """Write it."""
        self.folder = folder / "project"
        self.local = folder / "local"
        self.cache = cache
        self.is_large = is_large
        self.folder.mkdir()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Write the files."""

    @abstractmethod
    def build(self) -> str:
        """Build without results and with an empty local cache."""

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file of the project."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


class Bazel(Project):
    """Two actions, or one with a large result."""

    hit = "2 remote cache hit"
    refused = "413"
    text = f"""
genrule(name="first", outs=["first.txt"], cmd="date +%N > $@")
genrule(name="second", outs=["second.txt"], srcs=[":first"], cmd="cat $(SRCS) > $@")
genrule(name="large", outs=["large.txt"], cmd="head -c {LARGE} /dev/urandom > $@")
"""

    def prepare(self) -> None:
        """Write the files."""
        need("bazel")
        need_version(run(["bazel", "--version"], self.folder), 7)
        self.write("WORKSPACE", "")
        self.write("BUILD", self.text)
        # The document's is without a token.
        host = f"ci:secret@{self.cache.host}"
        text = snippet("Bazel", "bazelrc").replace("127.0.0.1:1234", host)
        # The registry of modules is not needed.
        self.write(".bazelrc", f"{text}common --noenable_bzlmod --enable_workspace\n")

    def build(self) -> str:
        """Build one target."""
        self.bazel("clean", "--expunge")
        return self.build_again()

    def build_again(self) -> str:
        """Build what has changed since the last build."""
        target = "large" if self.is_large else "second"
        text = self.bazel("build", f"//:{target}")
        assert (self.folder / "bazel-bin" / f"{target}.txt").stat().st_size
        return text

    def bazel(self, *arguments: str) -> str:
        """Run a command."""
        start = ["bazel", f"--output_user_root={self.local}", "--batch"]
        return run([*start, *arguments], self.folder)


class Gradle(Project):
    """Three tasks."""

    hit = ":small FROM-CACHE"
    text = """
apply plugin: 'base'
['small': 100, 'large': LARGE, 'after': 100].each { name, size ->
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
"""

    def prepare(self) -> None:
        """Write the files."""
        need("gradle")
        text = self.cache.placed(snippet("Gradle", "groovy"))
        self.write("settings.gradle", text.replace("TOKEN", "secret"))
        self.write("build.gradle", self.text.replace("LARGE", f"{LARGE}"))

    def build(self, *tasks: str) -> str:
        """Run tasks."""
        run(["rm", "-rf", "out", ".gradle"], self.folder)
        options = ["--no-daemon", "--build-cache", f"--gradle-user-home={self.local}"]
        return run(["gradle", *options, *(tasks or ("small",))], self.folder)


class Maven(Project):
    """One module, with Maven's build cache extension."""

    hit = "Found cached build, restoring"
    refused = "Unable to save to remote cache"
    text = """
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
    settings = """
<settings><servers><server>
  <id>volcache</id><username>ci</username><password>secret</password>
</server></servers></settings>
"""

    def prepare(self) -> None:
        """Write the files."""
        need("mvn")
        need_version(run(["mvn", "-version"], self.folder), 3, 9)
        for number, name in enumerate(("extensions", "maven-build-cache-config")):
            text = self.cache.placed(snippet("Maven", "xml", number))
            self.write(f".mvn/{name}.xml", text)
        self.write("pom.xml", self.text)
        self.write("settings.xml", self.settings)
        self.write("src/main/java/A.java", "class A {}\n")
        if self.is_large:
            self.write("src/main/resources/large", os.urandom(LARGE))

    def build(self) -> str:
        """Make a package."""
        for folder in (self.folder / "target", self.local):
            shutil.rmtree(folder, ignore_errors=True)
        local = f"-Dmaven.build.cache.location={self.local}"
        command = ["mvn", "-B", "-s", "settings.xml", local, "package"]
        text = run(command, self.folder)
        assert (self.folder / "target" / "demo-1.0.jar").exists()
        return text


class Moon(Project):
    """One project of a workspace."""

    hit = "cached from remote"
    refused = "Failed to store blobs"
    workspace = """
projects: ['a']
vcs: {client: 'git', defaultBranch: 'master'}
telemetry: false
"""
    text = """
language: 'bash'
tasks:
  build:
    command: 'cp in.txt out.txt'
    inputs: ['in.txt']
    outputs: ['out.txt']
"""

    def prepare(self) -> None:
        """Write the files, and commit them."""
        need("moon", "git")
        text = self.workspace + self.cache.placed(snippet("moon", "yaml"))
        self.write(".moon/workspace.yml", text)
        self.write("a/moon.yml", self.text)
        self.write("a/in.txt", os.urandom(LARGE) if self.is_large else b"content")
        self.write(".gitignore", ".moon/cache\nout.txt\n")
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        run(["git", "init", "-q", "-b", "master"], self.folder)
        run(["git", "add", "-A"], self.folder)
        run(["git", *author, "commit", "-q", "-m", "first"], self.folder)

    def build(self) -> str:
        """Run the task."""
        shutil.rmtree(self.folder / ".moon" / "cache", ignore_errors=True)
        (self.folder / "a" / "out.txt").unlink(missing_ok=True)
        text = run(["moon", "run", "a:build"], self.folder, {"MOON_TOKEN": "secret"})
        assert (self.folder / "a" / "out.txt").exists()
        return text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Bazel, Gradle, Maven, Moon])
def test_a_second_build_comes_from_the_cache(
    tmp_path: Path, kind: type[Project], way: str
) -> None:
    """With all that the tool keeps removed in between."""
    with a_cache(tmp_path, way) as cache:
        project = kind(tmp_path, cache)
        assert kind.hit not in project.build()
        assert kind.hit in project.build()


@pytest.mark.parametrize("kind", [Bazel, Maven, Moon])
def test_a_result_above_the_limit_is_built_every_time(
    tmp_path: Path, kind: type[Project]
) -> None:
    """With a warning; the build succeeds."""
    with a_cache(tmp_path, "through nginx") as cache:
        project = kind(tmp_path, cache, is_large=True)
        for _ in range(2):
            text = project.build()
            assert kind.refused in text
            assert "remote cache hit" not in text


def test_a_file_that_was_evicted_is_built_again_by_bazel(tmp_path: Path) -> None:
    """The result of its action is stored, and its file was never downloaded."""
    with a_cache(tmp_path) as cache:
        project = Bazel(tmp_path, cache)
        project.build()
        made = (project.folder / "bazel-bin" / "first.txt").read_bytes()
        assert Bazel.hit in project.build()
        path = f"/bazel/cas/{hashlib.sha256(made).hexdigest()}"
        assert exchange(cache.server.port, "DELETE", path).status == 200
        project.write("BUILD", project.text.replace("cat $(SRCS)", "cat <$(SRCS)"))
        assert "remote cache hit" not in project.build_again()


def test_one_413_switches_the_cache_of_gradle_off_until_the_next_build(
    tmp_path: Path,
) -> None:
    """The task after it is not stored."""
    with a_cache(tmp_path, "through nginx") as cache:
        project = Gradle(tmp_path, cache)
        text = project.build("large", "after")
        assert "413" in text
        assert "remote build cache was disabled during the build" in text
        assert "FROM-CACHE" not in project.build("after")
        assert ":after FROM-CACHE" in project.build("after")
