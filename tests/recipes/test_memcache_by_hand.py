"""Clients of the memcached protocol in Go and Java; their programs are in programs/."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped]

from support.memcache import MemcacheServer
from support.recipes import PAGE, need, run, snippet

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
    folder: Path, program: Sequence[str | Path], *more: str, **settings: object
) -> None:
    """Write with a program, kill the instance, and read with the program."""
    with MemcacheServer(folder / "data", settings) as instance:
        words = [instance.memcache_address, *more]
        assert "done" in run([*program, "write", *words], folder).splitlines()
        instance.kill()
        instance.restart()
        assert "done" in run([*program, "read", *words], folder).splitlines()


def built(folder: Path, name: str) -> Path:
    """Return a program with gomemcache in the version of the document."""
    need("go")
    [version] = re.findall("gomemcache `(.+?)`", PAGE.read_text())
    shutil.copy(PROGRAMS / name, folder)
    run(["go", "mod", "init", "memcache"], folder)
    run(["go", "get", f"{GO}@{version}"], folder)
    run(["go", "build", "-o", "program", name], folder)
    return folder / "program"


def test_gomemcache(tmp_path: Path) -> None:
    """All that it has."""
    assert_values_survive(tmp_path, [built(tmp_path, "memcache.go")])


def test_chunks_of_grafana(tmp_path: Path) -> None:
    """A get of 100 chunks of 1 to 3 MB has all of them, also after a kill."""
    given = tomllib.loads(snippet("Grafana Loki", "toml"))
    settings = {key: given[key] for key in ("max_value_size", "volume_size")}
    program = built(tmp_path, "chunks.go")
    assert_values_survive(tmp_path, [program], volume_num=8, **settings)
    client = yaml.safe_load(snippet("Grafana Loki", "yaml"))
    cache = client["chunk_store_config"]["chunk_cache_config"]
    assert cache["memcached"]["batch_size"] == 100
    assert cache["memcached_client"]["max_item_size"] == 8 << 20


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_spymemcached(tmp_path: Path, protocol: str) -> None:
    """As Debian has it."""
    need("java", "javac")
    if not SPYMEMCACHED.exists():
        pytest.skip(f"{SPYMEMCACHED} is not installed")
    path = f"{SPYMEMCACHED}:{tmp_path}"
    run(["javac", "-cp", path, "-d", tmp_path, PROGRAMS / "Memcache.java"], tmp_path)
    assert_values_survive(tmp_path, ["java", "-cp", path, "Memcache"], protocol)
