"""
Reads from a cold disk by 1, 4 and 16 instances that share its keys.

    .venv/bin/python -m bench.extra.instances
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.extra.script import make_parser, measuring
from bench.load import Load, Run, cpu_figures, run_figures, start_load, turns
from bench.machine import MIB, drop_pages, resident_bytes, usage
from bench.report import Result, section
from bench.servers import Contenders, Dataset

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from bench.load import Figures, Rounds

CONNECTIONS: Final = 32  # Two for each of sixteen.
COUNTS: Final = (1, 4, 16)


def start_instances(
    stack: ExitStack, work: Path, count: int, keys: int
) -> list[Contenders]:
    """Start some instances and give each its part of the keys."""
    work.mkdir()
    dataset = Dataset(
        count=keys // count, value_bytes=1024, volume_size=64 * MIB, volume_num=2
    )
    found = [Contenders(stack, work / str(n), dataset) for n in range(count)]
    for contenders in found:
        contenders.get("volcache")
    return found


def measure(instances: list[Contenders], work: Path, sample: int, seed: int) -> Figures:
    """
    Read random keys of the instances, each at most once.

    Raises:
        LoadError: An answer is wrong.
    """
    running = [contenders.get("volcache") for contenders in instances]
    pids = [pid for contender in running for pid in contender.pids]
    load = Load(
        kind="sample",
        dataset=instances[0].dataset,
        connections=CONNECTIONS // len(instances),
        sample=sample // len(instances),
    )
    drop_pages(work)
    before = usage(pids)
    begun = [start_load(load, contender, seed) for contender in running]
    run = merged([one.result() for one in begun])
    figures = run_figures(run) | cpu_figures(run.requests, usage(pids) - before)
    figures["resident"] = resident_bytes(pids) / MIB
    return figures


def merged(runs: list[Run]) -> Run:
    """Add up the requests of runs at the same time; times are the longest of them."""
    names = ("seconds", "p50", "p99", "p999", "max")
    longest = {name: max(getattr(run, name) for run in runs) for name in names}
    return Run(requests=sum(run.requests for run in runs), **longest)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="in which all take turns (3)")
    add("--keys", type=int, default=40_000, help="in all (40000)")
    add("--sample", type=int, default=4_000, help="keys read in each turn (4000)")
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        groups = {
            f"{count} instances" if count > 1 else "1 instance": start_instances(
                stack, work / str(count), count, options.keys
            )
            for count in COUNTS
        }
        rounds: Rounds = {name: [] for name in groups}
        for number, name in turns(list(groups), options.rounds):
            figures = measure(groups[name], work, options.sample, number)
            rounds[name].append(figures)
    text = "GET of 1 KiB from the disk, the keys spread over instances on one disk"
    print(f"\n{section(Result(name='instances-cold', text=text, rounds=rounds))}")


if __name__ == "__main__":
    main()
