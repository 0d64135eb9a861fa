"""The benchmarks run, and clean up behind them; no figure is judged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import run
from proc import family
from support.waiting import wait_until

pytestmark = pytest.mark.integration

RUN = Path(run.__file__)


def test_the_smallest_workload_gives_a_report(tmp_path: Path) -> None:
    """Every contender of it has its figures, and nothing stays on the disk."""
    work, output = tmp_path / "work", tmp_path / "output"
    arguments = ["--quick", "--no-plots", "--only", "read-1k-cold"]
    places = ["--directory", str(work), "--output", str(output)]
    assert run.main([*arguments, *places]) == 0
    kept = json.loads((output / "bench" / "results.json").read_text())
    (workload,) = kept["workloads"]
    assert list(workload["rounds"]) == ["volcache", "nginx", "one file per key"]
    for (figures,) in workload["rounds"].values():
        assert figures["rate"] > 0
        assert figures["p50"] <= figures["p99"] <= figures["p999"] <= figures["max"]
    assert "| one file per key |" in (output / "BENCHMARKS.md").read_text()
    assert list(work.iterdir()) == []


def test_an_interrupted_run_leaves_no_server_and_no_file(tmp_path: Path) -> None:
    """Ctrl-C in the middle, while servers run."""
    work, log = tmp_path / "work", tmp_path / "log"
    arguments = ["--quick", "--no-plots", "--only", "sequential-cold"]
    places = ["--directory", str(work), "--output", str(tmp_path / "output")]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, str(RUN), *arguments, *places], stderr=stderr
        ) as process,
    ):
        wait_until(lambda: b"1/1 volcache" in log.read_bytes(), "the first figures")
        started = family(process.pid)[1:]
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert started
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert list(work.iterdir()) == []
    assert not (tmp_path / "output").exists()
