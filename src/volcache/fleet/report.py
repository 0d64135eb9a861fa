"""
What is known of all instances, as lines of text or as JSON. Prints nothing.

What instances say of themselves was made safe for a terminal before.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from volcache.fleet.checks import listed, refused_keys
from volcache.fleet.collector import Figures, total
from volcache.fleet.health import DEGRADED, DOWN, HEALTHY, WARNING
from volcache.text import counted, duration, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from volcache.fleet.collector import Watched

_NAME_MAX: Final = 34
_STATE_MIN: Final = 9  # Characters of the last column; others are left out for it.
_WIDTHS: Final = {"KEYS": 7, "LIVE": 10, "GET/s": 7, "PUT/s": 7, "HITS": 6, "P99": 6}
_LEAST_NEEDED: Final = ("LIVE", "PUT/s", "KEYS", "P99", "HITS", "GET/s")
_UNITS: Final = ("", " k", " M", " G", " T")
_THOUSAND: Final = 1000
_PLAIN_MAX: Final = 9999.5
_FRACTION_MAX: Final = 9.95
_CUT: Final = "..."
_RESET: Final = "\x1b[0m"
_COLOURS: Final = {WARNING: "\x1b[33m", DEGRADED: "\x1b[31m", DOWN: "\x1b[1;31m"}


def worst_first(rows: Iterable[Watched]) -> list[Watched]:
    """Return instances by severity, then by load, both descending; then by name."""

    def order(row: Watched) -> tuple[float, float, str]:
        figures = row.figures or Figures()
        load = figures.get_rate + figures.put_rate
        return -row.health.severity, -load, row.target.name

    return sorted(rows, key=order)


def states(rows: Iterable[Watched]) -> dict[str, int]:
    """Return the number of instances in each state, the worst first."""
    found: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: -row.health.severity):
        found[row.health.state] = found.get(row.health.state, 0) + 1
    return found


def _total(rows: Iterable[Watched]) -> Figures:
    return total(row.figures for row in rows if row.figures)


def notes(rows: Iterable[Watched]) -> list[str]:
    """Return what is no problem of the instances of which it is told, one line each."""
    down, up = refused_keys(rows)
    found: list[str] = []
    if down:
        it = "it is" if len(down) == 1 else "they are"
        found.append(
            f"keys of {listed(down)} are refused by others (expected while {it} down)"
        )
    if up:
        it = "it answers" if len(up) == 1 else "they answer"
        found.append(
            f"keys of {listed(list(up))} are refused by others although {it}: see"
            " cluster check-config"
        )
    return found


def as_json(rows: Sequence[Watched]) -> dict[str, Any]:
    """Return the report for programs; see docs/CLUSTER.md."""
    return {
        "healthy": all(row.health.severity == HEALTHY for row in rows),
        "states": states(rows),
        "notes": notes(rows),
        "total": {
            "instances": len(rows),
            "down": sum(row.health.severity == DOWN for row in rows),
            **_figures_json(_total(rows)),
        },
        "instances": [
            {
                "name": row.target.name,
                "url": row.target.url,
                "machine": row.target.machine or urlsplit(row.target.url).hostname,
                "weight": row.target.weight,
                "severity": row.health.severity,
                "state": row.health.state,
                "problem": row.health.problem,
                "version": row.about.version or None,
                "mount_point": row.about.mount_point or None,
                "uptime_seconds": row.about.uptime_seconds,
                **_figures_json(row.figures),
            }
            for row in rows
        ],
    }


def _figures_json(figures: Figures | None) -> dict[str, float | None]:
    names = [*Figures._fields[:-1], "get_rate", "hit_ratio", "own_hit_ratio"]
    return {name: getattr(figures, name, None) for name in [*names, "p99_seconds"]}


def table(
    rows: Sequence[Watched], *, columns: int | None = None, is_coloured: bool = False
) -> list[str]:
    """
    Return the text of each instance, below a line with the names of the columns.

    Args:
        rows: In the order in which they are shown.
        columns: Of the screen; a reason that does not fit is in further lines. None: each
            text is one line.
        is_coloured: Whether states that are not healthy have a colour.
    """
    width = min(_NAME_MAX, max((len(row.target.name) for row in rows), default=0))
    width = max(width, len("INSTANCE"))
    shown = _shown_columns(
        None if columns is None else columns - width - 2 - _STATE_MIN
    )
    lines = [f"{'INSTANCE':<{width}} {_line({c: c for c in _WIDTHS}, shown)}STATE"]
    for row in rows:
        cells = _line(_cells(row.figures), shown)
        front = f"{_cut(row.target.name, width):<{width}} {cells}"
        state, reason, more = row.health.state, row.health.problem, ""
        if columns and len(f"{front}{state}: {reason}") > columns:
            more = "".join(f"\n  {line}" for line in wrap(reason, columns - 2))
        elif reason:
            state += f": {reason}"
        colour = _COLOURS.get(row.health.severity, "") if is_coloured else ""
        lines.append(f"{front}{colour}{state}{_RESET if colour else ''}{more}")
    return lines


def totals(rows: Sequence[Watched]) -> list[str]:
    """Return the states of all instances, the sums of their figures, and notes."""
    found = ", ".join(f"{count} {state}" for state, count in states(rows).items())
    figures = _total(rows)
    ratio, p99 = figures.hit_ratio, figures.p99_seconds
    parts = [
        f"{compact(figures.keys)} key{'' if figures.keys == 1 else 's'}",
        f"{size(figures.live_bytes)} live of {size(figures.capacity_bytes)}",
        f"{compact(figures.get_rate)} GET/s",
        f"{compact(figures.put_rate)} PUT/s",
        "no reads" if ratio is None else f"{ratio:.1%} hits",
    ]
    if p99 is not None:
        parts.append(f"p99 {duration(p99)}")
    states_line = f"{counted(len(rows), 'instance')}: {found}"
    return [states_line, ", ".join(parts), *notes(rows)]


def compact(count: float) -> str:
    """Return a number with at most four digits: "0", "3.2", "9,999", "12.3 M"."""
    if count < _FRACTION_MAX and count != int(count):
        return f"{count:.1f}"
    if count < _PLAIN_MAX:
        return f"{count:,.0f}"
    power = 0
    while count >= _THOUSAND - 0.05 and power < len(_UNITS) - 1:
        count /= _THOUSAND
        power += 1
    return f"{count:.1f}{_UNITS[power]}"


def _shown_columns(room: int | None) -> list[str]:
    """Return the columns that fit, in their order."""
    shown = list(_WIDTHS)
    for name in _LEAST_NEEDED:
        if room is None or sum(_WIDTHS[c] + 1 for c in shown) <= room:
            break
        shown.remove(name)
    return shown


def _line(cells: Mapping[str, str], shown: Iterable[str]) -> str:
    return "".join(f"{cells[name]:>{_WIDTHS[name]}} " for name in shown) + " "


def _cells(figures: Figures | None) -> Mapping[str, str]:
    if figures is None:
        return dict.fromkeys(_WIDTHS, "-")
    ratio, p99 = figures.hit_ratio, figures.p99_seconds
    return {
        "KEYS": compact(figures.keys),
        "LIVE": size(figures.live_bytes),
        "GET/s": compact(figures.get_rate),
        "PUT/s": compact(figures.put_rate),
        "HITS": "-" if ratio is None else f"{ratio:.1%}",
        "P99": "-" if p99 is None else duration(p99),
    }


def _cut(text: str, size_max: int) -> str:
    return text if len(text) <= size_max else text[: size_max - len(_CUT)] + _CUT
