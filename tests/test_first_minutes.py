"""README's lines that install and serve do so, in a new copy of the tree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from support.checkout import ROOT, committed, copied
from support.pages import blocks
from support.ports import listens, pick_port
from support.program import ended
from support.waiting import comes_true

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.slow]

# How long a line may take until it serves: wheels are built and tested before.
DEADLINE_SECONDS: Final = 1000.0
LINES: Final = [
    command.partition("#")[0].strip()
    for block in blocks(ROOT / "README.md")
    if "serves until Ctrl-C" in block.reason
    for command, _ in block.commands()
    if "docker" not in command  # tests/image builds and starts the image without.
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy what git has, with nothing that was built, as a repository of its own."""
    return committed(copied(tmp_path / "tree"))


def activated(folder: Path) -> dict[str, str]:
    """Make a virtual environment; return the variables of a shell that uses it."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    left = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return left | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


def served(line: str, tree: Path, environ: Mapping[str, str]) -> str:
    """Run a line until it serves, store and read a value, and press Ctrl-C."""
    port = pick_port()
    place = f"localhost:{port}/foo"
    with (tree.parent / "output").open("w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", line],
            cwd=tree,
            env={**environ, "VOLCACHE_PORT": str(port)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert comes_true(
                lambda: shell.poll() is not None or listens(port), DEADLINE_SECONDS
            )
            put = ended(["curl", "-sS", "-X", "PUT", place, "-d", "hello"])
            got = ended(["curl", "-sS", place])
            os.killpg(shell.pid, signal.SIGINT)
            shell.wait(30)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        output.seek(0)
        printed = output.read()
    assert (put.returncode, got.stdout) == (0, "hello"), f"{put}{got}{printed}"
    assert not listens(port), printed
    return printed


@pytest.mark.parametrize("line", LINES)
def test_line_of_readme_in_a_new_tree_serves(
    line: str, tree: Path, tmp_path: Path
) -> None:
    """With a new virtual environment; of the wheels, that of this Python is enough."""
    environ = activated(tmp_path / "environment")
    version = "{}{}".format(*sys.version_info)
    printed = served(line, tree, environ | {"ONLY": f"cp{version}-x86_64"})
    if line == "make run":
        steps = re.findall(r"^setup: (\w+)", printed, re.MULTILINE)
        assert steps[0] == "creating"
        assert steps[-1] == "done"
        assert "Downloading" in printed or "Using cached" in printed  # pip's progress.
