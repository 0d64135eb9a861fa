"""Medians, ranges and ratios of what was measured, as Markdown and JSON."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from bench.machine import ROOT
from bench.servers import EXTSTORE, FLOOR, ONE_FILE_PER_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.load import Rounds

DOCS: Final = ROOT / "docs"
_TABLE: Final = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_MARKED_TABLE: Final = re.compile(
    r"(^( *)<!-- (bench/[\w-]+\.md) ([\w-]+) -->\n)\n?(?: *\|.*\n)*\n?", re.MULTILINE
)

# The heads of columns and the digits after the point.
MEASURES: Final[dict[str, tuple[str, int]]] = {
    "rate": ("requests/s", 0),
    "cpu": ("CPU µs", 1),
    "user": ("user µs", 1),
    "system": ("system µs", 1),
    "p50": ("p50 ms", 2),
    "p99": ("p99 ms", 2),
    "p999": ("p99.9 ms", 2),
    "max": ("max ms", 1),
    "written": ("bytes written per byte", 2),
    "rotations": ("volumes filled", 1),
    "own": ("its own CPU µs", 1),
    "promoted": ("from memcached", 2),
    "cold_rate": ("cold GETs/s", 0),
    "late": ("promoted key, max ms", 1),
    "resident": ("memory MiB", 0),
    "key_memory": ("memory per key", 0),
}
WITH_RANGE: Final = {"rate", "cpu", "p999"}  # The others are given as medians.
WITHOUT_COLUMN: Final = {"user", "system"}  # In results.json.

MEANING: Final = """\
Each figure is the median of {rounds} rounds of {seconds:g} s; the lowest and the highest
are in parentheses. The contenders of a table take turns in each round. CPU is user plus
system time of all processes of a contender, in microseconds per request; a ratio of CPU
is taken within each round. Latencies are in milliseconds, memory is of all processes in
MiB, and in bytes for each key. The run took {took} s."""
# The tables of medians, one for each measure: those who took part, by protocol.
OVERVIEW: Final = ("cpu", "rate", "p99")
COLUMNS: Final = {
    "http": ("volcache", FLOOR, "nginx", "memcached", ONE_FILE_PER_KEY, "limit"),
    "memcache": ("volcache", "memcached", EXTSTORE, "redis", "limit"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median, the lowest and the highest of a figure's rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Summarise at least one figure."""
        return cls(median=median(figures), low=min(figures), high=max(figures))

    def text(self, digits: int) -> str:
        """Format the median and the range with some digits after the point."""
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        return f"{self.median:.{digits}f} ({low} to {high})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    The figures of one workload.

    Attributes:
        name: Of the workload.
        text: What was done, in one line.
        rounds: The figures of each round; the first contender is compared with the
            others.
        error: Why there are no figures; empty if there are.
    """

    name: str
    text: str
    rounds: Rounds = field(default_factory=dict)
    error: str = ""

    @property
    def subject(self) -> str:
        """The contender that is compared with the others."""
        return next(iter(self.rounds))

    def measures(self) -> list[str]:
        """Return the measures that any contender has, in the order of columns."""
        found = {name for rows in self.rounds.values() for row in rows for name in row}
        return [name for name in MEASURES if name in found]

    def spread(self, contender: str, measure: str) -> Spread | None:
        """Return the median and range of a measure; None if it was not taken."""
        rows = self.rounds.get(contender, [])
        figures = [row[measure] for row in rows if measure in row]
        return Spread.of(figures) if figures else None

    def ratios(self, contender: str, measure: str, of: str = "") -> list[float]:
        """Divide the subject's figure by a contender's, or by another, round by round."""
        pairs = zip(
            self.rounds[self.subject], self.rounds.get(contender, []), strict=False
        )
        return [
            ours[measure] / theirs[of or measure]
            for ours, theirs in pairs
            if measure in ours and theirs.get(of or measure)
        ]

    def ratio(self, contender: str, measure: str) -> Spread | None:
        """Return the median and range of the ratios; None if there are none."""
        ratios = self.ratios(contender, measure)
        return Spread.of(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        """Return every figure of every round, and their medians and ranges."""
        summary = {
            contender: {
                measure: asdict(spread)
                for measure in self.measures()
                if (spread := self.spread(contender, measure))
            }
            for contender in self.rounds
        }
        return {**asdict(self), "summary": summary}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table: text in the first column, figures in the others."""
    align = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, align, *rows))


def bullets(facts: Mapping[str, str], warnings: Iterable[str]) -> str:
    """Format facts and warnings as a Markdown list."""
    lines = [f"- {name}: {fact}" for name, fact in facts.items()]
    lines += [f"- **warning**: {warning}" for warning in warnings]
    return "\n".join(lines)


