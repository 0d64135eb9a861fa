"""`volcache repair` rebuilds index files from volumes, and may be killed at any step."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from support.contents import values
from support.damage import VOLUME_NUM, VOLUME_SIZE, fill
from support.stores import (
    Crash,
    CrashingFileSystem,
    UnsyncedFileSystem,
)
from volcache.cli.check import check
from volcache.cli.repair import repair

pytestmark = pytest.mark.crash

OPTIONS: Final = {"volume_size": VOLUME_SIZE, "volume_num": VOLUME_NUM}


def problems(directory: Path) -> list[str]:
    """Return the files in which `volcache check` finds a fault."""
    lines: list[str] = []
    check(str(directory), lines.append)
    return [line.split()[1] for line in lines[:-1]]


def data_of(directory: Path) -> list[bytes]:
    """Return the bytes of each volume."""
    return [path.read_bytes() for path in sorted((directory / "data").iterdir())]


def test_a_repair_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    """A start in between finds all values, too."""
    whole = tmp_path / "whole"
    fill(whole, records=100)
    shutil.copytree(whole, tmp_path / "served")
    expected = values(tmp_path / "served", **OPTIONS)
    for survive in range(100):
        directory = tmp_path / str(survive)
        shutil.copytree(whole, directory)
        (directory / "META.txt").unlink()
        (directory / "index" / "0").write_bytes(b"# volcache ind")
        fs: Any = CrashingFileSystem(UnsyncedFileSystem(), survive, torn=9)
        ended = False
        with suppress(Crash):
            repair(str(directory), fs, lambda _: None)
            ended = True
        fs.die()
        shutil.copytree(directory, tmp_path / f"{survive} served")
        assert values(tmp_path / f"{survive} served", **OPTIONS) == expected
        repair(str(directory), UnsyncedFileSystem(), lambda _: None)
        assert problems(directory) == []
        assert data_of(directory) == data_of(whole)
        assert values(directory, **OPTIONS) == expected
        if ended:
            break
    else:
        pytest.fail("the repair never completed")
    assert survive > 10
