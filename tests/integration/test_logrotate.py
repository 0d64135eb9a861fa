"""Debian's logrotate with the shipped configuration."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest
import requests

from support.fetched import fetched_program
from support.process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SHIPPED: Final = Path(__file__).parents[2] / "conf/systemd" / "volcache.logrotate"
# Replaces systemctl on a machine with one instance.
SYSTEMCTL: Final = """#!/bin/sh
echo "$*" >> {calls}
test "$*" = "reload volcache@1234.service" && kill -HUP {pid}
"""


class Machine:
    """A server whose logs are rotated as on a user's machine."""

    def __init__(self, folder: Path) -> None:
        """Copy the shipped configuration to a directory of the test."""
        self.logs = folder / "log"
        self.logs.mkdir(mode=0o755)  # logrotate takes no folder a group can write.
        self.access = self.logs / "1234-access.log"
        self.events = self.logs / "1234.log"
        self.server = ServerProcess(
            folder / "data",
            settings={
                "volume_size": 8 << 20,
                "volume_num": 2,
                "log_access": self.access,
                "log_file": self.events,
            },
        )
        self._folder = folder
        text = SHIPPED.read_text()
        assert "/var/log/volcache/*.log {\n    su volcache volcache\n" in text
        is_root = os.getuid() == 0
        text = text.replace(
            "    su volcache volcache\n", "    su root root\n" * is_root
        )
        self._config = folder / "logrotate.conf"
        self._config.write_text(text.replace("/var/log/volcache", str(self.logs)))
        self._config.chmod(0o644)

    def rotate(self) -> None:
        """Force a rotation; returns when both files are new."""
        # Lines are written twice a second, and empty files are left alone.
        wait_until(lambda: self.access.stat().st_size, "lines to be moved")
        programs = self._folder / "bin"
        programs.mkdir(exist_ok=True)
        systemctl = programs / "systemctl"
        systemctl.write_text(
            SYSTEMCTL.format(calls=self._folder / "calls", pid=self.server.pid)
        )
        systemctl.chmod(0o755)
        done = subprocess.run(
            [
                *(fetched_program("logrotate"), "--force", "--verbose"),
                *("--state", self._folder / "state", self._config),
            ],
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        output = done.stdout + done.stderr
        assert (done.returncode, "error:" in output) == (0, False), output
        wait_until(lambda: self.access.exists() and self.events.exists(), "new files")


def read(path: Path) -> str:
    """Return a log, compressed or not."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text()


def test_logrotate_starts_new_files(tmp_path: Path) -> None:
    """Twice: the oldest file is compressed, each request has its line in one of them."""
    machine = Machine(tmp_path)
    with machine.server as server:
        for turn in range(3):
            requests.get(f"{server.url}/marker/{turn}", timeout=5)
            if turn < 2:
                machine.rotate()
        assert server.terminate() == 0
    names = ("1234{}.log.2.gz", "1234{}.log.1", "1234{}.log")
    files = {path.name: read(path) for path in machine.logs.iterdir()}
    assert {*files} == {name.format(of) for name in names for of in ("-access", "")}
    for turn, name in enumerate(names):
        text = files[name.format("-access")]
        assert [line for line in text.splitlines() if f"/marker/{turn}" in line]
        assert text.count("/marker/") == 1
    assert " serving.started " in files["1234.log.2.gz"]
    assert " store.closed " in files["1234.log"]
    # Once for each file that was moved, and of that instance only.
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["reload volcache@1234.service"] * 4
