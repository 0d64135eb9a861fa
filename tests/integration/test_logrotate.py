"""Debian's logrotate with the shipped configuration, and a server under load."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import requests

from support.fetched import fetched_program
from support.load import Load
from support.process import ServerProcess
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SHIPPED: Final = Path(__file__).parents[2] / "systemd" / "volcache.logrotate"
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

    def wait_for_line(self, text: str) -> None:
        """Return when the new access log has a line that contains a text."""
        wait_until(lambda: text in self.access.read_text(), f"a line of {text}")

    def calls(self) -> list[str]:
        """Return the calls of systemctl."""
        return (self._folder / "calls").read_text().splitlines()


def read(path: Path) -> str:
    """Return a log, compressed or not."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    return path.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield one whose server runs."""
    made = Machine(tmp_path)
    with made.server:
        yield made


def test_logrotate_starts_new_files_and_loses_no_line(machine: Machine) -> None:
    """Twice under load: the oldest file is compressed, each request has one line."""
    with Load(machine.server.port, clients=2) as load:
        for turn in range(2):
            load.wait_for(200)
            machine.rotate()
            marker = f"/marker/{turn}"
            requests.get(f"{machine.server.url}{marker}", timeout=5)
            machine.wait_for_line(marker)
            assert marker not in read(machine.logs / "1234-access.log.1")
        load.wait_for(200)
    assert machine.server.terminate() == 0

    assert all(answer.status and answer.is_right for answer in load.answers)
    files = {path.name: read(path) for path in machine.logs.iterdir()}
    assert sorted(files) == [
        *("1234-access.log", "1234-access.log.1", "1234-access.log.2.gz"),
        *("1234.log", "1234.log.1", "1234.log.2.gz"),
    ]
    lines = [
        line.split('"')[1]
        for name, text in files.items()
        for line in text.splitlines()
        if "access" in name
    ]
    expected = [f"{answer.method} {answer.key} HTTP/1.1" for answer in load.answers]
    assert sorted(x for x in lines if "/load/" in x) == sorted(expected)
    assert all(text for name, text in files.items() if "access" in name)
    assert " store.closed " in files["1234.log"]
    assert " serving.started " in files["1234.log.2.gz"]
    # Once for each file that was moved, and of that instance only.
    assert set(machine.calls()) == {"reload volcache@1234.service"}
    assert len(machine.calls()) == 4
