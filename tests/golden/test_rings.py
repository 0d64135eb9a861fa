"""Directories with two rings are read by a start and by the tools."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.contents import archived
from support.stores import kill, open_store, value_of
from volcache.cli import main as cli
from volcache.store.eviction import Eviction

GOLDEN = Path(__file__).parent / "v2"
KILLED = {
    b"main/0": b"0" * 300,
    **{b"main/%d" % number: b"%d" % number * 100 for number in range(1, 5)},
    b"asked/0": b"0" * 120,  # in ring probation, not copied
    b"asked/1": b"1" * 120,  # copied
    b"asked/2": b"newer",  # copied, and put again
    b"asked/3": None,  # copied, and deleted
    b"asked/once": b"1" * 600,
}
STOPPED = (
    KILLED
    | {b"asked/0": None}
    | {b"later/%d" % number: b"%d" % number * 100 for number in range(4)}
)
DIRECTORIES = {
    "rings": STOPPED,
    "rings_killed": KILLED,
    "rings_no_index": KILLED,
    "rings_no_meta": KILLED,
    "rings_bit_rot": KILLED | {b"asked/1": None},
}
# Their files that are damaged.
DAMAGED = {
    # A killed process may have removed that of the oldest volume of each ring.
    "rings_no_index": {"index", "index/2", "index/3"},
    "rings_no_meta": {"META.txt"},
    "rings_bit_rot": {"data/3"},
}


@pytest.fixture(params=DIRECTORIES)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Copy one of the directories to `tmp_path / name`."""
    shutil.copytree(GOLDEN / request.param, tmp_path / request.param)
    return str(request.param)


def live(name: str) -> dict[str, bytes]:
    """Return the values of a directory as the files of an export."""
    found = DIRECTORIES[name]
    return {key.decode(): value for key, value in found.items() if value is not None}


def damaged(directory: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the files in which `volcache check` finds damage."""
    exit_code = cli.main(["check", str(directory)])
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[1] for line in lines if line.startswith("damaged ")}
    assert exit_code == bool(found)
    return found


def check_values(directory: Path, eviction: Eviction = "frequency") -> None:
    """Check the values that a process finds, and kill it."""
    store = open_store(directory, volume_size=1024, volume_num=5, eviction=eviction)
    for key, value in DIRECTORIES[directory.name].items():
        assert value_of(store.get(key)) == value, key
    kill(store)


@pytest.mark.parametrize("eviction", ["frequency", "fifo"])
def test_open_two_rings_reads_every_value(
    tmp_path: Path, name: str, eviction: Eviction
) -> None:
    """With either eviction policy, by two processes of which the first is killed."""
    for _ in range(2):
        check_values(tmp_path / name, eviction)


def test_tools_on_two_rings_read_both(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    That a key is in both rings is as it should be; damage on purpose is named.

    A damaged copy is not exported, nor is its original. A repair leaves a damaged record.
    """
    is_rotten = name == "rings_bit_rot"
    assert damaged(tmp_path / name, capsys) == DAMAGED.get(name, set())
    target = tmp_path / "target"
    assert cli.main(["export", str(tmp_path / name), str(target)]) == is_rotten
    assert ("left out asked/1" in capsys.readouterr().out) == is_rotten
    assert archived(target) == live(name)

    assert cli.main(["repair", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert damaged(tmp_path / name, capsys) == ({"data/3"} if is_rotten else set())
    check_values(tmp_path / name)


def test_dump_of_two_rings_names_that_of_each_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ring probation comes first: what follows in ring main is newer."""
    assert cli.main(["dump", str(GOLDEN / "rings_killed")]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rings = [line[2] for line in lines]
    assert rings == sorted(rings, reverse=True)
    states = {(line[-1], line[2]): line[-2] for line in lines}
    assert states["asked/0", "probation"] == "live"
    assert states["asked/1", "probation"] == "superseded"
    assert states["asked/1", "main"] == "live"
    assert states["asked/3", "main"] == "tombstone"
