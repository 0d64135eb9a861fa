"""
Measures volcache next to what could be used instead: `make bench`.

First prints what will be measured. The contenders of a workload take turns, so that
disturbances affect all of them alike, and ratios are taken within one round. A whole run
writes its report to docs/bench/, and its tables into the documents. A run of some
workloads, a quick one, or a comparison of two revisions writes to build/bench/ instead.

    .venv/bin/python -m bench.run [--quick] [--only NAMES] [--base REVISION]
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from os import sync
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.cases import CASES
from bench.load import LoadError, measure_rounds
from bench.machine import ROOT, describe, drop_pages, warnings
from bench.report import (
    DOCS,
    Result,
    bullets,
    comparison,
    fill_documents,
    section,
    write_report,
)
from bench.servers import Contenders
from bench.workloads import COMPARISON_ROUNDS, FULL, QUICK, WORKLOADS, select
from support.program import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from bench.load import Rounds
    from bench.workloads import Scale, Workload

BUILD: Final = ROOT / "build"


class Options(argparse.Namespace):
    """The command line."""

    quick: bool
    only: str
    base: str
    seconds: float | None
    rounds: int | None
    directory: Path
    output: Path | None

    @property
    def is_whole(self) -> bool:
        """Whether this is the run whose figures are kept in docs/."""
        return not (self.quick or self.only or self.base or self.output)

    @property
    def names(self) -> list[str]:
        """What is to be measured; empty for all but what must be named."""
        return [name.strip() for name in self.only.split(",") if name.strip()]


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """
    Read the command line.

    Raises:
        SystemExit: An option is wrong, or the help was asked for.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer keys, one round of one second")
    add("--only", default="", help="workloads to measure, separated by commas (all)")
    add("--base", default="", help="compare with this revision, and nothing else")
    add("--seconds", type=float, help="of load in each turn (1)")
    add("--rounds", type=int, help="how many (5; 15 with --base; 1 with --quick)")
    add("--directory", type=Path, default=BUILD, help="where files are kept (build)")
    add("--output", type=Path, help="where the report goes (docs/bench or build/bench)")
    options = parser.parse_args(arguments, namespace=Options())
    known = [workload.name for workload in WORKLOADS] + list(CASES)
    if unknown := set(options.names) - set(known):
        parser.error(
            f"unknown workload: {', '.join(unknown)}; choose from: {', '.join(known)}"
        )
    return options


def scale_of(options: Options) -> Scale:
    """Return how much the command line asks for."""
    scale = QUICK if options.quick else FULL
    rounds = COMPARISON_ROUNDS if options.base and not options.quick else scale.rounds
    return replace(
        scale,
        seconds=options.seconds or scale.seconds,
        rounds=options.rounds or rounds,
    )


def check_out(folder: Path, revision: str) -> Path:
    """
    Extract the sources of a revision into a folder, which is made, and build them.

    Raises:
        SystemExit: There is no such revision; the text is git's.
    """
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision], capture_output=True, check=False
    )
    if archive.returncode:
        raise SystemExit(f"--base {revision}: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "src"]
    subprocess.run(build, cwd=folder, check=True)
    return folder


def measure_all(
    workloads: Sequence[Workload], scale: Scale, folder: Path, base: Path = ROOT
) -> Iterator[Result]:
    """
    Measure one after the other; a failure is in the result, and the others are measured.

    Args:
        workloads: Those with the same dataset one after the other.
        scale: How much.
        folder: For the files of the servers, on the disk that is measured.
        base: The tree of the contender `base`.
    """
    contenders = None
    with ExitStack() as servers:
        for number, workload in enumerate(workloads, start=1):
            progress(f"[{number}/{len(workloads)}] {workload.name}")
            dataset = workload.load(scale).dataset
            if contenders is None or contenders.dataset != dataset:
                servers.close()
                place = folder / workload.name
                contenders = Contenders(servers, place, dataset, base)
            rounds: Rounds = {}
            error = ""
            try:
                rounds = measure(workload, scale, contenders)
            except (LoadError, ProgramError) as failure:
                error = str(failure)
                progress(f"  no figures: {error}")
                servers.close()
                contenders = None
            name, text = workload.name, workload.text
            yield Result(name=name, text=text, rounds=rounds, error=error)


def measure(workload: Workload, scale: Scale, contenders: Contenders) -> Rounds:
    """
    Measure one workload.

    Raises:
        LoadError: An answer is wrong.
        ProgramError: A server does not start, or has ended.
    """
    load = workload.load(scale)
    running = {name: contenders.get(name) for name in workload.contenders}

    def prepare() -> None:
        if workload.is_cold:
            drop_pages(contenders.folder)
        elif load.puts_share:
            sync()  # A contender does not wait for what another has written.

    if scale.warms_up and not workload.is_cold:
        measure_rounds(running, load, rounds=1)
    return measure_rounds(
        running,
        load,
        rounds=scale.rounds,
        prepare=prepare,
        report=lambda line: progress(f"  {line}"),
    )


def measure_cases(names: Sequence[str], scale: Scale, folder: Path) -> Iterator[Result]:
    """Measure those that are named."""
    for name, case in CASES.items():
        if name in names:
            progress(name)
            try:
                with ExitStack() as stack:
                    yield from case(stack, folder / name, scale)
            except (LoadError, ProgramError) as failure:
                progress(f"  no figures: {failure}")
                yield Result(name=name, text=name, error=str(failure))


def progress(line: str) -> None:
    """Print what happens to stderr, apart from the figures."""
    print(line, file=sys.stderr, flush=True)


def end(number: int, _frame: FrameType | None) -> None:
    """End as at Ctrl-C: servers are stopped and folders removed."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if a workload failed."""
    options = parse_options(arguments)
    scale = scale_of(options)
    workloads = select(options.names, compares=bool(options.base))
    if options.names and not set(options.names) - set(CASES):
        workloads = []
    for workload in workloads:
        contenders = "; ".join(workload.contenders)
        progress(f"  {workload.name:16}  {workload.text}: {contenders}")
    signal.signal(signal.SIGTERM, end)
    options.directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as folder:
        work = Path(folder)
        machine, busy = describe(work), list(warnings(work))
        content = {
            "machine": machine | ({"base": options.base} if options.base else {}),
            "warnings": busy,
            "rounds": scale.rounds,
            "seconds": scale.seconds,
        }
        base = check_out(work / "base", options.base) if options.base else ROOT
        results = list(measure_all(workloads, scale, work, base))
        results += measure_cases(options.names, scale, work)
    content["took"] = round(time.monotonic() - began)
    output = options.output or (DOCS if options.is_whole else BUILD) / "bench"
    write_report(content, results, output)
    if options.is_whole:
        fill_documents()
    print(bullets(machine, busy))
    print("".join(f"\n{section(result)}\n" for result in results))
    if options.base:
        print(f"\n{comparison(results, options.base)}")
    print(f"\nIt took {content['took']} s. The report is {output}/results.md")
    return 1 if any(result.error for result in results) else 0


if __name__ == "__main__":
    # A shell without job control lets what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
