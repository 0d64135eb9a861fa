"""A directory with purges is read by a start and by the tools."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.contents import archived
from support.stores import open_fifo, value_of
from volcache.cli import main as cli

V2 = Path(__file__).parent / "v2"
NOW_US = 1_790_000_000_000_000
VALUES = {
    b"tiles/12/a": None,
    b"tiles/12/b": b"new",
    b"tiles/13/a": b"old",
    "gr\xfcn/1".encode(): None,
}


@pytest.fixture(params=["purged", "purged_appended"])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the directory, with a PURGE.txt as a whole or with a line appended."""
    return Path(shutil.copytree(V2 / request.param, tmp_path / "purged"))


@pytest.mark.parametrize("lost", ["", "META.txt", "index"])
def test_open_with_purges_makes_them_misses(directory: Path, lost: str) -> None:
    """Also if META.txt or the index files are lost."""
    if lost == "index":
        shutil.rmtree(directory / lost)
    elif lost:
        (directory / lost).unlink()
    store = open_fifo(directory, volume_size=2048, volume_num=3)
    assert {key: value_of(store.get(key)) for key in VALUES} == VALUES
    assert store.index.purges() == [
        (NOW_US + 4, 1, b"tiles/12/"),
        (NOW_US + 6, 1, "gr\xfcn/".encode()),
    ]
    store.close()


def test_open_with_appended_purges_makes_the_file_whole(directory: Path) -> None:
    """Nothing is appended to an older file before, and an older version reads it."""
    open_fifo(directory, volume_size=2048, volume_num=3).close()
    lines = (directory / "PURGE.txt").read_bytes().splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith(b"checksum ")


def test_tools_with_purges_leave_out_what_was_purged(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dump` names the state, `export` has no files of it, `check` finds nothing."""
    assert cli.main(["check", str(directory)]) == 0
    capsys.readouterr()
    assert cli.main(["dump", str(directory)]) == 0
    rows = [line.split()[-2:] for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["purged", "tiles/12/a"],
        ["superseded", "tiles/12/b"],
        ["live", "tiles/13/a"],
        ["purged", "gr%C3%BCn/1"],
        ["live", "tiles/12/b"],
    ]
    assert cli.main(["export", str(directory), str(tmp_path / "out")]) == 0
    assert sorted(archived(tmp_path / "out")) == ["tiles/12/b", "tiles/13/a"]


def test_tools_with_a_wrong_bit_in_purge_report_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `check`, and by a start."""
    path = directory / "PURGE.txt"
    path.write_bytes(path.read_bytes().replace(b"12/", b"13/"))
    assert cli.main(["check", str(directory)]) == 1
    assert "PURGE.txt offset 0: expected serial" in capsys.readouterr().out
    assert cli.main(["dump", str(directory)]) == 1
    assert "do not belong together: PURGE.txt. " in capsys.readouterr().err
    assert cli.main(["repair", str(directory)]) == 0
    assert (
        "volumes that may have purged values were left out" in capsys.readouterr().out
    )
    store = open_fifo(directory, volume_size=2048, volume_num=3)
    assert store.get(b"tiles/12/a") is None
    store.close()
