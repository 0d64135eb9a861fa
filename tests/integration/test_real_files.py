"""
Real files through a real server that is killed half way, at a size for every day.

`real_files.py` beside this file does the same with everything there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.real_files import (
    MIB,
    parse_options,
    plan_that_fits,
    plan_that_overflows,
    run,
)
from support.folders import files_of_total, python_files

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OPTIONS = ["--connections", "2", "--volume-size", str(8 * MIB)]


def test_acknowledged_files_survive_kill_and_restarts(tmp_path: Path) -> None:
    """Every acknowledged file comes back byte for byte after kill -9 and SIGTERM."""
    files = python_files(300)
    outcome = run(plan_that_fits(files, parse_options(OPTIONS)), files, tmp_path)
    assert outcome.acks + outcome.unreadable == len(files)
    assert outcome.is_good, "\n".join(outcome.lines())
    assert outcome.found == outcome.acks


def test_small_cache_keeps_newest_files_within_its_room(tmp_path: Path) -> None:
    """Without room for all, the newest are there, none wrong, the room kept to."""
    plan = plan_that_overflows(parse_options(OPTIONS))
    room = plan.volume_num * plan.volume_size
    files = files_of_total(2 * room, file_bytes_min=32 << 10, limit=300)
    outcome = run(plan, files, tmp_path)
    assert outcome.is_good, "\n".join(outcome.lines())
    assert 0 < outcome.must_be_there <= outcome.found < outcome.acks
