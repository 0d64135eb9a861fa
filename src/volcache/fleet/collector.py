"""
The numbers of all instances of a cluster: asked for once, or again and again.

All are asked at the same time, so a poll takes one time-out however many hang. What
answers may be anything; a number that is missing or of another type counts as 0.
"""

from __future__ import annotations

import time
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import InstanceError
from volcache.fleet.health import HEALTHY, Health, at, health_of, number, refused
from volcache.fleet.remote import (
    Stats,
    each,
    fetch_stats,
)
from volcache.fleet.targets import read_targets
from volcache.histogram import BUCKETS, NS_PER_SECOND, Histogram
from volcache.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from volcache.fleet.targets import Target

OUT: Final = "out"  # The state of an instance that the list excludes.
_TEXT_MAX: Final = 200
_NUMBER_MAX: Final = float(1 << 63)
_NOTHING: Final = (0,) * 7  # The counters at the start of an instance.


class Figures(NamedTuple):
    """What is known of an instance at one time, or of all of them together."""

    keys: int = 0
    live_bytes: int = 0
    capacity_bytes: int = 0
    # Per second. Reads are those of keys, with those of memcached clients; not those of
    # paths under /-/. PUTs include what memcached clients store.
    request_rate: float = 0.0
    hit_rate: float = 0.0
    miss_rate: float = 0.0
    misdirected_rate: float = 0.0  # reads of keys that belong to other instances
    put_rate: float = 0.0
    sent_rate: float = 0.0  # bytes
    received_rate: float = 0.0
    durations: Histogram = Histogram()  # of GETs, in the time of the rates

    @property
    def get_rate(self) -> float:
        """Reads per second."""
        return self.hit_rate + self.miss_rate + self.misdirected_rate

    @property
    def hit_ratio(self) -> float | None:
        """Hits as a share of what clients read; None without any."""
        return self.hit_rate / self.get_rate if self.get_rate else None

    @property
    def own_hit_ratio(self) -> float | None:
        """Hits as a share of what clients read of the keys of the instance."""
        own = self.hit_rate + self.miss_rate
        return self.hit_rate / own if own else None

    @property
    def p99_seconds(self) -> float | None:
        """The time that 99 % of GETs stay below; None without any of a key."""
        if not self.durations.count or self.hit_ratio is None:
            return None
        return self.durations.quantile(0.99)


def total(figures: Iterable[Figures]) -> Figures:
    """Return the sums."""
    found = Figures()
    for one in figures:
        merged = found.durations.merged(one.durations)
        found = Figures._make([*map(add, found[:-1], one[:-1]), merged])
    return found


class _Sample(NamedTuple):
    """The counters of an instance at one poll."""

    at: float
    started: float
    counters: tuple[int, ...]  # those of which `Figures` has the rates
    durations: Histogram


class About(NamedTuple):
    """What else an instance has told."""

    version: str = ""
    mount_point: str = ""
    uptime_seconds: float | None = None
    clock_ahead: float | None = None  # seconds; of our clock
    clock_error: float = 0.0  # how wrong that may be, because the answer took time
    # Of which instances it has refused keys lately, and how many seconds ago.
    refused: Mapping[str, float] = MappingProxyType({})


class Watched:
    """
    One instance of the list, and what is known about it.

    Attributes:
        health: Since the first answer.
        stats: Its numbers; None if it does not answer.
    """

    health: Health

    def __init__(self, target: Target) -> None:
        """Know nothing yet."""
        self.target = target
        self.stats: Stats | None = None
        self.failure = ""  # why it has not answered the last poll
        self.figures: Figures | None = None  # None: it does not answer.
        self.about = About()
        self._before: _Sample | None = None

    def receive(self, stats: Stats, began: float, now: float) -> None:
        """
        Take over an answer.

        Args:
            stats: Of `/-/stats`.
            began: When they were asked for.
            now: When they were complete.
        """
        try:
            self._add(stats, began, now)
        except Exception as error:  # noqa: BLE001 - What answers may be anything.
            self.fail(InstanceError(self.target.url, f"wrong numbers: {error}"))

    def _add(self, stats: Stats, began: float, now: float) -> None:
        self._set_health(health_of(stats))
        self.failure, self.stats = "", stats
        clock = number(stats, "now")
        self.about = About(
            _text(stats, "version"),
            _text(stats, "store", "mount_point"),
            _count(stats, "uptime_seconds"),
            clock - (began + now) / 2 if clock else None,
            (now - began) / 2,
            refused(stats),
        )
        self._add_sample(stats, now)

    def fail(self, error: InstanceError) -> None:
        """Let it be down."""
        health = health_of(error)
        self._set_health(health)
        self.failure, self.figures, self.about = health.problem, None, About()
        self.stats = None

    def _set_health(self, health: Health) -> None:
        if self.target.is_down:
            health = Health(HEALTHY, OUT, "the list excludes it (down)")
        self.health = health

    def _add_sample(self, stats: Stats, now: float) -> None:
        """Update rates: those since the poll before, or since the start."""
        sample, before = _sample(stats, now), self._before
        if before is None or not _is_later(sample, before):
            up = max(number(stats, "uptime_seconds"), 1e-3)
            before = _Sample(now - up, sample.started, _NOTHING, Histogram())
        self.figures = _between(before, sample, stats)
        self._before = sample


