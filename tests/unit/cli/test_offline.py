"""The commands for a mount point that nobody serves: what becomes of them in a pipe."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import SOURCE
from support.stores import open_store, value_of
from support.unheard import VOLCACHE, run_unheard
from volcache.cli import main as cli

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"

# Each line meets the pipe by itself, or all of them do at the end.
both_ways = pytest.mark.parametrize("unbuffered", [False, True])


@both_ways
@pytest.mark.parametrize(("name", "code"), [("bit_rot", 1), ("torn_tail", 0)])
def test_check_gives_its_verdict_to_nobody(
    name: str, code: int, *, unbuffered: bool
) -> None:
    """0 is "no damage" and nothing else."""
    assert run_unheard(GOLDEN, "check", name, unbuffered=unbuffered) == (code, "")


@both_ways
def test_repair_goes_on_when_nobody_reads(tmp_path: Path, *, unbuffered: bool) -> None:
    """Every file is written."""
    shutil.copytree(GOLDEN / "no_index", tmp_path / "store")
    assert run_unheard(tmp_path, "repair", "store", unbuffered=unbuffered) == (0, "")
    assert cli.main(["check", str(tmp_path / "store")]) == 0


@both_ways
def test_export_goes_on_when_nobody_reads(tmp_path: Path, *, unbuffered: bool) -> None:
    """Files behind a key that is left out are there; that it is, the exit code says."""
    store = open_store(tmp_path / "store")
    for key in (b"../out", b"one", b"..", b"two"):
        store.put(key, key)
    store.close()
    assert run_unheard(
        tmp_path, "export", "store", "target", unbuffered=unbuffered
    ) == (1, "")
    found = {path.name: path.read_bytes() for path in (tmp_path / "target").iterdir()}
    assert found == {"one": b"one", "two": b"two"}


@both_ways
def test_import_goes_on_when_nobody_reads(tmp_path: Path, *, unbuffered: bool) -> None:
    """Files behind one that is left out are stored; that it is, the exit code says."""
    open_store(tmp_path / "store").close()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").symlink_to("b")
    (tmp_path / "files" / "b").write_bytes(b"value")
    assert run_unheard(tmp_path, "import", "store", "files", unbuffered=unbuffered) == (
        1,
        "",
    )
    store = open_store(tmp_path / "store")
    assert value_of(store.get(b"b")) == b"value"
    store.close()


@both_ways
def test_dump_ends_when_nobody_reads(*, unbuffered: bool) -> None:
    """There is nothing but its lines, and who read them has seen enough."""
    assert run_unheard(GOLDEN, "dump", "healthy", unbuffered=unbuffered) == (0, "")


def test_closed_output_is_no_error() -> None:
    """As `>&-` leaves it."""
    command = f"exec {sys.executable} -c '{VOLCACHE}' check healthy >&-"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=GOLDEN,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
