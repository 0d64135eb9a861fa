"""The table of workloads, the command line of the benchmarks, and what they run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from bench import run
from bench.workloads import (
    COMPARISON_ROUNDS,
    FULL,
    WORKLOADS,
    Workload,
    select,
)
from support.tables import rows

WRONG = "unknown workload: reed; choose from: write-1k"


def names(workloads: Iterable[Workload]) -> list[str]:
    """Return their names."""
    return [workload.name for workload in workloads]


def test_workloads_are_selected_by_name() -> None:
    """All by default, in the order of the table; those of one dataset stand together."""
    assert len(set(names(WORKLOADS))) == len(WORKLOADS)
    assert names(select("")) == names(WORKLOADS)
    assert names(select("misses, write-1k")) == ["write-1k", "misses"]
    datasets = [workload.dataset(FULL) for workload in WORKLOADS]
    changes = sum(a != b for a, b in pairwise(datasets))
    assert changes == len(set(datasets)) - 1
    with pytest.raises(ValueError, match=WRONG):
        select("read-1k,reed")
    with pytest.raises(SystemExit, match=WRONG):  # Exit code 1 and one line.
        run.main(["--only", "reed"])


@rows(
    ([], FULL.rounds, True),
    (["--rounds", "9"], 9, True),
    (["--quick"], 1, False),
    (["--only", "misses"], FULL.rounds, False),
    (["--base", "HEAD"], COMPARISON_ROUNDS, False),
    (["--base", "HEAD", "--quick"], 1, False),
    (["--base", "HEAD", "--rounds", "2"], 2, False),
    (["--output", "build/other"], FULL.rounds, False),
)
def test_options_set_the_rounds_and_only_a_whole_run_writes_to_docs(
    arguments: list[str], rounds: int, *, is_whole: bool
) -> None:
    """A comparison has more rounds."""
    options = run.parse_options(arguments)
    assert run.scale_of(options).rounds == rounds
    assert options.is_whole is is_whole
