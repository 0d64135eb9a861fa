"""The benchmarks run and remove what they made; no figure is judged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import run
from bench.machine import ROOT, family
from support.waiting import wait_until

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


def test_interrupted_run_leaves_no_server_and_no_file(tmp_path: Path) -> None:
    """Ctrl-C while servers run."""
    log = tmp_path / "log"
    # So many rounds that the run cannot end before the signal.
    only = ["--only", "sequential-cold", "--rounds", "1000"]
    arguments = ["--quick", *only, *places(tmp_path)]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "bench.run", *arguments], stderr=stderr, cwd=ROOT
        ) as process,
    ):
        wait_until(lambda: b"1/1000 volcache" in log.read_bytes(), "the first figures")
        started = family(process.pid)[1:]
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert started
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert list((tmp_path / "work").iterdir()) == []
    assert not (tmp_path / "output").exists()
