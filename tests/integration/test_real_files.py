"""
Real files through a real server that is killed half way, at a size for every day.

`real_files.py` beside this file does the same with everything there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.real_files import MIB, python_files, repeated, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_acknowledged_files_survive_kill_and_restarts(tmp_path: Path) -> None:
    """Every acknowledged file comes back byte for byte after kill -9 and SIGTERM."""
    files = python_files(300)
    outcome = run(files, tmp_path, volume_size=8 * MIB, connections=2)
    assert not outcome.faults, outcome
    assert outcome.files + len(outcome.unreadable) == len(files)
    assert outcome.must_be_there == outcome.found == outcome.files > 250


def test_small_cache_keeps_newest_files_within_its_room(tmp_path: Path) -> None:
    """Without room for all, the newest are there, none wrong, the room kept to."""
    large = [file for file in python_files() if file[1].stat().st_size >= 32 << 10]
    files = repeated(large[:300], 64 * MIB)
    outcome = run(files, tmp_path, volume_size=8 * MIB, volume_num=4, connections=2)
    assert not outcome.faults, outcome
    assert 0 < outcome.must_be_there <= outcome.found < outcome.files
