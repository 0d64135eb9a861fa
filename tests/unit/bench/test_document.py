"""The report of the benchmarks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import document
from results import Result
from run import chosen
from runner import Bench
from scale import QUICK
from workloads import WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = {
    "machine": {"processor": "one"},
    "warnings": ["busy"],
    "seconds": 1,
    "rounds": 2,
    "took": 5,
}
READ = Result(
    name="read",
    title="Reading",
    rounds={
        "volcache": [{"rate": 90.0, "cpu": 10.0}, {"rate": 110.0, "cpu": 14.0}],
        "floor": [{"rate": 200.0, "cpu": 5.0}, {"rate": 200.0, "cpu": 7.0}],
    },
)
NAIVE = replace(READ, rounds={**READ.rounds, "one file per key": [{"cpu": 40.0}] * 2})
BROKEN = Result(name="broken", title="Breaking", error="it broke\nin two")


def test_a_table_has_medians_ranges_and_ratios() -> None:
    """The first contender is held against the others."""
    lines = document.section(READ).splitlines()
    assert lines[-2] == "| volcache | 100 (90 to 110) | 12.0 (10.0 to 14.0) |  |  |"
    assert lines[-1] == (
        "| floor | 200 (200 to 200) | 6.0 (5.0 to 7.0) | 2.00 (2.00 to 2.00) "
        "| 0.50 (0.45 to 0.55) |"
    )


def test_a_workload_that_went_wrong_says_why() -> None:
    """And the others keep their figures."""
    text = document.report_text(CONTENT, [BROKEN, READ])
    assert "No figures: it broke\n" in text
    assert "| floor |" in text


def test_readme_is_replaced_between_the_markers_only() -> None:
    """What went wrong, and what has no naive way beside it, has no row."""
    text = f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n"
    made = document.readme_with(text, [NAIVE, READ, BROKEN])
    assert made.startswith(f"before\n{document.BEGIN}\n| ")
    assert made.endswith(
        f"\n| read: Reading | 100 | 12.0 | 2.00 | - | 0.30 |\n{document.END}\nafter\n"
    )
    assert document.readme_with(made, [NAIVE, READ, BROKEN]) == made


def test_a_readme_without_markers_is_left_alone() -> None:
    """Nobody knows where the table would go."""
    with pytest.raises(ValueError, match="lacks"):
        document.readme_with("text", [READ])


def test_the_markers_are_in_readme() -> None:
    """So that a whole run does not fail at its end."""
    text = document.README.read_text(encoding="utf-8")
    assert text.count(document.BEGIN) == text.count(document.END) == 1


def test_every_single_figure_is_kept(tmp_path: Path) -> None:
    """With what the report makes of them."""
    document.write_report(
        CONTENT, [READ], tmp_path, with_readme=False, with_plots=False
    )
    kept = json.loads((tmp_path / "bench" / "results.json").read_text())
    assert kept["workloads"][0]["rounds"] == READ.rounds
    summary = kept["workloads"][0]["summary"]["volcache"]
    assert summary["cpu"] == {"median": 12, "low": 10, "high": 14}


def test_workloads_have_names_of_their_own_and_extra_ones_are_asked_for() -> None:
    """The default leaves out what takes long."""
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)
    assert "restart-5m" not in [workload.name for workload in chosen("")]
    assert [workload.name for workload in chosen("restart-5m")] == ["restart-5m"]


def test_an_unknown_workload_is_named_with_those_there_are() -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit, match=r"called reed; there are: .*read-1k"):
        chosen("read-1k,reed")


def test_every_round_begins_with_another_contender(tmp_path: Path) -> None:
    """And all have a turn in each."""
    bench = Bench(tmp_path, QUICK)
    assert list(bench.turns(["a", "b"])) == [(0, "a"), (0, "b")]
    two = Bench(tmp_path, replace(QUICK, rounds=2))
    assert list(two.turns(["a", "b"])) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_another_revision_stands_beside_volcache(tmp_path: Path) -> None:
    """Where volcache itself is measured."""
    bench = Bench(tmp_path, QUICK, base=tmp_path)
    rows = {workload.name: bench.rows_of(workload) for workload in WORKLOADS}
    assert rows["read-1k"][:2] == ("volcache", "base")
    assert "base" not in rows["instances-cold"]
