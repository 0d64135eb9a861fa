"""
The state of a cluster at one moment: a row for each instance, and their totals.

Rates are those since the poll before; in the first one, those since an instance's start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.errors import InstanceError
from volcache.fleet.health import DOWN, HEALTHY, Health, at, health_of, number
from volcache.fleet.remote import TIMEOUT_SECONDS, each, fetch_stats
from volcache.histogram import BUCKETS, Histogram
from volcache.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from volcache.fleet.remote import Stats
    from volcache.fleet.targets import Target

# All at once, so that a poll takes one time-out however many hang.
POLLED_AT_ONCE_MAX: Final = 512
_VERSION_MAX: Final = 40


@dataclass(slots=True, kw_only=True)
class Figures:
    """What is counted of an instance, or of all of them together."""

    keys: int = 0
    live_bytes: int = 0
    capacity_bytes: int = 0
    # Per second. GETs are those of keys, with HEADs and reads of memcached clients; not
    # those of paths under /-/. PUTs include what memcached clients store.
    get_rate: float = 0.0
    put_rate: float = 0.0
    hits: float = 0.0  # in the time of the rates
    misses: float = 0.0
    # Of GETs, in the time of the rates.
    durations: Histogram = field(default_factory=Histogram)

    @property
    def hit_ratio(self) -> float | None:
        """Hits as a share of all reads; None without any."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None

    @property
    def p99_seconds(self) -> float | None:
        """The time that 99 % of GETs stay below; None without any of a key."""
        if not self.durations.count or self.hit_ratio is None:
            return None
        return self.durations.quantile(0.99)

    def add(self, other: Figures) -> None:
        """Add those of another instance."""
        self.keys += other.keys
        self.live_bytes += other.live_bytes
        self.capacity_bytes += other.capacity_bytes
        self.get_rate += other.get_rate
        self.put_rate += other.put_rate
        self.hits += other.hits
        self.misses += other.misses
        self.durations = self.durations.merged(other.durations)


class Row(NamedTuple):
    """An instance at one moment."""

    target: Target
    health: Health
    figures: Figures | None  # None: it does not answer.
    stats: Stats | None

    @property
    def version(self) -> str:
        """Its version; empty if it is unknown."""
        version = at(self.stats, "version")
        return one_line(version, _VERSION_MAX) if isinstance(version, str) else ""

    @property
    def uptime_seconds(self) -> float | None:
        """The time since its start; None if it does not answer."""
        return number(self.stats, "uptime_seconds") if self.stats else None


