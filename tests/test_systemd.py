"""The units of systemd say what systemd understands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNITS = ROOT / "systemd"
INSTALLED = "/opt/volcache/.venv/bin/volcache"


@pytest.mark.integration
def test_units_are_understood(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about an instance's units."""
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


def test_service_is_started_as_users_start_it() -> None:
    """The command of the unit is one that the command line knows."""
    unit = (UNITS / "volcache@.service").read_text()
    assert f"\nExecStart={INSTALLED} serve /etc/volcache/volcache.toml\n" in unit
    assert "\nEnvironment=VOLCACHE_MOUNT_POINT=/srv/volcache/%i\n" in unit


@pytest.mark.parametrize("path", sorted(UNITS.iterdir()), ids=lambda path: path.name)
def test_file_says_what_it_is_for(path: Path) -> None:
    """Each begins with a comment."""
    assert path.read_text().startswith("# ")
