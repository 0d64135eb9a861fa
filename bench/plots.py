"""The plots of the report: the same figures give the same files, byte by byte."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from results import Result

# Without these, names of elements are drawn anew for each file.
SETTINGS: Final = {"svg.hashsalt": "volcache", "svg.fonttype": "none", "font.size": 8}
COLUMNS: Final = 2
WIDTH_INCHES: Final = 10.0
ROW_INCHES: Final = 0.28
TITLE_INCHES: Final = 0.9
SUBJECT, OTHER = "#1f6fb4", "#b0b7bd"
SUBJECT_SYSTEM, OTHER_SYSTEM = "#8fbce0", "#d9dde0"
PERCENTILES: Final = {"p50": "o", "p99": "s", "p999": "D", "max": "|"}


def write_plots(results: Sequence[Result], folder: Path) -> list[str]:
    """
    Draw what can be drawn of the results.

    Returns:
        The names of the files, without `.svg`.

    """
    made = []
    for name, draw, measure in (
        ("cpu", draw_cpu, "cpu"),
        ("latency", draw_latencies, "p999"),
    ):
        shown = [one for one in results if measure in one.measures()]
        if not shown:
            continue
        with mpl.rc_context(SETTINGS):
            figure = grid(shown, draw)
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None})
        # Lines without spaces at their end, so that a commit is clean.
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line.rstrip() for line in lines)
        path.write_text(f"{text}\n", encoding="utf-8")
        made.append(name)
    return made


def grid(results: Sequence[Result], draw: Any) -> Figure:  # noqa: ANN401 - of both kinds
    """Draw one field for each workload."""
    rows = ceil(len(results) / COLUMNS)
    most = max(len(result.rounds) for result in results)
    height = rows * (TITLE_INCHES + ROW_INCHES * most)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    fields = figure.subplots(rows, COLUMNS, squeeze=False).flat
    for field, result in zip(fields, results, strict=False):
        field.set_title(f"{result.name}: {result.title}", fontsize=7, loc="left")
        draw(field, result)
        field.set_yticks(range(len(result.rounds)), list(result.rounds))
        field.set_ylim(len(result.rounds) - 0.5, -0.5)
        field.spines[["top", "right"]].set_visible(False)
    for field in list(figure.axes)[len(results) :]:
        field.set_visible(False)
    return figure


def draw_cpu(field: Any, result: Result) -> None:  # noqa: ANN401 - matplotlib's Axes
    """Draw bars of user and system time; the line is the range of their sum."""
    for place, contender in enumerate(result.rounds):
        total = result.spread(contender, "cpu")
        user = result.spread(contender, "user")
        if total is None or user is None:
            continue
        ours = contender == result.subject
        rest = max(0.0, total.median - user.median)
        field.barh(place, user.median, color=SUBJECT if ours else OTHER)
        field.barh(
            place,
            rest,
            left=user.median,
            color=SUBJECT_SYSTEM if ours else OTHER_SYSTEM,
        )
        field.plot([total.low, total.high], [place, place], color="black", linewidth=1)
        field.annotate(
            f" {total.median:.1f}",
            (max(total.high, total.median), place),
            verticalalignment="center",
        )
    field.set_xlabel("CPU µs per request: user, system")


def draw_latencies(field: Any, result: Result) -> None:  # noqa: ANN401 - Axes
    """Draw the medians of percentiles on a logarithmic axis."""
    for place, contender in enumerate(result.rounds):
        color = SUBJECT if contender == result.subject else OTHER
        found = {name: result.spread(contender, name) for name in PERCENTILES}
        points = {name: one.median for name, one in found.items() if one is not None}
        field.plot(list(points.values()), [place] * len(points), color=color)
        for name, value in points.items():
            field.plot(value, place, PERCENTILES[name], color=color)
    field.set_xscale("log")
    field.set_xlabel("ms: p50, p99, p99.9, maximum")