def poll(
    targets: Sequence[Target],
    before: Iterable[Row] = (),
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> list[Row]:
    """
    Ask all instances at the same time.

    Args:
        targets: The instances.
        before: The rows of the poll before, for rates and recent errors.
        timeout: For each instance, seconds.

    Returns:
        A row for each target, in their order. An instance that does not answer has a row
        as well.
    """
    known = {row.target.url: row.stats for row in before}
    answers = each(
        [target.url for target in targets],
        lambda url: fetch_stats(url, timeout=timeout, volumes=False),
        at_once=POLLED_AT_ONCE_MAX,
    )
    return [
        row_of(target, stats, known.get(target.url))
        for target, (_, stats) in zip(targets, answers, strict=True)
    ]


def row_of(
    target: Target, stats: Stats | InstanceError, before: Stats | None = None
) -> Row:
    """Return the row of an instance that has answered, or has not."""
    health = health_of(stats, before)
    if target.is_down:
        health = Health(HEALTHY, "out", "the list excludes it (down)")
    if isinstance(stats, InstanceError):
        return Row(target, health, None, None)
    return Row(target, health, figures_of(stats, before), stats)


def figures_of(stats: Stats, before: Stats | None = None) -> Figures:
    """
    Return the figures of an instance; what is missing is 0.

    Args:
        stats: Its numbers.
        before: Those of the poll before; ignored if it was restarted since.
    """
    if before is None or at(before, "started") != at(stats, "started"):
        before, seconds = None, number(stats, "uptime_seconds")
    else:
        seconds = number(stats, "now") - number(before, "now")
    seconds = max(seconds, 1e-3)

    durations = _read_times(stats)
    if before:
        durations = durations.without(_read_times(before))
    hits, misses, puts = (
        max(0.0, now - then)
        for now, then in zip(_counters(stats), _counters(before), strict=True)
    )
    return Figures(
        keys=int(number(stats, "store", "keys")),
        live_bytes=int(number(stats, "store", "live_bytes")),
        capacity_bytes=capacity_bytes(stats),
        get_rate=(hits + misses) / seconds,
        put_rate=puts / seconds,
        hits=hits,
        misses=misses,
        durations=durations,
    )


def _counters(stats: Stats | None) -> tuple[float, float, float]:
    """Return the hits, misses and PUTs since the start; 0 each without numbers."""
    requests, commands = at(stats, "requests"), at(stats, "memcache")
    rows = at(requests, "by")
    return (
        number(requests, "hits", "MEMC")
        + number(requests, "hits", "DISK")
        + number(commands, "hits"),
        number(requests, "missed") + number(commands, "misses"),
        number(commands, "stored")
        + sum(
            number(row, "count")
            for row in (rows if isinstance(rows, list) else [])
            if at(row, "method") == "PUT"
        ),
    )


def capacity_bytes(stats: Stats) -> int:
    """Return how much an instance can hold: live, dead and free bytes together."""
    parts = ("live_bytes", "dead_bytes", "free_bytes")
    return sum(int(number(stats, "store", part)) for part in parts)


def total(rows: Iterable[Row]) -> Figures:
    """Return the sums of all rows."""
    found = Figures()
    for row in rows:
        if row.figures:
            found.add(row.figures)
    return found


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Return rows by severity, then by load, both descending; then by name."""

    def order(row: Row) -> tuple[float, float, str]:
        figures = row.figures or Figures()
        load = figures.get_rate + figures.put_rate
        return -row.health.severity, -load, row.target.name

    return sorted(rows, key=order)


def states(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of instances in each state, the worst first."""
    found: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: -row.health.severity):
        found[row.health.state] = found.get(row.health.state, 0) + 1
    return found


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the report of `volcache cluster status --json`; see docs/OPERATIONS.md."""
    return {
        "healthy": all(row.health.severity == HEALTHY for row in rows),
        "states": states(rows),
        "total": {
            "instances": len(rows),
            "down": sum(row.health.severity == DOWN for row in rows),
            **_figures_json(total(rows)),
        },
        "instances": [
            {
                "name": row.target.name,
                "url": row.target.url,
                "machine": row.target.machine,
                "weight": row.target.weight,
                "severity": row.health.severity,
                "state": row.health.state,
                "problem": row.health.problem,
                "version": row.version or None,
                "uptime_seconds": row.uptime_seconds,
                **_figures_json(row.figures),
            }
            for row in rows
        ],
    }


def _figures_json(figures: Figures | None) -> dict[str, float | int | None]:
    names = (
        *("keys", "live_bytes", "capacity_bytes"),
        *("get_rate", "put_rate", "hit_ratio", "p99_seconds"),
    )
    return {name: getattr(figures, name) if figures else None for name in names}


def _read_times(stats: Mapping[str, Any]) -> Histogram:
    """Return the durations of GETs, with those of memcached clients."""
    commands = _histogram(stats, "memcache", "latency", "get")
    return _histogram(stats, "latency", "GET").merged(commands)


def _histogram(stats: Mapping[str, Any], *keys: str) -> Histogram:
    """Return durations; empty if they are not of the form we know."""
    counts = at(stats, *keys, "counts")
    if not isinstance(counts, list) or len(counts) != BUCKETS:
        return Histogram()
    return Histogram([int(number({"n": count}, "n")) for count in counts])
