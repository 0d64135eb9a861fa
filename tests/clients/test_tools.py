"""The programs of libmemcached."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.memcache_clients import Pymemcache

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("memccat") is None, reason="no libmemcached-tools"),
]


class Tools:
    """Run in a folder, with one protocol."""

    def __init__(self, folder: Path, port: int, protocol: str) -> None:
        """Know how to reach the server."""
        self._folder = folder
        self._how = [f"--servers=127.0.0.1:{port}"]
        self._how += ["--binary"] if protocol == "binary" else []

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run a program; its exit code may be any."""
        command = [program, *self._how, *words]
        return subprocess.run(
            command, cwd=self._folder, capture_output=True, check=False, timeout=30
        )

    def read(self, key: str) -> bytes:
        """Return what memccat writes into a file."""
        out = self._folder / "out"
        out.unlink(missing_ok=True)
        result = self.run("memccat", "--file=out", key)
        assert result.returncode == 0, result
        return out.read_bytes()


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_tools_copy_files_in_and_out(tmp_path: Path, port: int, protocol: str) -> None:
    """With all that the tools can do to them."""
    tools = Tools(tmp_path, port, protocol)
    contents = {
        "bytes.bin": bytes(range(256)) * 300,
        "large.bin": os.urandom(1_000_000),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert tools.run("memccp", *contents).returncode == 0
    for name, content in contents.items():
        assert tools.read(name) == content
    assert tools.run("memcexist", "bytes.bin").returncode == 0
    assert tools.run("memcexist", "none").returncode != 0
    assert tools.run("memctouch", "--expire=100", "bytes.bin").returncode == 0
    assert tools.run("memccp", "--add", "bytes.bin").returncode != 0
    assert tools.run("memccp", "--replace", "bytes.bin").returncode == 0
    assert tools.run("memcrm", *contents).returncode == 0
    assert tools.run("memccat", "bytes.bin").returncode != 0
    driver = Pymemcache(port)
    assert driver.get_many(list(contents)) == {}
    driver.close()


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_memcstat_shows_the_statistics(
    tmp_path: Path, port: int, protocol: str
) -> None:
    """With the names that memcached has; memcping has no binary protocol."""
    assert Tools(tmp_path, port, "text").run("memcping").returncode == 0
    shown = Tools(tmp_path, port, protocol).run("memcstat").stdout.decode()
    for name in ("pid", "uptime", "version", "curr_connections", "cmd_get", "get_hits"):
        assert f"{name}: " in shown, shown
