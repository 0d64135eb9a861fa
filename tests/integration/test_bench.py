"""The benchmarks run and remove what they made; no figure is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import run

pytestmark = pytest.mark.integration


def places(tmp_path: Path) -> list[str]:
    """Return the options for folders of this test."""
    return ["--directory", str(tmp_path / "work"), "--output", str(tmp_path / "output")]


def test_quick_run_gives_each_contender_figures_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    """Also the workload that wrk measures."""
    names = "read-1k-cold,read-1k-wrk"
    assert run.main(["--quick", "--only", names, *places(tmp_path)]) == 0
    kept = json.loads((tmp_path / "output" / "results.json").read_text())
    found = {one["name"]: one["rounds"] for one in kept["workloads"]}
    assert set(found["read-1k-cold"]) == {"volcache", "nginx", "one file per key"}
    assert set(found["read-1k-wrk"]) == {"volcache", "floor", "nginx"}
    for rounds in found.values():
        for (figures,) in rounds.values():
            assert figures["rate"] > 0
            assert figures["p50"] <= figures["p99"] <= figures["p999"] <= figures["max"]
    assert list((tmp_path / "work").iterdir()) == []
