"""Settings on the command line of make reach the server; those of the machine do not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
# In place of Python: prints the settings and the arguments.
PRINT = """#!/bin/sh
env | grep ^VOLCACHE_ | sort
echo "$@"
"""


def make(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run make with stand-ins for the installation and for Python."""
    for name, text in (("tools/setup.sh", "#!/bin/sh\n"), (".venv/bin/python", PRINT)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(MAKEFILE, folder)
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], []),
        (["PORT=1235"], ["VOLCACHE_PORT=1235"]),
        (["port=1", "IP=::1"], ["VOLCACHE_IP=::1", "VOLCACHE_PORT=1"]),
        (["POORT=1"], ["VOLCACHE_POORT=1"]),  # The server refuses it.
        (["VOLCACHE_PORT=5"], ["VOLCACHE_PORT=5"]),
        (["ADMIN_TOKEN=it's \"a $b"], ["VOLCACHE_ADMIN_TOKEN=it's \"a $b"]),
    ],
)
def test_settings_of_make_run_are_passed(
    tmp_path: Path, words: list[str], settings: list[str]
) -> None:
    """As they are; a hosting platform may set PORT in the environment."""
    done = make(tmp_path, "run", *words, PORT="99", IP="x")
    assert done.stdout.splitlines() == [*settings, "src/ conf/volcache.toml"]
    assert (done.returncode, done.stderr) == (0, "")


def test_config_of_make_run_is_no_setting(tmp_path: Path) -> None:
    """It names the file."""
    done = make(tmp_path, "run", "CONFIG=my.toml", "PORT=1")
    assert done.stdout.splitlines() == ["VOLCACHE_PORT=1", "src/ my.toml"]


def test_make_cluster_takes_the_port_of_nginx_only(tmp_path: Path) -> None:
    """The rest is in files."""
    for words, error in (
        (["PORT=1", "IP=x"], "make cluster: unknown IP; allowed is PORT"),
        (["PORT=x"], "make cluster: PORT = x is not allowed; allowed is a number"),
    ):
        done = make(tmp_path, "cluster", *words)
        assert done.returncode == 2
        assert error in done.stderr
