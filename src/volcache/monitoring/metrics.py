"""
The table of metrics, read from metrics.toml.

`prometheus.py`, `stats_json.py`, `terminal.py` and docs/REFERENCE.md are generated from it.
A row has:

- `type`: counter, gauge, histogram or info; `name`: for Prometheus, if it is shown there;
- `path`: in the JSON of `/-/stats`, see `Metric`;
- `value`: attributes from a `Snapshot`, a `volume` or a `ring` on, joined by dots. A name
  that ends with `_ms` is a time, which is shown in seconds, and with `_id` the number of a
  volume, which is -1 if there is none. Or a name of `_COMPUTED`. There are no values
  without the `part` of the section, unless the row says `always`;
- `labels`: their values, the name of a list in `_VALUES`, or none if they are open;
- `help`, `cells` in the output of `volcache stats`, and `unit` if no name says it.

Names, base units and help texts follow the conventions of Prometheus.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from volcache.background import failures
from volcache.histogram import Histogram
from volcache.monitoring.commands import KINDS
from volcache.monitoring.requests import MISDIRECTED_KINDS, REFUSED_KINDS, VERBS
from volcache.store.index_format import encode_key
from volcache.store.stats import STATES, ErrorKind
from volcache.version import __version__

if TYPE_CHECKING:
    from volcache.monitoring.snapshot import Snapshot

Kind = Literal["counter", "gauge", "histogram", "info"]
Unit = Literal["", "bytes", "seconds"]
Value = int | float | str | Histogram | None
# The values of a metric by the values of its labels; one row with () without labels.
Series = Mapping[tuple[str | int, ...], Value]
Read = Callable[["Snapshot"], Series]

HOTTEST_MAX: Final = 10


class Label(NamedTuple):
    """A label; the names of its values if they are known, empty if they are open."""

    name: str
    values: tuple[str, ...] = ()


class Cell(NamedTuple):
    """
    The place of a metric in the terminal.

    `line` may hold a label in braces, for one line per label value; `text` is what is
    shown, with the value in place of `{}`. The styles are those of `terminal.py`. Of the
    styles value, factor and percent, None is not shown.
    """

    line: str
    text: str = "{}"
    style: Literal[
        "value", "factor", "percent", "rate", "share", "nonzero", "quantiles", "state"
    ] = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """
    One row of the table.

    A row of kind `info`, or without a name, is not shown to Prometheus. A path is made of
    keys joined by dots. A key may hold a label in braces: `hits.{source}`. A key with
    names in brackets, `volumes[id].size`, is a list of objects, one per series, which
    have the values of the labels under these names. A value of None is null in JSON and
    absent for Prometheus.
    """

    kind: Kind
    text: str
    read: Read
    name: str = ""
    unit: Unit = ""
    labels: tuple[Label, ...] = ()
    path: str = ""
    cells: tuple[Cell, ...] = ()


class Section(NamedTuple):
    """Rows about one part of an instance."""

    title: str
    metrics: tuple[Metric, ...]
    note: str  # for the reference page: how the numbers relate
    # Whether an instance has this part; if not, Prometheus' output leaves it out.
    is_part: Callable[[Snapshot], bool]


# Why a record of a volume that was reclaimed was not reinserted, and the field of
# `Disposition`.
_DROPPED: Final = {
    "unread": "unused",
    "limited": "unpaid",
    "expired": "expired",
    "purged": "purged",
    "damaged": "damaged",
    "unreadable": "unreadable",
    "skipped": "left",
}
_VALUES: Final = {
    "VERBS": VERBS,
    "REFUSED_KINDS": REFUSED_KINDS,
    "MISDIRECTED_KINDS": MISDIRECTED_KINDS,
    "KINDS": tuple(KINDS),
    "ERRORS": get_args(ErrorKind),
    "STATES": STATES,
    "DROPPED": tuple(_DROPPED),
}
_TEXTS: Final = {
    "{hottest_max}": str(HOTTEST_MAX),
    "{kinds}": "; ".join(
        f"{kind}: {', '.join(names)}"
        for kind, names in KINDS.items()
        if kind != "other"
    ),
}


def _gained_hits_ratio(snapshot: Snapshot) -> Series:
    """Return the estimated gain as a share of all GETs; None if it is not known."""
    gained, gets = snapshot.usage.eviction.gained_hits, snapshot.requests.gets
    if snapshot.commands is not None:
        gets += snapshot.commands.hits + snapshot.commands.misses
    return {(): None if gained is None or not gets else gained / gets}


# What is more than an attribute.
_COMPUTED: Final[Mapping[str, Read]] = {
    "version": lambda _: {(): __version__},
    "build_info": lambda _: {(__version__,): 1},
    "ready": lambda s: {(): not s.problem},
    "hottest": lambda s: {
        (encode_key(key),): reads for key, reads in s.requests.hottest(HOTTEST_MAX)
    },
    "others": lambda s: {
        (owner,): at for owner, at in s.requests.recent_others(s.now).items()
    },
    "eviction_info": lambda s: {(s.usage.eviction.policy,): 1},
    "dropped": lambda s: {
        (reason,): getattr(s.usage.eviction.disposition, field)
        for reason, field in _DROPPED.items()
    },
    "gained_hits_ratio": _gained_hits_ratio,
    "reinsertable_bytes": lambda s: {(): int(s.usage.eviction.tokens)},
    "reclaimed_ratio": lambda s: {
        (): None
        if s.usage.eviction.reclaiming < 0
        else round(s.usage.eviction.reclaimed, 4)
    },
    "thread_failures": lambda _: {(): failures.total()},
    "hot_calls": lambda s: {(): s.hot.stats.calls if s.hot else Histogram()},
}


def _read_by(value: str, labels: tuple[Label, ...]) -> Read:
    """Return how a row is read, from its `value` and labels."""
    if value in _COMPUTED:
        return _COMPUTED[value]
    head, _, rest = value.partition(".")
    if head == "volume":
        get = _getter(rest)
        return lambda s: {(volume.id,): get(volume) for volume in s.usage.volumes}
    if head == "ring":
        get = _getter(rest)
        return lambda s: {
            (name,): get(getattr(s.usage.eviction, name))
            for name in ("main", "probation")
        }
    if "{" in value:
        (label,) = labels
        getters = [
            ((one,), _getter(value.format(**{label.name: one}))) for one in label.values
        ]
        return lambda s: {choice: get(s) for choice, get in getters}
    get = _getter(value)
    if not labels:
        return lambda s: {(): get(s)}
    return lambda s: {
        key if isinstance(key, tuple) else (key,): found
        for key, found in get(s).items()
    }


def _getter(path: str) -> Callable[[object], Any]:
    """Return a function that follows a path of attributes, keys and methods."""
    steps = path.split(".")
    is_time, is_id = path.endswith("_ms"), path.endswith(("_id", ".reclaiming"))

    def get(found: Any) -> Any:  # noqa: ANN401 - Anything of a snapshot.
        for step in steps:
            if isinstance(found, dict):  # A counter has all keys.
                found = found[step] if isinstance(found, Counter) else found.get(step)
            elif found is not None:
                found = getattr(found, step)
        if callable(found):
            found = found()
        if is_time:
            return found / 1000 if found else None
        return None if found == "" or (is_id and found < 0) else found

    return get


def _unit_of(name: str) -> Unit:
    """Return the unit that ends a name, as Prometheus' conventions demand."""
    base = name.removesuffix("_total")
    if base.endswith("_bytes"):
        return "bytes"
    return "seconds" if base.endswith("_seconds") else ""


