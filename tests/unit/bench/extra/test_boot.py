"""The time to open a store is measured on a store that holds all its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.extra.boot import STATES, Job, fill, measure, open_once
from bench.extra.script import ScriptError

JOB = Job(keys=50, key_size=30, volume_size=1 << 20)


@pytest.mark.slow
def test_each_state_of_the_files_opens_with_all_keys(tmp_path: Path) -> None:
    """Seconds, keys per second, CPU and bytes for each key, unless one is missing."""
    fill(str(tmp_path), JOB)
    for name in STATES:
        row = measure(name, tmp_path, JOB, rounds=1)
        assert (row[0], len(row)) == (name, 6)
    with pytest.raises(ScriptError, match="key 50 is missing"):
        open_once(str(tmp_path), Job(keys=51, key_size=30, volume_size=1 << 20))
