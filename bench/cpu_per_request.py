"""
What a request costs: CPU microseconds of the server process, beside two yardsticks.

Measures volcache's GET and PUT, the least bjoern can do for the same request (the
floor), and memcached's get. The cases take turns, so that what the machine does besides
falls on all of them alike, and a ratio is taken within one round.

    .venv/bin/python bench/cpu_per_request.py --seconds 5 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cases import Case, Ratio, Servers, Workload, make_cases, make_ratios
from load import LoadError
from machine import describe, warnings
from processes import ServerError
from report import Spread, bullets, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MICROSECONDS: Final = 1_000_000
WARM_UP_SECONDS: Final = 1.0
GIB: Final = 1 << 30

Rounds = dict[str, list["Figure"]]  # A case's name to its figures, round by round.


class Options(argparse.Namespace):
    """The command line."""

    seconds: float
    rounds: int
    connections: int
    keys: int
    large: bool
    volume_size: int
    volume_num: int
    json: Path | None
    directory: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One case in one round; CPU in microseconds of the process per request."""

    requests: int
    user: float
    system: float

    @property
    def total(self) -> float:
        """User and system together."""
        return self.user + self.system


def measure(case: Case, seconds: float) -> Figure:
    """
    Run a case once.

    Raises:
        LoadError: A request went wrong.
        ServerError: The server ended.
    """
    before = case.server.cpu()
    requests = case.load(seconds)
    used = case.server.cpu() - before
    scale = MICROSECONDS / requests
    return Figure(requests=requests, user=used.user * scale, system=used.system * scale)


def measure_rounds(cases: Sequence[Case], options: Options) -> Rounds:
    """
    Let the cases take turns, after each has run once unmeasured.

    Raises:
        LoadError: A request went wrong.
        ServerError: A server ended.
    """
    for case in cases:
        case.load(WARM_UP_SECONDS)
    rounds: Rounds = {case.name: [] for case in cases}
    for number in range(options.rounds):
        for case in cases:
            figure = measure(case, options.seconds)
            rounds[case.name].append(figure)
            progress(f"round {number + 1} {case.name}: {figure.total:.2f}")
    return rounds


def progress(text: str) -> None:
    """Tell a waiting person what happens, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def ratios_of(ratio: Ratio, rounds: Rounds) -> Spread:
    """Compare two cases round by round."""
    pairs = zip(rounds[ratio.case], rounds[ratio.base], strict=True)
    return Spread.of([case.total / base.total for case, base in pairs])


def case_rows(rounds: Rounds, options: Options) -> Iterator[list[str]]:
    """Make the rows of the table of cases."""
    for name, figures in rounds.items():
        rate = Spread.of([figure.requests / options.seconds for figure in figures])
        yield [
            name,
            Spread.of([figure.total for figure in figures]).text(2),
            f"{Spread.of([figure.user for figure in figures]).median:.2f}",
            f"{Spread.of([figure.system for figure in figures]).median:.2f}",
            f"{rate.median:.0f}",
        ]


def print_report(rounds: Rounds, ratios: Sequence[Ratio], options: Options) -> None:
    """Print the tables."""
    print(
        f"\nCPU microseconds of the server process per request, {options.connections} "
        f"connections, median (lowest to highest) of {options.rounds} rounds of "
        f"{options.seconds:g} s:\n"
    )
    head = ["case", "CPU µs", "user", "system", "requests/s"]
    print(table(head, case_rows(rounds, options)))
    print("\nRatios, each taken within one round:\n")
    rows = [[ratio.name, ratios_of(ratio, rounds).text(2)] for ratio in ratios]
    print(table(["ratio", "median (lowest to highest)"], rows))


def write_json(
    path: Path, facts: Mapping[str, str], rounds: Rounds, ratios: Sequence[Ratio]
) -> None:
    """Write every single figure, for comparisons."""
    content = {
        "machine": dict(facts),
        "cases": {
            name: [asdict(f) for f in figures] for name, figures in rounds.items()
        },
        "ratios": {ratio.name: asdict(ratios_of(ratio, rounds)) for ratio in ratios},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip().splitlines()[0]
    )
    add = parser.add_argument
    add("--seconds", type=float, default=5, help="of load per case and round (5)")
    add("--rounds", type=int, default=5, help="in which the cases take turns (5)")
    add("--connections", type=int, default=20, help="kept busy (20)")
    add("--keys", type=int, default=40_000, help="of 1 KiB, read at random (40000)")
    add("--large", action="store_true", help="measure 64 KiB as well")
    add("--volume-size", type=int, default=GIB, help="bytes (1 GiB)")
    add("--volume-num", type=int, default=3, help="volumes of a mount point (3)")
    add("--directory", type=Path, help="make the mount points here (a temporary one)")
    add("--json", type=Path, help="write every figure to this file")
    return parser.parse_args(namespace=Options())


def main() -> int:
    """Measure and report; 1 if anything went wrong."""
    options = parse_options()
    workload = Workload(
        connections=options.connections,
        keys=options.keys,
        large=options.large,
        volume_size=options.volume_size,
        volume_num=options.volume_num,
    )
    ratios = make_ratios(workload)
    try:
        with ExitStack() as stack:
            work = Path(
                stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
            )
            facts = describe(work)
            # Before the load begins: it would be taken for somebody else's.
            print(bullets(facts, warnings(work)), flush=True)
            cases = make_cases(Servers(stack, work, workload), workload)
            rounds = measure_rounds(cases, options)
    except (LoadError, ServerError) as error:
        print(f"no figures: {error}", file=sys.stderr)
        return 1
    print_report(rounds, ratios, options)
    if options.json:
        write_json(options.json, facts, rounds, ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
