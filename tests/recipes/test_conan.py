"""conan's backup of sources, with the settings of the document."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from support.recipes import (
    INSTANCE,
    VALUE_BYTES_MAX,
    WAYS,
    RunningCache,
    a_cache,
    need,
    run,
    snippet,
)
from support.registry import Registry

pytestmark = [pytest.mark.nightly, pytest.mark.recipes]

RECIPE = """
from conan import ConanFile
from conan.tools.files import download

class Demo(ConanFile):
    name = "demo"
    version = "1.0"

    def source(self):
        download(self, "{url}", "source.bin", sha256="{digest}")
"""


class Project:
    """One recipe, whose source is on another server."""

    def __init__(
        self, folder: Path, cache: RunningCache, registry: Registry, source: bytes
    ) -> None:
        """Write it."""
        need("conan")
        registry.write("source.bin", source)
        self._folder = folder / "project"
        self._home = folder / "home"
        self._sources = folder / "sources"
        self._folder.mkdir()
        self._home.mkdir()
        settings = cache.placed(snippet("conan", "ini"))
        settings = settings.replace("/var/cache/conan-sources", str(self._sources))
        (self._home / "global.conf").write_text(settings)
        token = {"url": f"{cache.url}/conan", "token": "secret"}
        text = json.dumps({"credentials": [token]})
        (self._home / "source_credentials.json").write_text(text)
        digest = hashlib.sha256(source).hexdigest()
        text = RECIPE.format(url=f"{registry.url}/source.bin", digest=digest)
        (self._folder / "conanfile.py").write_text(text)
        self.conan("profile", "detect")

    def conan(self, *arguments: str, is_checked: bool = True) -> str:
        """Run conan with a home of its own."""
        environment = {"CONAN_HOME": str(self._home)}
        command = ["conan", *arguments]
        return run(command, self._folder, environment, is_checked=is_checked)

    def forget(self) -> None:
        """Remove all that was downloaded or built."""
        shutil.rmtree(self._sources)
        self.conan("remove", "-c", "*")


def commands(cache: RunningCache) -> list[list[str]]:
    """Return the commands of the document, without the name of the program."""
    text = snippet("conan", "sh").replace(INSTANCE, cache.host)
    return [line.split()[1:] for line in text.splitlines()]


@pytest.mark.parametrize("way", WAYS)
def test_sources_are_found_without_their_origin(tmp_path: Path, way: str) -> None:
    """After everything local was removed."""
    with a_cache(tmp_path, way) as cache:
        with Registry(tmp_path / "registry") as registry:
            project = Project(tmp_path, cache, registry, b"source")
            create, upload = commands(cache)
            project.conan(*create)
            assert "Uploading file" in project.conan(*upload)
        project.forget()
        project.conan(*create)


def test_an_upload_above_the_limit_fails(tmp_path: Path) -> None:
    """With an error that has the status."""
    with (
        a_cache(tmp_path, "through nginx") as cache,
        Registry(tmp_path / "registry") as registry,
    ):
        source = b"x" * (VALUE_BYTES_MAX + 1)
        project = Project(tmp_path, cache, registry, source)
        create, upload = commands(cache)
        project.conan(*create)
        text = project.conan(*upload, is_checked=False)
        assert "ERROR" in text
        assert "413" in text
