"""
Random runs of a store with two rings, with a crash after each step; see support/rings.py.

`CRASH_EXTENT` multiplies the number of runs, 0 makes 1,000 of each kind.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from support.extent import SEED, Count, examples
from support.memory import run_short_of_memory
from support.rings import KINDS, Kind, run_all

pytestmark = [pytest.mark.property, pytest.mark.slow]

RUNS = examples(1000) if examples(3) == 3 else examples(60)
STEPS = 100
_PER_TEST = 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(SEED, SEED + RUNS, _PER_TEST))
@pytest.mark.parametrize("kind", KINDS)
def test_no_crash_returns_an_older_or_deleted_value(
    kind: Kind, first: int, tmp_path: Path, record_property: Count
) -> None:
    """After every step of a random run, each key has its last value or is a miss."""
    if kind == "memory":
        arguments = (first, _PER_TEST, STEPS)
        total = Counter(
            json.loads(run_short_of_memory(tmp_path, "support.rings", *arguments))
        )
        assert total["failed"] > 5 * _PER_TEST
    else:
        total = run_all(kind, first, _PER_TEST, STEPS)

    assert total["images"] >= _PER_TEST * STEPS
    assert total["rotations"] > 5 * _PER_TEST
    assert total["copied"] > (_PER_TEST if kind in {"kills", "power"} else 0)
    record_property("ring_runs", _PER_TEST)
    record_property("ring_crashes", total["images"])
