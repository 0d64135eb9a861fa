"""
The metrics as the JSON of `/-/stats`: written for an instance, read for a report.

Times are in seconds, sizes in bytes. A histogram is an object with the `counts` of its
buckets, powers of two of nanoseconds, and `sum_seconds`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.histogram import NS_PER_SECOND, Histogram
from volcache.monitoring.metrics import METRICS

if TYPE_CHECKING:
    from volcache.monitoring.metrics import Metric, Series, Value
    from volcache.monitoring.snapshot import Snapshot

Stats = dict[str, Any]
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


def encode_stats(snapshot: Snapshot) -> bytes:
    """Return a snapshot as one JSON object, in ASCII; no list of volumes if it has none."""
    stats: Stats = {}
    for metric in METRICS:
        if metric.path:
            _write(stats, metric, metric.read(snapshot))
    stats["settings"] = dict(snapshot.settings)
    if snapshot.hot is None:
        stats["hot"] = None
    if snapshot.commands is None:
        stats["memcache"] = None
    if not snapshot.usage.eviction.has_rings:
        stats["rings"] = None
    if not snapshot.counts.scrub.rate:
        stats["scrub"] = None
    if not snapshot.usage.volumes:
        del stats["store"]["volumes"]
    return json.dumps(stats, default=_encode_histogram).encode()


def read_series(stats: Stats, metric: Metric) -> Series:
    """
    Return the values of a metric from decoded JSON.

    Only label values that the table names are read from keys with a label. A metric of a
    part that is null, as `hot` without a hot tier, has no values.

    Raises:
        LookupError, TypeError: It is missing, or of another form.
    """
    path = _parse(metric.path)
    if path.identities:
        rows = _object(stats, path.parents)
        return {
            tuple(row[name] for name in path.identities): row[path.key]
            for row in ([] if rows is None else rows[path.list_key])
        }
    labels = metric.labels
    choices: list[tuple[str | int, ...]] = [()]
    if labels:
        choices = [(value,) for value in labels[0].values]
    found: dict[tuple[str | int, ...], Value] = {}
    for choice in choices:
        *parents, key = _keys(path, metric, choice)
        row = _object(stats, parents)
        if row is not None:
            found[choice] = _decoded(row[key])
    return found


def with_quantiles(stats: Any) -> Any:  # noqa: ANN401 - As JSON has it.
    """
    Return decoded JSON with each histogram summed up.

    Instead of its buckets it has `count`, `mean`, `p50`, `p90`, `p99`, `p999` and `max`, in
    seconds; these are null if nothing was counted. They are right within a factor of two;
    `max` is the upper end of the last bucket.

    Raises:
        LookupError, TypeError, ValueError: A histogram is of another form.
    """
    if isinstance(stats, list):
        return [with_quantiles(part) for part in stats]
    if not isinstance(stats, dict):
        return stats
    if stats.keys() != {"counts", "sum_seconds"}:
        return {key: with_quantiles(part) for key, part in stats.items()}
    histogram: Histogram = _decoded(stats)
    count = histogram.count
    found: Stats = {"count": count, "mean": None}
    found |= dict.fromkeys(_QUANTILES)
    if count:
        found["mean"] = histogram.total_ns / count / NS_PER_SECOND
        for name, share in _QUANTILES.items():
            found[name] = histogram.quantile(share)
    # Nine digits are nanoseconds.
    return {k: v if v is None else round(v, 9) for k, v in found.items()}


class _Path(NamedTuple):
    """The path of a metric; see `Metric`."""

    parents: tuple[str, ...]
    list_key: str  # of a list of objects, one per series; else empty
    identities: tuple[str, ...]  # what the labels are called in these objects
    key: str


@cache
def _parse(path: str) -> _Path:
    front, is_list, behind = path.partition("[")
    if not is_list:
        *parents, key = path.split(".")
        return _Path(tuple(parents), "", (), key)
    *parents, list_key = front.split(".")
    identities, _, key = behind.partition("].")
    return _Path(tuple(parents), list_key, tuple(identities.split(",")), key)


def _keys(path: _Path, metric: Metric, values: tuple[str | int, ...]) -> list[str]:
    """Return the keys of one value, with the values of its labels put in."""
    keys = [*path.parents, path.key]
    if not metric.labels:
        return keys
    names = {label.name: v for label, v in zip(metric.labels, values, strict=True)}
    return [key.format(**names) for key in keys]


def _write(stats: Stats, metric: Metric, series: Series) -> None:
    path = _parse(metric.path)
    if not path.identities:
        for labels, value in series.items():
            *parents, key = _keys(path, metric, labels)
            _made(stats, parents)[key] = value
        return
    # The metrics of a list have the same series, in the same order.
    rows = _made(stats, path.parents).setdefault(path.list_key, [])
    if not rows:
        rows += (dict(zip(path.identities, labels, strict=True)) for labels in series)
    for row, value in zip(rows, series.values(), strict=True):
        row[path.key] = value


def _made(stats: Stats, parents: tuple[str, ...] | list[str]) -> Stats:
    """Return the object at a path, created as far as it is missing."""
    for key in parents:
        stats = stats.setdefault(key, {})
    return stats


def _object(stats: Stats, parents: tuple[str, ...] | list[str]) -> Stats | None:
    """Return the object at a path; None if it or one above it is null."""
    found: Stats | None = stats
    for key in parents:
        if found is None:
            break
        found = found[key]
    return found


def _encode_histogram(value: object) -> Stats:
    if not isinstance(value, Histogram):
        raise TypeError(value)
    return {"counts": value.counts, "sum_seconds": value.total_ns / NS_PER_SECOND}


def _decoded(value: Any) -> Any:  # noqa: ANN401 - As JSON has it.
    if not isinstance(value, dict):
        return value
    total_ns = round(value["sum_seconds"] * NS_PER_SECOND)
    return Histogram(list(value["counts"]), total_ns)
