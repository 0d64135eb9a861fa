"""
The numbers of all instances of a cluster: asked for once, or again and again.

Each request has a thread of its own, so an instance that hangs delays no other. What is
kept is bounded: the last answer of each instance, and its counters of the last minute. What
answers may be anything; a number that is missing or of another type counts as 0.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.background import Background
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.health import HEALTHY, Health, at, health_of, number, refused
from volcache.fleet.remote import (
    AT_ONCE_MAX,
    TIMEOUT_SECONDS,
    Stats,
    decode_stats,
    fetch_body,
)
from volcache.fleet.targets import read_targets, sources_of
from volcache.histogram import BUCKETS, Histogram
from volcache.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from volcache.fleet.targets import Target

_logger = logging.getLogger("volcache.fleet")

UNKNOWN: Final = "unknown"  # The state of an instance that was not asked yet.
OUT: Final = "out"  # That of one that the list excludes.
_TICK_SECONDS: Final = 0.25
_LIST_SECONDS: Final = 2.0  # How often files with instances are read again.
_STEP_SECONDS: Final = 0.005  # Between the first polls of two instances.
# How long an instance is asked for all of its numbers, and how many are.
_WANTED_SECONDS: Final = 10.0
_WANTED_MAX: Final = 16
_TEXT_MAX: Final = 200
_NUMBER_MAX: Final = float(1 << 63)
_NEVER: Final = float("inf")
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
    """One instance of the list, and what is known about it."""

    def __init__(self, target: Target, now: float, window: float = 0.0) -> None:
        """Ask it at once; its rates are those of so many seconds."""
        self.target = target
        self.due = now
        self.asked: float | None = None  # since when an answer is awaited
        self.wanted = 0.0  # until then, with its volumes
        self.since = now  # of the state
        self.health = Health(HEALTHY, UNKNOWN, "not asked yet")
        self.failure = ""  # why it has not answered the last poll
        self.body = b""  # its last answer
        self.figures: Figures | None = None  # None: it does not answer.
        self.about = About()
        self._window = window
        self._samples: deque[_Sample] = deque()

    @property
    def stats(self) -> Stats | None:
        """Its numbers; None if it does not answer."""
        return None if self.figures is None else dict(json.loads(self.body))

    def receive(self, found: bytes | InstanceError, began: float, now: float) -> None:
        """
        Take over an answer, or why there is none.

        Args:
            found: The body of `/-/stats`.
            began: When it was asked for.
            now: When it was complete.
        """
        if isinstance(found, InstanceError):
            self.fail(found, now)
            return
        try:
            self._add(found, began, now)
        except InstanceError as error:
            self.fail(error, now)
        except Exception as error:  # noqa: BLE001 - What answers may be anything.
            self.fail(InstanceError(self.target.url, f"wrong numbers: {error}"), now)

    def _add(self, body: bytes, began: float, now: float) -> None:
        stats = decode_stats(self.target.url, body)
        self._set_health(health_of(stats), now)
        self.failure, self.body = "", body
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

    def fail(self, error: InstanceError, now: float) -> None:
        """Let it be down."""
        health = health_of(error)
        self._set_health(health, now)
        self.failure, self.figures, self.about = health.problem, None, About()

    def _set_health(self, health: Health, now: float) -> None:
        if self.target.is_down:
            health = Health(HEALTHY, OUT, "the list excludes it (down)")
        if health.state != self.health.state:
            self.since = now
        self.health = health

    def _add_sample(self, stats: Stats, now: float) -> None:
        """Update rates: those of the window, or since the start of the instance."""
        sample, samples = _sample(stats, now), self._samples
        if samples and not _is_later(sample, samples[-1]):
            samples.clear()
        up = max(number(stats, "uptime_seconds"), 1e-3)
        start = _Sample(now - up, sample.started, _NOTHING, Histogram())
        self.figures = _between(samples[0] if samples else start, sample, stats)
        samples.append(sample)
        while samples[0].at < now - self._window:
            samples.popleft()


class FleetCollector:
    """
    Asks the instances of a list for their numbers.

    While it runs in the background, it reads the list again and again. A wrong file is a
    problem; the list before it stays in use.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        timeout: float = TIMEOUT_SECONDS,
        interval: float = _NEVER,
        window: float = 0.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Read the list; ask nothing yet.

        Args:
            sources: As for `read_targets`.
            timeout: Seconds that an instance may take for an answer.
            interval: Seconds between two polls of an instance in the background.
            window: Seconds that rates are about; 0: since the poll before.
            clock: Nanoseconds since the epoch.

        Raises:
            ConfigError: As `read_targets`.
        """
        self.sources = sources_of(sources)
        self.interval = interval
        self.list_problem = ""
        self._timeout, self._window = timeout, window
        self._clock_start, self._start = clock() / 1e9, time.monotonic()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._asking = 0
        self._looked = self.now()
        self._watched: dict[str, Watched] = {}
        self._watch(read_targets(self.sources))

    def now(self) -> float:
        """Return seconds since the epoch, never set back while this runs."""
        return self._clock_start + time.monotonic() - self._start

    def find(self, name: str) -> Watched | None:
        """Return the instance with a name; None if there is none."""
        return self._watched.get(name)

    def instances(self) -> list[Watched]:
        """Return all instances, in the order of the list."""
        now = self.now()
        with self._changed:
            found = list(self._watched.values())
            for one in found:
                if self._is_late(one, now):
                    reason = f"no answer for {now - (one.asked or now):.0f} s"
                    one.fail(InstanceError(one.target.url, reason), now)
        return found

    def poll(self) -> list[Watched]:
        """Ask all instances at the same time, and return them."""
        for one in self.instances():
            one.due = self.now()
        while True:
            self._ask_due()
            with self._changed:
                now = self.now()
                waiting = (one for one in self._watched.values() if one.due <= now)
                if all(self._is_late(one, now) for one in waiting):
                    break
                self._changed.wait(_TICK_SECONDS)
        return self.instances()

    def want(self, one: Watched) -> None:
        """Ask an instance for all of its numbers, every second for a while."""
        now = self.now()
        with self._changed:
            others = sum(other.wanted > now for other in self._watched.values())
            if one.wanted <= now and others < _WANTED_MAX:
                one.due = now
            if one.wanted > now or others < _WANTED_MAX:
                one.wanted = now + _WANTED_SECONDS

    def start(self) -> None:
        """Ask in the background from now on."""
        Background("collector", self._turn, self._stop.is_set).start()

    def stop(self) -> None:
        """Ask nothing from now on; requests that wait for an answer are abandoned."""
        self._stop.set()

    def _turn(self) -> None:
        self._ask_due()
        if self.now() - self._looked >= min(self.interval, _LIST_SECONDS):
            self._looked = self.now()
            self._read_again()
        self._stop.wait(_TICK_SECONDS)

    def _watch(self, targets: Iterable[Target]) -> None:
        """Watch these instances; those that were watched before keep what is known."""
        now = self.now()
        known = {one.target.url: one for one in self._watched.values()}
        found: dict[str, Watched] = {}
        for target in targets:
            if target.name in found:
                target = target._replace(name=target.url)  # noqa: PLW2901 - Of two lists.
            due = now + _STEP_SECONDS * len(found)
            one = known.get(target.url) or Watched(target, due, self._window)
            one.target = target
            found[target.name] = one
        with self._changed:
            self._watched = found

    def _read_again(self) -> None:
        try:
            targets = read_targets(self.sources)
        except ConfigError as error:
            self.list_problem = one_line(str(error), _TEXT_MAX)
        else:
            self.list_problem = ""
            self._watch(targets)

    def _is_late(self, one: Watched, now: float) -> bool:
        """Return whether an answer is awaited longer than any time-out explains."""
        return one.asked is not None and now - one.asked > 2 * self._timeout + 1

    def _ask_due(self) -> None:
        """Ask the instances whose time has come, as many as may be asked at a time."""
        with self._changed:
            now = self.now()
            all_ = self._watched.values()
            due = [one for one in all_ if one.asked is None and one.due <= now]
            due = due[: AT_ONCE_MAX - self._asking]
            for one in due:
                one.asked = now
            self._asking += len(due)
        for one in due:
            self._begin(one)

    def _begin(self, one: Watched) -> None:
        thread = threading.Thread(
            target=self._ask, args=[one], name="collector", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # The system has no room for a thread now.
            self._end(one, InstanceError(one.target.url, "no thread to ask it"))

    def _ask(self, one: Watched) -> None:
        try:
            volumes = one.wanted > self.now()
            url, timeout = one.target.url, self._timeout
            found: bytes | InstanceError
            found = fetch_body(url, volumes=volumes, timeout=timeout)
        except InstanceError as error:
            found = error
        except Exception as error:  # It would never be asked again.
            _logger.exception("dashboard.failed")
            found = InstanceError(one.target.url, f"a bug in volcache: {error!r}")
        self._end(one, found)

    def _end(self, one: Watched, found: bytes | InstanceError) -> None:
        """Take over what was found, and plan when to ask again."""
        with self._changed:
            now, began = self.now(), one.asked or 0.0
            one.receive(found, began, now)
            pause = min(self.interval, 1.0) if one.wanted > now else self.interval
            one.due = max(now + _TICK_SECONDS, began + pause)
            one.asked = None
            self._asking -= 1
            self._changed.notify_all()


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
