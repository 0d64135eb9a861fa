"""The systemd units are valid."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from volcache.server.notify import BEAT_SECONDS

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "systemd"
INSTALLED = "/opt/volcache/.venv/bin/volcache"


@pytest.mark.integration
def test_units_are_valid(tmp_path: Path) -> None:
    """`systemd-analyze verify` reports nothing."""
    for unit in UNITS.glob("volcache@.*"):
        text = unit.read_text().replace(INSTALLED, "/usr/bin/env")
        text = text.replace("file:/opt/volcache", "file:/usr/share")
        (tmp_path / unit.name).write_text(text)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".service", ".socket"]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no"]
        + [f"{tmp_path}/volcache@1234.{kind}" for kind in ("service", "socket")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_service_runs_the_command_line() -> None:
    """With the installed configuration and a mount point for each instance."""
    unit = (UNITS / "volcache@.service").read_text()
    assert f"\nExecStart={INSTALLED} serve /etc/volcache/volcache.toml\n" in unit
    assert "\nEnvironment=VOLCACHE_MOUNT_POINT=/srv/volcache/%i\n" in unit


def test_service_is_watched_and_reloaded() -> None:
    """A wrong setting stops the reload before the signal; the watchdog is patient."""
    lines = (UNITS / "volcache@.service").read_text().splitlines()
    reloads = [line for line in lines if line.startswith("ExecReload=")]
    assert reloads == [
        f"ExecReload={INSTALLED} config check /etc/volcache/volcache.toml",
        "ExecReload=/bin/kill -HUP $MAINPID",
    ]
    assert "Type=notify" in lines
    assert "Environment=VOLCACHE_INSTANCE=%i" in lines
    [watchdog] = [line for line in lines if line.startswith("WatchdogSec=")]
    # The kernel waits 30 s for a command to a disk.
    assert int(watchdog.removeprefix("WatchdogSec=")) > 30 + BEAT_SECONDS


@pytest.mark.integration
def test_service_is_well_confined(tmp_path: Path) -> None:
    """`systemd-analyze security` rates the exposure: 10 is the worst."""
    unit = tmp_path / "volcache@1234.service"
    unit.write_text((UNITS / "volcache@.service").read_text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_logs_are_rotated_with_a_reload() -> None:
    """A signal by itself would not check the settings."""
    text = (UNITS / "volcache.logrotate").read_text()
    assert 'systemctl reload "volcache@' in text
    assert "kill" not in text


@pytest.mark.parametrize("path", sorted(UNITS.iterdir()), ids=lambda path: path.name)
def test_file_begins_with_a_comment(path: Path) -> None:
    """It states what the file is for."""
    assert path.read_text().startswith("# ")
