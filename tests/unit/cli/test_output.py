"""What commands do if their output cannot be written."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

from support.command_line import VOLCACHE, Run, run_unheard
from support.contents import archived
from support.damage import extents, flip
from support.process import SOURCE
from support.program import ended
from support.stores import open_store
from volcache import shipped

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "v2"
# With the exit code if the reader goes away.
COMMANDS = {
    "check bit_rot": 1,
    "check torn_tail": 0,
    "check --json torn_tail": 0,
    "dump healthy": 0,
    "repair no_index": 0,
    "export keys exported": 1,
    "files shipped": 0,
    "check --help": 0,
    "--help": 0,
    "--version": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
def test_commands_whose_output_fails_still_complete(
    tmp_path: Path, run: Run, *, is_full: bool, unbuffered: bool
) -> None:
    """A full disk is one line and exit code 1; a reader that went away is nothing."""
    for name in ("bit_rot", "torn_tail", "healthy", "no_index"):
        shutil.copytree(GOLDEN / name, tmp_path / name)
    store = open_store(tmp_path / "keys")
    for key in (b"one", b"two", b"three"):
        store.put(key, key)
    store.close()
    *_, last = extents(tmp_path / "keys")  # It is left out of an export.
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    flip(tmp_path / "keys" / "data" / str(last.volume), last.end - 1, dice)
    line = "volcache: standard output cannot be written: No space left on device\n"
    for words, code in COMMANDS.items():
        found = run_unheard(
            tmp_path, *words.split(), is_full=is_full, unbuffered=unbuffered
        )
        assert found == ((1, line) if is_full else (code, "")), words
    assert run("check", tmp_path / "no_index").code == 0
    assert archived(tmp_path / "exported") == {"one": b"one", "two": b"two"}
    written = [path for path in (tmp_path / "shipped").rglob("*") if path.is_file()]
    assert len(written) == len(list(shipped.shipped_files(ROOT)))


@pytest.mark.slow
def test_command_without_standard_output_exits_0() -> None:
    """As `>&-` leaves it."""
    command = f"exec {sys.executable} -c '{VOLCACHE}' check healthy >&-"
    environ = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}
    done = ended(["bash", "-c", command], environ, GOLDEN)
    assert (done.returncode, done.stderr) == (0, "")