def section(result: Result) -> str:
    """Format the table of one workload."""
    head = f"### {result.name}\n\n{result.text}.\n\n"
    if result.error:
        return f"{head}No figures: {result.error.splitlines()[0]}"
    measures = [name for name in result.measures() if name not in WITHOUT_COLUMN]
    columns = ["", *(MEASURES[name][0] for name in measures)]
    has_ratios = any(result.ratios(name, "cpu") for name in result.rounds)
    columns += [f"CPU: {result.subject} ÷ this"] if has_ratios else []
    rows = []
    for contender in result.rounds:
        ratio = result.ratio(contender, "cpu")
        is_other = ratio is not None and contender != result.subject
        rows.append(
            [
                contender,
                *(_figure(result, contender, name) for name in measures),
                *([ratio.text(2) if ratio and is_other else ""] if has_ratios else []),
            ]
        )
    return f"{head}{table(columns, rows)}"


def _figure(result: Result, contender: str, measure: str) -> str:
    spread = result.spread(contender, measure)
    if spread is None:
        return "-"
    digits = MEASURES[measure][1]
    if measure in WITH_RANGE and spread.low < spread.high:
        return spread.text(digits)
    return f"{spread.median:.{digits}f}"


def report_text(content: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Format the machine, the meaning of the figures and the tables."""
    parts = [
        bullets(content["machine"], content["warnings"]),
        MEANING.format(**content),
        *overview(results),
        *(section(result) for result in results),
    ]
    return "\n\n".join(parts)


def overview(results: Iterable[Result]) -> Iterator[str]:
    """Format the medians of what volcache is compared in: workloads by contenders."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if not result.error and result.subject == "volcache":
            group = "memcache" if EXTSTORE in result.rounds else "http"
            groups.setdefault(group, []).append(result)
    for group, members in groups.items():
        for measure in OVERVIEW:
            head = f"### {group}-{measure}\n\n"
            yield head + _medians(members, COLUMNS[group], measure)


def _medians(results: Sequence[Result], columns: Iterable[str], measure: str) -> str:
    head, digits = MEASURES[measure]
    known = {name.removesuffix(" 404") for result in results for name in result.rounds}
    shown = [name for name in columns if name in known]
    rows = []
    for result in results:
        names = [name if name in result.rounds else f"{name} 404" for name in shown]
        spreads = [result.spread(name, measure) for name in names]
        medians = [f"{one.median:,.{digits}f}" if one else "-" for one in spreads]
        rows.append([result.name, *medians])
    return table([head, *shown], rows)


def comparison(results: Iterable[Result], revision: str) -> str:
    """Format the ratios of this tree to another revision, the contender `base`."""
    head = [
        "",
        "CPU µs",
        f"CPU µs of {revision}",
        "CPU, new ÷ old",
        "middle half of the rounds",
        "requests/s, new ÷ old",
    ]
    rows = []
    for result in results:
        ratios = result.ratios("base", "cpu") if not result.error else []
        rate = result.ratio("base", "rate") if ratios else None
        if not ratios or rate is None:
            continue
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rows.append(
            [
                result.name,
                _figure(result, result.subject, "cpu"),
                _figure(result, "base", "cpu"),
                Spread.of(ratios).text(3),
                f"{low:.3f} to {high:.3f}",
                rate.text(3),
            ]
        )
    return f"Medians, the lowest and the highest round:\n\n{table(head, rows)}"


def fill_tables(text: str) -> str:
    """
    Put the tables of scripts into a document.

    Each follows a line `<!-- bench/NAME.md N -->`: it is the N-th table of that file, from
    1, or the one below the heading N. A table that was there is replaced; without that
    file nothing is.
    """

    def filled(mark: re.Match[str]) -> str:
        head, indent, name, number = mark.groups()
        path = DOCS / name
        if not path.exists():
            return str(mark[0])
        source = path.read_text(encoding="utf-8")
        if not number.isdecimal():
            source, number = source.partition(f"\n### {number}\n")[2], "1"
        tables = _TABLE.findall(source)
        return f"{head}\n{textwrap.indent(tables[int(number) - 1], indent)}\n"

    return _MARKED_TABLE.sub(filled, text)


def fill_documents() -> None:
    """Put the tables of scripts into all documents."""
    for document in DOCS.glob("*.md"):
        text = document.read_text(encoding="utf-8")
        document.write_text(fill_tables(text), encoding="utf-8")


def write_report(
    content: Mapping[str, Any], results: Sequence[Result], output: Path
) -> None:
    """
    Write `results.md` and `results.json` to a folder.

    Args:
        content: `machine`, `warnings`, `rounds`, `seconds` and `took`.
        results: Of the workloads.
        output: The folder.
    """
    output.mkdir(parents=True, exist_ok=True)
    everything = {**content, "workloads": [result.as_json() for result in results]}
    data = json.dumps(everything, indent=1, ensure_ascii=False)
    files = {
        "results.json": data,
        "results.md": report_text(content, results),
    }
    for name, text in files.items():
        (output / name).write_text(f"{text}\n", encoding="utf-8")
