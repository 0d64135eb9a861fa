"""The report of a run: docs/BENCHMARKS.md, and the small table of README.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from machine import ROOT
from report import bullets, table
from results import MEASURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from results import Result

README: Final = ROOT / "docs" / "PERFORMANCE.md"
BEGIN: Final = "<!-- made by make bench: begin -->"
END: Final = "<!-- made by make bench: end -->"
# Told with their range; of the others the median says enough.
WITH_RANGE: Final = {"rate", "cpu", "boot", "p999"}
COMPARED: Final = {"cpu": "CPU", "boot": "time", "rate": "requests/s"}
INTRODUCTION: Final = """\
Made by `make bench`; every single figure is in [bench/results.json](bench/results.json).
What each contender is, and how to ask for one workload, says
[bench/README.md](../bench/README.md); where the time of a request goes says
[PERFORMANCE.md](PERFORMANCE.md)."""
MEANING: Final = """\
Each figure is the median of {rounds} rounds of {seconds:g} s in which the contenders of
a table took turns, in parentheses the lowest and the highest. CPU is user plus system
time of the server's processes in microseconds per request, latencies are milliseconds,
memory is that of all the server's processes in MiB, and bytes for a key. The whole run
took {took} s."""
NOISE: Final = """\
What to hold against the figures: the client runs on the same machine, so requests/s say
less than CPU per request; a neighbour of a shared machine falls on one round and not on
the next, which is what the ranges show. CPU is counted in ticks of 10 ms. A ratio is
taken within one round, and is what will hold elsewhere. p99.9 and the maximum are those
of a client that waits for each answer, corrected for the requests it could not send
meanwhile. wrk is a lighter client than ours: memcached and all that is cold are asked by
ours, so their requests/s are at most what that can do, their CPU is their own."""


def figure(result: Result, contender: str, measure: str) -> str:
    """Write one figure of a table."""
    spread = result.spread(contender, measure)
    if spread is None:
        return "-"
    digits = MEASURES[measure].digits
    if measure in WITH_RANGE and len(result.rounds[contender]) > 1:
        return spread.text(digits)
    return f"{spread.median:.{digits}f}"


def ratio_columns(result: Result) -> list[str]:
    """Return the measures that are compared."""
    return [name for name in COMPARED if name in result.measures()]


def rows_of(result: Result) -> Iterator[list[str]]:
    """Make the rows of a workload's table."""
    for contender in result.rounds:
        ratios = []
        for measure in ratio_columns(result):
            spread = result.ratio(contender, measure)
            is_subject = contender == result.subject or spread is None
            ratios.append("" if is_subject or spread is None else spread.text(2))
        figures = [figure(result, contender, name) for name in result.measures()]
        yield [contender, *figures, *ratios]


def section(result: Result) -> str:
    """Write what is said of one workload."""
    head = f"## {result.name}\n\n{result.title}.\n\n"
    if result.error:
        return f"{head}No figures: {result.error.splitlines()[0]}\n"
    columns = ["", *(MEASURES[name].head for name in result.measures())]
    columns += [
        f"{COMPARED[name]}, {result.subject} ÷ this" for name in ratio_columns(result)
    ]
    return f"{head}{table(columns, rows_of(result))}\n"


def report_text(
    content: Mapping[str, Any], results: Sequence[Result], plots: Sequence[str] = ()
) -> str:
    """Write the whole report."""
    images = "\n\n".join(f"![{name}](bench/{name}.svg)" for name in plots)
    parts = [
        "# Benchmarks",
        INTRODUCTION,
        bullets(content["machine"], content["warnings"]),
        MEANING.format(**content),
        NOISE,
        *([images] if images else []),
        *(section(result).rstrip() for result in results),
    ]
    return "\n\n".join(parts) + "\n"


def summary_rows(results: Iterable[Result]) -> Iterator[list[str]]:
    """Make the rows of README's table: of what is held against the naive way."""
    for result in results:
        if "one file per key" not in result.rounds:
            continue
        cells = []
        for names in (("floor", "floor 404"), ("nginx",), ("one file per key",)):
            found = next((n for n in names if n in result.rounds), None)
            spread = result.ratio(found, "cpu") if found else None
            cells.append(f"{spread.median:.2f}" if spread else "-")
        ours = result.spread(result.subject, "cpu")
        rate = result.spread(result.subject, "rate")
        if ours is not None and rate is not None:
            yield [
                f"{result.name}: {result.title}",
                f"{rate.median:.0f}",
                f"{ours.median:.1f}",
                *cells,
            ]


SUMMARY_HEAD: Final = (
    *("`make bench ONLY=...`", "requests/s", "CPU µs", "÷ floor", "÷ nginx"),
    "÷ one file per key",
)


def readme_with(text: str, results: Iterable[Result]) -> str:
    """
    Replace what stands between the markers.

    Raises:
        ValueError: The markers are not there.

    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks {BEGIN} or {END}")
    return (
        f"{before}{begin}\n{table(SUMMARY_HEAD, summary_rows(results))}\n{end}{after}"
    )


def write_report(
    content: Mapping[str, Any],
    results: Sequence[Result],
    output: Path,
    *,
    with_readme: bool,
    with_plots: bool = True,
) -> str:
    """Write the report to a folder, and return what to tell the person who waits."""
    (output / "bench").mkdir(parents=True, exist_ok=True)
    everything = {**content, "workloads": [result.as_json() for result in results]}
    data = json.dumps(everything, indent=1, ensure_ascii=False)
    (output / "bench" / "results.json").write_text(f"{data}\n", encoding="utf-8")
    plots: list[str] = []
    if with_plots:
        # Only who draws needs the library.
        from plots import write_plots  # noqa: PLC0415

        plots = write_plots(results, output / "bench")
    text = report_text(content, results, plots)
    path = output / "BENCHMARKS.md"
    path.write_text(text, encoding="utf-8")
    if with_readme:
        whole = readme_with(README.read_text(encoding="utf-8"), results)
        README.write_text(whole, encoding="utf-8")
    tables = "\n".join(section(result) for result in results)
    return f"{tables}\nThe report is {path}"
