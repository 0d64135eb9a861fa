"""Clients of the memcached protocol in Go and Java; their programs are in programs/."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from support.memcache_ends import MemcacheInstance
from support.recipes import PAGE, need, run

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.recipes,
    pytest.mark.slow,
]

PROGRAMS: Final = Path(__file__).parent / "programs"
GO: Final = "github.com/bradfitz/gomemcache"
SPYMEMCACHED: Final = Path("/usr/share/java/spymemcached.jar")


def assert_values_survive(
    folder: Path, program: Sequence[str | Path], *more: str
) -> None:
    """Write with a program, kill the instance, and read with the program."""
    with MemcacheInstance(folder / "data") as instance:
        words = [instance.memcache_address, *more]
        assert "done" in run([*program, "write", *words], folder).splitlines()
        instance.kill()
        instance.restart()
        assert "done" in run([*program, "read", *words], folder).splitlines()


def test_gomemcache(tmp_path: Path) -> None:
    """In the version of the document."""
    need("go")
    [version] = re.findall("gomemcache `(.+?)`", PAGE.read_text())
    shutil.copy(PROGRAMS / "memcache.go", tmp_path)
    run(["go", "mod", "init", "memcache"], tmp_path)
    run(["go", "get", f"{GO}@{version}"], tmp_path)
    run(["go", "build", "-o", "program", "memcache.go"], tmp_path)
    assert_values_survive(tmp_path, [tmp_path / "program"])


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_spymemcached(tmp_path: Path, protocol: str) -> None:
    """As Debian has it."""
    need("java", "javac")
    if not SPYMEMCACHED.exists():
        pytest.skip(f"{SPYMEMCACHED} is not installed")
    path = f"{SPYMEMCACHED}:{tmp_path}"
    run(["javac", "-cp", path, "-d", tmp_path, PROGRAMS / "Memcache.java"], tmp_path)
    assert_values_survive(tmp_path, ["java", "-cp", path, "Memcache"], protocol)