class FleetCollector:
    """Asks the instances of a list for their numbers, once or again and again."""

    def __init__(self, sources: Sequence[str], timeout: float) -> None:
        """
        Read the list; ask nothing yet.

        Args:
            sources: As for `read_targets`.
            timeout: Seconds that an instance may take for an answer.

        Raises:
            ConfigError: As `read_targets`.
        """
        self._watched = [Watched(target) for target in read_targets(sources)]
        self._timeout = timeout

    def poll(self) -> list[Watched]:
        """Ask all instances at the same time; return them in the order of the list."""
        urls = [one.target.operator_url for one in self._watched]
        for one, (_, found) in zip(self._watched, each(urls, self._ask), strict=True):
            if isinstance(found, InstanceError):
                one.fail(found)
            else:
                one.receive(*found)
        return self._watched

    def _ask(self, url: str) -> tuple[Stats, float, float]:
        """Return the numbers, and when they were asked for and complete."""
        began = time.time_ns() / NS_PER_SECOND
        stats = fetch_stats(url, timeout=self._timeout)
        return stats, began, time.time_ns() / NS_PER_SECOND


def _sample(stats: Stats, now: float) -> _Sample:
    """Return the counters; what memcached clients do is added to reads and PUTs."""
    requests, commands = at(stats, "requests"), at(stats, "memcache")
    by = at(requests, "by")
    puts = sum(
        _count(row, "count")
        for row in (by if isinstance(by, list) else [])
        if at(row, "method") == "PUT"
    )
    found = sum(_count(requests, "hits", tier) for tier in ("MEMC", "DISK"))
    counters = (
        _count(requests, "total") + _count(commands, "total"),
        found + _count(commands, "hits"),
        _count(requests, "missed") + _count(commands, "misses"),
        _count(requests, "misdirected", "read"),
        puts + _count(commands, "stored"),
        _count(requests, "bytes_out") + _count(commands, "bytes_out"),
        _count(requests, "bytes_in") + _count(commands, "bytes_in"),
    )
    durations = _histogram(stats, "latency", "GET")
    durations = durations.merged(_histogram(commands, "latency", "get"))
    return _Sample(now, number(stats, "started"), counters, durations)


def _is_later(sample: _Sample, before: _Sample) -> bool:
    """Return whether both are of one process, and may be compared."""
    return (
        abs(sample.started - before.started) < 1
        and sample.counters[0] >= before.counters[0]
        and sample.at > before.at
    )


def _between(before: _Sample, after: _Sample, stats: Stats) -> Figures:
    seconds = after.at - before.at
    pairs = zip(after.counters, before.counters, strict=True)
    return Figures._make(
        [
            _count(stats, "store", "keys"),
            _count(stats, "store", "live_bytes"),
            capacity_bytes(stats),
            *(max(0, now - then) / seconds for now, then in pairs),
            after.durations.without(before.durations),
        ]
    )


def capacity_bytes(stats: Stats) -> int:
    """Return how much an instance can hold: live, dead and free bytes together."""
    parts = ("live_bytes", "dead_bytes", "free_bytes")
    return sum(_count(stats, "store", part) for part in parts)


def _count(stats: object, *keys: str) -> int:
    """Return a number of JSON, from 0 to `_NUMBER_MAX`."""
    return int(min(max(0.0, number(stats, *keys)), _NUMBER_MAX))


def _histogram(stats: object, *keys: str) -> Histogram:
    """Return durations; empty if they are not of the form we know."""
    counts = at(stats, *keys, "counts")
    if not isinstance(counts, list) or len(counts) != BUCKETS:
        return Histogram()
    return Histogram([_count({"n": count}, "n") for count in counts])


def _text(stats: Stats, *keys: str) -> str:
    found = at(stats, *keys)
    return one_line(found, _TEXT_MAX) if isinstance(found, str) else ""
