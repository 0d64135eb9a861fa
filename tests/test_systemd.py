"""The systemd units are valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.program import ended
from volcache.server.notify import BEAT_SECONDS

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "conf/systemd"
INSTALLED = "/opt/volcache/.venv/bin/volcache"


def systemd_analyze(*words: str) -> tuple[int, str]:
    """Run the program; return its exit code and its output."""
    done = ended(["systemd-analyze", *words])
    return done.returncode, done.stdout + done.stderr


@pytest.mark.integration
def test_units_are_valid(tmp_path: Path) -> None:
    """`systemd-analyze verify` reports nothing; the service is well confined."""
    for unit in UNITS.glob("volcache@.*"):
        text = unit.read_text().replace(INSTALLED, "/usr/bin/env")
        text = text.replace("file:/opt/volcache", "file:/usr/share")
        (tmp_path / unit.name).write_text(text)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".service", ".socket"]
    names = [f"{tmp_path}/volcache@1234.{kind}" for kind in ("service", "socket")]
    assert systemd_analyze("verify", "--man=no", *names) == (0, "")
    unit = tmp_path / "volcache@1234.service"
    unit.write_text((UNITS / "volcache@.service").read_text())
    options = ["--offline=yes", "--threshold=20"]  # Of exposure: 100 is the worst.
    code, text = systemd_analyze("security", *options, str(unit))
    assert code == 0, text


def test_service_is_started_watched_and_reloaded() -> None:
    """A wrong setting stops the reload before the signal; the watchdog is patient."""
    lines = (UNITS / "volcache@.service").read_text().splitlines()
    assert f"ExecStart={INSTALLED} serve /etc/volcache/volcache.toml" in lines
    assert "Environment=VOLCACHE_MOUNT_POINT=/srv/volcache/%i" in lines
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


def test_logs_are_rotated_with_a_reload() -> None:
    """A signal by itself would not check the settings."""
    text = (UNITS / "volcache.logrotate").read_text()
    assert 'systemctl reload "volcache@' in text
    assert "kill" not in text
