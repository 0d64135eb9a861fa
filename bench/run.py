"""
All that is measured, side by side, in one run: `make bench`.

The contenders of a workload take turns, so that what the machine does besides falls on
all of them alike, and a ratio is taken within one round. A whole run writes the report
and its plots to docs/ and the small table to README.md; a part of one, a quick one, or
one beside another revision writes to build/bench/.

    .venv/bin/python bench/run.py [--quick] [--only NAMES] [--base REVISION]
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import page_cache
from base import base_tree
from boot import WorkerError
from document import write_report
from load import LoadError
from machine import ROOT, describe, warnings
from results import Result, Rows
from runner import Bench, SkippedError, Workload
from scale import FULL, QUICK, Scale
from support.program import ProgramError
from workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

PARTIAL_OUTPUT: Final = ROOT / "build" / "bench"
WHOLE_OUTPUT: Final = ROOT / "docs"
WORK: Final = ROOT / "build"


class Options(argparse.Namespace):
    """The command line."""

    quick: bool
    only: str
    base: str
    seconds: float | None
    rounds: int | None
    directory: Path
    output: Path | None
    drop_caches: bool
    no_plots: bool


def progress(text: str) -> None:
    """Tell a waiting person what happens, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def chosen(names: str) -> list[Workload]:
    """
    Return the workloads with these names, separated by commas; without, the usual ones.

    Raises:
        SystemExit: There is no such workload; the text names those there are.

    """
    if not names:
        return [workload for workload in WORKLOADS if not workload.is_extra]
    known = {workload.name: workload for workload in WORKLOADS}
    wanted = names.split(",")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(
            f"no workload is called {', '.join(unknown)}; there are: {', '.join(known)}"
        )
    # In the order of the table, in which those that share their keys are together.
    return [workload for name, workload in known.items() if name in wanted]


def measure_all(workloads: Sequence[Workload], bench: Bench) -> list[Result]:
    """Measure one after the other; what went wrong stands in its result."""
    results = []
    for workload in workloads:
        rounds: Rows = {}
        error = ""
        began = time.monotonic()
        try:
            rounds = workload.measure(bench, workload)
        except (LoadError, ProgramError, SkippedError, WorkerError) as failure:
            error = str(failure)
            progress(f"{workload.name}: no figures: {error}")
            bench.close()
        results.append(
            Result(name=workload.name, title=workload.text, rounds=rounds, error=error)
        )
        progress(f"{workload.name} took {time.monotonic() - began:.0f} s")
    return results


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip().splitlines()[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer keys, one round of one second")
    add("--only", default="", help="workloads to measure, separated by commas (all)")
    add("--base", default="", help="measure this revision of volcache as well")
    add("--seconds", type=float, help="of load in each turn, whole ones (1)")
    add("--rounds", type=int, help="in which the contenders take turns (3)")
    add("--directory", type=Path, default=WORK, help="where files are kept (build)")
    add("--output", type=Path, help="where the report goes (docs or build/bench)")
    add("--drop-caches", action="store_true", help="cold: drop all caches, as root")
    add("--no-plots", action="store_true", help="make no plots")
    options = parser.parse_args(arguments, namespace=Options())
    if options.drop_caches and not page_cache.can_drop_everything():
        parser.error("only root may drop the caches of the machine")
    return options


def scale_of(options: Options) -> Scale:
    """Return the amounts that the command line asks for."""
    scale = QUICK if options.quick else FULL
    return replace(
        scale,
        seconds=options.seconds or scale.seconds,
        rounds=options.rounds or scale.rounds,
    )


def end(number: int, _frame: FrameType | None) -> None:
    """End like at Ctrl-C: servers and folders are cleaned away on the way out."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 1 if anything went wrong."""
    options = parse_options(arguments)
    workloads = chosen(options.only)
    scale = scale_of(options)
    signal.signal(signal.SIGTERM, end)
    options.directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory)
        work = Path(stack.enter_context(folder))
        content = {
            "machine": describe(work)
            | ({"base": options.base} if options.base else {}),
            "warnings": list(warnings(work)),
            "seconds": scale.seconds,
            "rounds": scale.rounds,
        }
        bench = Bench(
            work,
            scale,
            base=base_tree(stack, work / "base", options.base)
            if options.base
            else None,
            drops_everything=options.drop_caches,
            progress=progress,
        )
        stack.callback(bench.close)
        results = measure_all(workloads, bench)
    content["took"] = round(time.monotonic() - began)
    is_whole = not (options.quick or options.only or options.base)
    output = options.output or (WHOLE_OUTPUT if is_whole else PARTIAL_OUTPUT)
    report = write_report(
        content,
        results,
        output,
        with_readme=output == WHOLE_OUTPUT,
        with_plots=not options.no_plots,
    )
    print(report)
    return 1 if any(result.error for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
