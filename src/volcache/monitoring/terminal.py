"""
The output of `volcache stats`: the JSON of `/-/stats` as lines of text.

Which metric is shown where is declared in the table of metrics; here is how. The JSON may
come from another machine and another version. Prints nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.errors import InstanceError
from volcache.histogram import Histogram
from volcache.monitoring.metrics import METRICS
from volcache.monitoring.stats_json import read_series
from volcache.text import duration, size, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.monitoring.metrics import Cell, Metric
    from volcache.monitoring.stats_json import Stats

_ITEMS_MAX: Final = 5
_COLUMN: Final = 12
# Styles that show what changed since the report before.
_GROWING: Final = ("rate", "share", "quantiles")
# Lines that are shown although they have nothing to show.
_EMPTY: Final = {
    "reads": "none",
    "errors": "none",
    "hot tier": "off",
    "hot keys": "not enough reads yet",
}


class _Shown(NamedTuple):
    """A cell, the values of its metric, and their growth since the report before."""

    metric: Metric
    cell: Cell
    values: dict[Any, Any]
    growth: dict[Any, Any]  # empty if the style does not need it


def report(stats: Stats, before: Stats | None = None) -> list[str]:
    """
    Return the lines of a report.

    Args:
        stats: The JSON of `/-/stats`, decoded.
        before: That of an earlier report: rates are those since then. Without it, or if
            the instance was restarted in between, they are those since the start.

    Raises:
        InstanceError: A number is missing.
    """
    try:
        if before and before["started"] != stats["started"]:
            before = None
        lines = list(_lines(stats, before))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InstanceError("the instance", "numbers are missing") from error
    # The JSON may come from anywhere: control characters must not reach a terminal.
    return ["".join(c if c.isprintable() else "?" for c in line) for line in lines]


def _lines(stats: Stats, before: Stats | None) -> Iterator[str]:
    passed = stats["now"] - before["now"] if before else stats["uptime_seconds"]
    seconds = max(passed, 1e-3)
    lines: dict[str, list[_Shown]] = {}
    for metric in METRICS:
        for cell in metric.cells:
            for line, shown in _shown(stats, before, metric, cell):
                lines.setdefault(line, []).append(shown)
    for line, cells in lines.items():
        total = sum(
            sum(shown.growth.values()) for shown in cells if shown.cell.style == "share"
        )
        # Without values the instance does not have this part.
        known = [shown for shown in cells if shown.values]
        found = [text for shown in known for text in _texts(shown, seconds, total)]
        if found or line in _EMPTY:
            yield f"{line:<{_COLUMN}}{', '.join(found) or _EMPTY[line]}"


def _shown(
    stats: Stats, before: Stats | None, metric: Metric, cell: Cell
) -> Iterator[tuple[str, _Shown]]:
    """Yield the lines of a cell: one, or one for each value of the label in its name."""
    values = dict(read_series(stats, metric))
    growth = {}
    if cell.style in _GROWING:
        old = read_series(before, metric) if before else {}
        growth = {labels: _growth(v, old.get(labels)) for labels, v in values.items()}
    if "{" not in cell.line:
        yield cell.line, _Shown(metric, cell, values, growth)
        return
    for labels, value in values.items():
        names = [label.name for label in metric.labels]
        line = cell.line.format(**dict(zip(names, labels, strict=True)))
        grown = {(): growth[labels]} if growth else {}
        yield line, _Shown(metric, cell, {(): value}, grown)


def _growth(value: Any, old: Any) -> Any:  # noqa: ANN401 - Numbers or histograms.
    if old is None:
        return value
    if isinstance(value, Histogram):
        return value.without(old)
    return max(0, value - old)


def _texts(shown: _Shown, seconds: float, total: float) -> list[str]:
    """Return the parts of a line that a cell adds."""
    metric, cell, values, growth = shown
    match cell.style:
        case "rate":
            rate = sum(growth.values()) / seconds
            text = size(rate) if metric.unit == "bytes" else f"{rate:,.1f}"
            return [cell.text.format(f"{text}/s")]
        case "share":
            return _share(cell, growth, total)
        case "quantiles":
            return _quantiles(values[()], growth[()])
        case "nonzero":
            found = {labels: n for labels, n in values.items() if n}
            return [_total(cell, found)] if found else []
        case "state":
            yes, no = cell.text.split("|")
            return [_labelled(k, yes if value else no) for k, value in values.items()]
        case "value" | "factor" | "percent":
            return _values(metric, cell, values)


def _values(metric: Metric, cell: Cell, values: dict[Any, Any]) -> list[str]:
    """Return the first values that there are, with their labels."""
    return [
        _labelled(labels, cell.text.format(_formatted(value, metric.unit, cell.style)))
        for labels, value in list(values.items())[:_ITEMS_MAX]
        if value is not None
    ]


def _share(cell: Cell, growth: dict[Any, Any], total: float) -> list[str]:
    """Return the share of this metric in its line, and that of each of its labels."""
    if not total:
        return []
    text = cell.text.format(f"{sum(growth.values()) / total:.1%}")
    parts = [f"{labels[0]} {n / total:.1%}" for labels, n in growth.items() if labels]
    return [f"{text} ({', '.join(parts)})" if parts else text]


def _quantiles(value: Histogram, growth: Histogram) -> list[str]:
    """Return median and 99th percentile; nothing if nothing was ever counted."""
    if not value.count:
        return []
    if not growth.count:
        return ["none"]
    half, most = (duration(growth.quantile(share)) for share in (0.5, 0.99))
    return [f"p50 {half}", f"p99 {most}"]


def _total(cell: Cell, values: dict[Any, Any]) -> str:
    """Return a total, and its parts by label."""
    text = cell.text.format(f"{sum(values.values()):,}")
    parts = [f"{labels[0]} {n:,}" for labels, n in values.items() if labels]
    return f"{text} ({', '.join(parts)})" if parts else text


def _labelled(labels: tuple[Any, ...], text: str) -> str:
    return " ".join([*map(str, labels), text])


def _formatted(value: Any, unit: str, style: str) -> str:  # noqa: ANN401 - As in JSON.
    if isinstance(value, str):
        return value
    if style != "value":
        return f"{value:.2f}" if style == "factor" else f"{value:.1%}"
    if unit == "bytes":
        return size(value)
    return span(value) if unit == "seconds" else f"{value:,}"
