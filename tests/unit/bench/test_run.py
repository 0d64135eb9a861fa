"""The command line of the benchmarks."""

from __future__ import annotations

import pytest

from bench import run
from bench.workloads import COMPARISON_ROUNDS, FULL, QUICK, select
from support.tables import each_row


def test_the_plan_names_each_workload_its_contenders_and_the_seconds() -> None:
    """The first line has the total."""
    lines = list(run.plan(select("read-1k,misses"), QUICK))
    assert lines[0].startswith("2 workloads, 1 round of 1 s for each contender: about ")
    assert len(lines) == 4
    assert lines[1].split()[:3] == ["read-1k", "8", "s"]
    assert "volcache; floor; nginx; nginx, open_file_cache; memcached" in lines[1]
    assert "misses" in lines[2]


@each_row(
    ("arguments", "rounds", "is_whole"),
    [
        ([], FULL.rounds, True),
        (["--rounds", "9"], 9, True),
        (["--quick"], 1, False),
        (["--only", "misses"], FULL.rounds, False),
        (["--base", "HEAD"], COMPARISON_ROUNDS, False),
        (["--base", "HEAD", "--quick"], 1, False),
        (["--base", "HEAD", "--rounds", "2"], 2, False),
        (["--output", "build/other"], FULL.rounds, False),
    ],
)
def test_options_set_the_rounds_and_only_a_whole_run_writes_to_docs(
    arguments: list[str], rounds: int, *, is_whole: bool
) -> None:
    """A comparison has more rounds."""
    options = run.parse_options(arguments)
    assert run.scale_of(options).rounds == rounds
    assert options.is_whole is is_whole


def test_an_unknown_workload_ends_the_run_with_the_names() -> None:
    """Exit code 1 and one line."""
    with pytest.raises(
        SystemExit, match="unknown workload: reed; choose from: write-1k"
    ):
        run.main(["--only", "reed"])
