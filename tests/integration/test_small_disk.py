"""An instance on a small file system of its own: one in memory, and ext4 in a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.process import ServerProcess

pytestmark = pytest.mark.integration

DISK_BYTES = 20_000_000
SETTINGS = {"volume_size": 4 << 20, "volume_num": 10}


def run(*command: str | Path) -> None:
    """Run a command, or skip the test if it is not allowed or missing."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        pytest.skip(f"{command[0]}: {ended.stderr.strip()[:200]}")


@contextlib.contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """Mount a file system of 20 MB, if this user may."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    place = folder / "disk"
    place.mkdir()
    if kind == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "volcache", place)
    else:
        image = folder / "image"
        image.touch()
        os.truncate(image, DISK_BYTES)
        run("mkfs.ext4", "-q", "-F", image)
        run("mount", "-o", "loop", image, place)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def store_of(server: ServerProcess) -> dict[str, Any]:
    """Return the part of `/-/stats` about the store."""
    return dict(server.stats()["store"])


def put_many(server: ServerProcess, count: int, first: int = 0) -> set[int]:
    """Store files of 100 kB; return the statuses."""
    return {
        server.ask("PUT", f"/{n % 250}", b"%d." % n + bytes(100_000)).status
        for n in range(first, first + count)
    }


@pytest.mark.parametrize(
    ("kind", "eviction"), [("tmpfs", "frequency"), ("ext4", "fifo")]
)
def test_put_on_a_disk_smaller_than_the_settings_is_not_refused(
    tmp_path: Path, kind: str, eviction: str
) -> None:
    """Not one 507; after a kill, what is there is what was stored last."""
    settings = {**SETTINGS, "eviction": eviction}
    with (
        mounted(kind, tmp_path) as disk,
        ServerProcess(disk / "cache", settings=settings) as server,
    ):
        assert "disk.too_small configured=41943040" in server.stderr
        assert put_many(server, 300) == {200}
        store = store_of(server)
        space = os.statvfs(disk)
        assert store["disk"]["limited"]
        assert store["disk"]["volumes"] in {3, 4}
        assert store["disk"]["total_bytes"] == space.f_blocks * space.f_frsize
        assert store["free_bytes"] <= store["disk"]["free_bytes"]
        assert (store["write_errors"], store["index_errors"]) == (0, 0)
        server.kill()
        server.start()
        assert store_of(server)["disk"]["volumes"] == store["disk"]["volumes"]
        hits = 0
        for number in range(50, 300):
            found = server.ask("GET", f"/{number % 250}")
            if found.status == 200:
                assert found.body.startswith(b"%d." % number)
                hits += 1
        assert hits >= 40
        assert put_many(server, 60, 300) == {200}


def test_get_on_a_full_or_read_only_disk_is_answered(tmp_path: Path) -> None:
    """Writes go on in the volumes there are; read-only, they are refused in one line."""
    with (
        mounted("ext4", tmp_path) as disk,
        ServerProcess(disk / "cache", settings=SETTINGS) as server,
    ):
        assert put_many(server, 120) == {200}
        with (
            (disk / "other").open("wb", buffering=0) as other,
            contextlib.suppress(OSError),
        ):
            while True:
                other.write(bytes(4096))
        assert put_many(server, 120, 120) == {200}
        server.kill()
        server.start()
        assert put_many(server, 120, 240) == {200}
        server.terminate()
        run("mount", "-o", "remount,ro", disk)
        server.start()
        answer = server.ask("PUT", "/k", b"v")
        assert answer.status == 507
        assert answer.text.startswith("the disk was read-only when the instance was")
        assert answer.text.count("\n") == 1
        assert server.ask("GET", f"/{359 % 250}").body.startswith(b"359.")
        assert store_of(server)["disk"]["state"] == "read-only"
        assert "volcache_disk_writable 0.0" in server.ask("GET", "/-/metrics").text
        assert "disk.not_writable" in server.stderr
        server.terminate()


def test_start_with_few_descriptors_names_the_limit(tmp_path: Path) -> None:
    """Before it has created files; not the directory."""
    settings = {
        "VOLCACHE_MOUNT_POINT": str(tmp_path / "cache"),
        "VOLCACHE_VOLUME_NUM": "90",
        "VOLCACHE_PORT": "0",
    }
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 100; exec {sys.executable} -m volcache serve"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "90 volumes need as many open files" in done.stderr
    assert "this process may have 100; raise LimitNOFILE=" in done.stderr


def test_start_with_volume_num_auto_leaves_space_on_the_disk(tmp_path: Path) -> None:
    """The number is in the log and in /-/stats, and the same when the disk is full."""
    settings = {"volume_size": "1MiB", "max_value_size": "500kB", "volume_num": "auto"}
    with (
        mounted("tmpfs", tmp_path) as disk,
        ServerProcess(disk / "cache", settings=settings) as server,
    ):
        number = store_of(server)["volume_num"]
        sizes = f"volumes={number} volume_num={number} volume_size=1048576 disk_free="
        assert sizes in server.stderr
        assert 14 <= number <= 17
        assert put_many(server, 250) == {200}
        server.restart()
        store = store_of(server)
        assert (store["volume_num"], store["disk"]["limited"]) == (number, False)
        assert store["disk"]["free_bytes"] > DISK_BYTES // 10