def _metric(row: dict[str, Any], is_part: Callable[[Snapshot], bool]) -> Metric:
    """Return a row of the file."""
    labels = tuple(
        Label(name, _VALUES[values] if isinstance(values, str) else tuple(values))
        for name, values in row.get("labels", {}).items()
    )
    name, path = row.get("name", ""), row.get("path", "")
    read = _read_by(row["value"], labels)
    return Metric(
        kind=row["type"],
        text=_filled(row["help"]),
        read=read
        if row.get("always")
        else lambda snapshot: read(snapshot) if is_part(snapshot) else {},
        name=name,
        unit=row.get("unit") or _unit_of(name or path),
        labels=labels,
        path=path,
        cells=tuple(Cell(*cell) for cell in row.get("cells", ())),
    )


def _filled(text: str) -> str:
    for mark, words in _TEXTS.items():
        text = text.replace(mark, words)
    return text


def _section(table: dict[str, Any]) -> Section:
    get = _getter(table["part"]) if "part" in table else None

    def is_part(snapshot: Snapshot) -> bool:
        return get is None or bool(get(snapshot))

    metrics = tuple(_metric(row, is_part) for row in table["metrics"])
    return Section(table["title"], metrics, _filled(table.get("note", "")), is_part)


_TABLE: Final = tomllib.loads((files(__package__) / "metrics.toml").read_text())
SECTIONS: Final = tuple(map(_section, _TABLE["section"]))
METRICS: Final = tuple(metric for section in SECTIONS for metric in section.metrics)
