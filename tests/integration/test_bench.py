"""The benchmarks run and remove what they made; no figure is judged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench import run
from bench.machine import ROOT, commit, family
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def places(tmp_path: Path) -> list[str]:
    """Return the options for folders of this test."""
    return ["--directory", str(tmp_path / "work"), "--output", str(tmp_path / "output")]


def test_a_quick_run_gives_each_contender_figures_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is printed first."""
    arguments = ["--quick", "--only", "read-1k-cold", *places(tmp_path)]
    assert run.main(arguments) == 0
    output = tmp_path / "output"
    kept = json.loads((output / "results.json").read_text())
    (workload,) = kept["workloads"]
    assert list(workload["rounds"]) == ["volcache", "nginx", "one file per key"]
    for (figures,) in workload["rounds"].values():
        assert figures["rate"] > 0
        assert figures["p50"] <= figures["p99"] <= figures["p999"] <= figures["max"]
    assert "| one file per key |" in (output / "results.md").read_text()
    assert list((tmp_path / "work").iterdir()) == []
    assert capsys.readouterr().err.startswith("1 workload, 1 round of 1 s")


@pytest.mark.skipif(commit() == "none", reason="needs the history of the repository")
@pytest.mark.nightly
def test_a_comparison_measures_this_tree_and_a_revision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of ratios ends the output."""
    arguments = ["--quick", "--only", "read-1k-cold", "--base", "HEAD"]
    assert run.main([*arguments, *places(tmp_path)]) == 0
    kept = json.loads((tmp_path / "output" / "results.json").read_text())
    assert list(kept["workloads"][0]["rounds"]) == ["volcache", "base"]
    assert kept["machine"]["base"] == "HEAD"
    assert "CPU µs of HEAD" in capsys.readouterr().out
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.skipif(commit() == "none", reason="needs the history of the repository")
def test_an_unknown_revision_ends_the_run_with_the_error_of_git(tmp_path: Path) -> None:
    """Nothing is left behind."""
    with pytest.raises(SystemExit, match="--base no-such-revision"):
        run.main(["--quick", "--base", "no-such-revision", *places(tmp_path)])
    assert list((tmp_path / "work").iterdir()) == []


def test_an_interrupted_run_leaves_no_server_and_no_file(tmp_path: Path) -> None:
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
