"""
The numbers of all instances of a cluster, asked for again and again in the background.

Each poll has a thread of its own, so an instance that hangs delays no other. What is kept
is bounded: the last numbers of each instance, and one point per poll for ten minutes. What
answers may be anything; a number that is missing or of another type counts as 0 or unknown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.errors import ConfigError, InstanceError
from volcache.fleet.health import DEGRADED, DOWN, HEALTHY, WARNING, Health, health_of
from volcache.fleet.health import at as value_at
from volcache.fleet.health import number as number_at
from volcache.fleet.remote import fetch_stats
from volcache.fleet.targets import read_targets
from volcache.histogram import BUCKETS, Histogram
from volcache.text import one_line
from volcache.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from volcache.fleet.remote import Stats
    from volcache.fleet.targets import Target

_logger = logging.getLogger("volcache.fleet")

INTERVAL_SECONDS: Final = 5.0
TIMEOUT_SECONDS: Final = 3.0
HISTORY_SECONDS: Final = 600.0
_RECENT_SECONDS: Final = 60.0  # What rates, ratios and p99 are about.
_ERRORS_SECONDS: Final = 300.0  # Errors since then are recent ones.
_ERRORS_STEP_SECONDS: Final = 60.0
_LIST_SECONDS: Final = 1.0  # How often the files with instances are looked at.
_TICK_SECONDS: Final = 0.25
_START_STEP_SECONDS: Final = 0.005  # Between the first polls of two instances.
# The threads of hung instances end at their time-out; this many may wait at once.
POLLS_MAX: Final = 512
UNKNOWN: Final = "unknown"  # The state of an instance that was not asked yet.
OUT: Final = "out"  # That of one that nginx's list excludes.
_TEXT_MAX: Final = 200
_NUMBER_MAX: Final = 1 << 63
_NOT_VOLCACHE: Final = "the response is not from volcache"
# What `health_of` compares with an earlier time.
_COMPARED: Final = (
    *("write_errors", "read_errors", "sync_errors", "index_errors", "damaged_records"),
)

Json = dict[str, Any]


class _Sample(NamedTuple):
    """The counters of an instance at one poll."""

    at: float  # by the clock of the poller
    started: float
    total: float
    gets: float
    puts: float
    hits: float
    reads: float
    sent: float
    received: float
    times: tuple[int, ...]  # histogram of GETs


class Point(NamedTuple):
    """What is drawn of one poll; None if it is not known."""

    at: float  # seconds since the epoch
    requests: float | None  # per second
    hit_ratio: float | None
    p99: float | None  # of GETs, seconds


class _Rates(NamedTuple):
    """What happened between two polls; per second, or None if nothing tells."""

    requests: float | None = None
    gets: float | None = None
    puts: float | None = None
    sent: float | None = None
    received: float | None = None
    hits: float = 0.0  # not per second
    reads: float = 0.0
    p99: float | None = None  # of GETs, seconds

    @property
    def hit_ratio(self) -> float | None:
        """The share of reads that found a value."""
        return min(1.0, self.hits / self.reads) if self.reads else None

    def point(self, at: float) -> Point:
        """Return what is drawn."""
        return Point(
            round(at, 1),
            _rounded(self.requests, 2),
            _rounded(self.hit_ratio, 4),
            _rounded(self.p99, 7),
        )


_NOTHING: Final = _Rates()


class Watched:
    """One instance of the list, and what is known about it."""

    def __init__(self, name: str, target: Target, due: float, now: float) -> None:
        """Poll it at `due`."""
        self.name = name
        self.target = target
        self.due = due
        self.asked: float | None = None  # since when an answer is awaited
        self.seen: float | None = None  # the last answer
        self.since = now  # of the state
        self.health = Health(HEALTHY, UNKNOWN, "not asked yet")
        self.failure = ""  # why it has not answered the last poll
        self.points: deque[Point] = deque()
        self.rates = _NOTHING
        self.figures: Json = {}
        self._samples: deque[_Sample] = deque()
        self._compared: deque[tuple[float, Stats]] = deque()

    def add(self, found: Stats | InstanceError, now: float) -> None:
        """Take over what a poll has found."""
        before = self._compared[0][1] if self._compared else None
        self._update_health(found, before, now)
        self.rates = _NOTHING
        point = _NOTHING
        if not isinstance(found, InstanceError):
            self.seen = now
            self.figures = _figures(found)
            sample = _sample(found, now)
            samples = self._samples
            if samples and not _is_later(sample, samples[-1]):
                samples.clear()
            if samples:
                point = _between(samples[-1], sample)
                self.rates = _between(samples[0], sample)
            samples.append(sample)
            while samples[0].at < now - _RECENT_SECONDS:
                samples.popleft()
            self._keep_compared(found, now)
        self.points.append(point.point(now))
        while self.points[0].at < now - HISTORY_SECONDS:
            self.points.popleft()

    def fail(self, error: InstanceError, since: float) -> None:
        """Let it be down without a poll that has ended."""
        self._update_health(error, None, self.since if self.failure else since)
        self.rates = _NOTHING

    def _update_health(
        self, found: Stats | InstanceError, before: Stats | None, now: float
    ) -> None:
        health = health_of(found, before)
        self.failure = health.problem if isinstance(found, InstanceError) else ""
        if self.target.is_down:
            health = Health(HEALTHY, OUT, "the list excludes it (down)")
        if health.state != self.health.state:
            self.since = now
        self.health = health

    def _keep_compared(self, stats: Stats, now: float) -> None:
        """Keep the counters of errors, once a minute."""
        kept = self._compared
        if kept and value_at(kept[-1][1], "started") != value_at(stats, "started"):
            kept.clear()
        if not kept or kept[-1][0] <= now - _ERRORS_STEP_SECONDS:
            store = {name: value_at(stats, "store", name) for name in _COMPARED}
            by = value_at(stats, "requests", "by")
            started = value_at(stats, "started")
            commands = {"by": value_at(stats, "memcache", "by")}
            reduced = {
                "started": started,
                "store": store,
                "requests": {"by": by},
                "memcache": commands,
            }
            kept.append((now, reduced))
        while len(kept) > 1 and kept[1][0] < now - _ERRORS_SECONDS:
            kept.popleft()

    def row(self, since: float) -> Json:
        """Return it as JSON, with the points after a time."""
        health, target, rates = self.health, self.target, self.rates
        return {
            "name": self.name,
            "url": target.url,
            "machine": target.machine,
            "weight": target.weight,
            "excluded": target.is_down,
            "severity": health.severity,
            "state": health.state,
            "problem": health.problem,
            "answers": self.is_up,
            "since": round(self.since, 1),
            "seen": _rounded(self.seen, 1),
            **self.figures,
            "requests_per_second": _rounded(rates.requests, 2),
            "gets_per_second": _rounded(rates.gets, 2),
            "puts_per_second": _rounded(rates.puts, 2),
            "sent_bytes_per_second": _rounded(rates.sent, 0),
            "received_bytes_per_second": _rounded(rates.received, 0),
            "hit_ratio": _rounded(rates.hit_ratio, 4),
            "p99_seconds": _rounded(rates.p99, 7),
            "points": [point for point in self.points if point.at > since],
        }

    @property
    def is_up(self) -> bool:
        """Whether it answered the last poll."""
        return bool(self.figures) and not self.failure


class Poller:
    """
    Polls the instances of a list until it is stopped.

    A file with instances is read again when it changes. A wrong file is a problem that
    `overview` shows; the list before it stays in use.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        interval: float = INTERVAL_SECONDS,
        timeout: float = TIMEOUT_SECONDS,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Read the list; ask nothing yet.

        Args:
            sources: As for `read_targets`.
            interval: Seconds between two polls of an instance.
            timeout: Seconds that an instance may take for an answer.
            clock: Nanoseconds since the epoch.

        Raises:
            ConfigError: As `read_targets`.
        """
        self._sources = list(sources)
        self._interval = interval
        self._timeout = timeout
        # The time, never set back while this runs.
        self._started = clock() / 1e9
        self._base = time.monotonic()
        self._files = [source for source in sources if Path(source).is_file()]
        self._marks = self._looked_at()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._polls = 0
        self._looked = self._totalled = self._started
        self._list_problem = ""
        self._watched: dict[str, Watched] = {}
        self._totals: deque[Point] = deque()
        self._watch_targets(read_targets(self._sources))

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self._started + time.monotonic() - self._base

    def start(self) -> None:
        """Poll in the background from now on."""
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Ask nothing from now on; polls that wait for an answer are abandoned."""
        self._stop.set()

    def find(self, name: str) -> Watched | None:
        """Return the instance with a name; None if there is none."""
        with self._lock:
            return self._watched.get(name)

    def overview(self, since: float = 0.0) -> Json:
        """
        Return all that is known, as JSON.

        Args:
            since: Points of the charts up to this time are left out.
        """
        now = self.now()
        with self._lock:
            self._age(now)
            all_ = list(self._watched.values())
            rows = [watched.row(since) for watched in all_]
            totals = _totals(all_)
            totals["points"] = [point for point in self._totals if point.at > since]
        rows.sort(key=lambda row: -row["severity"])
        return {
            "version": __version__,
            "now": round(now, 1),
            "interval_seconds": self._interval,
            "history_seconds": HISTORY_SECONDS,
            "sources": [one_line(source, _TEXT_MAX) for source in self._sources[:20]],
            "list_problem": self._list_problem or None,
            "totals": totals,
            "instances": rows,
        }

    # --- The list --------------------------------------------------------------------

    def _watch_targets(self, targets: Iterable[Target]) -> None:
        """Watch these instances; those that were watched before keep what is known."""
        now = self.now()
        known = {watched.target.url: watched for watched in self._watched.values()}
        found: dict[str, Watched] = {}
        due = now
        for target in targets:
            name = target.url if target.name in found else target.name
            watched = known.get(target.url)
            if watched is None:
                watched = Watched(name, target, due, now)
                due += _START_STEP_SECONDS
            watched.name, watched.target = name, target
            found[name] = watched
        with self._lock:
            self._watched = found

    def _looked_at(self) -> list[tuple[int, int, int] | str]:
        """Return what changes when a file changes; the reason if it cannot be read."""
        marks: list[tuple[int, int, int] | str] = []
        for file in self._files:
            try:
                stat = Path(file).stat()
            except OSError as error:
                marks.append(f"{file}: cannot be read: {error.strerror}")
            else:
                marks.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return marks

    def _read_again(self) -> None:
        """Read the files with instances if one of them has changed."""
        marks = self._looked_at()
        if marks == self._marks:
            return
        self._marks = marks
        problems = [mark for mark in marks if isinstance(mark, str)]
        targets: list[Target] = []
        try:
            if not problems:
                targets = read_targets(self._sources)
        except ConfigError as error:
            problems = [str(error)]
        self._list_problem = one_line(problems[0], _TEXT_MAX) if problems else ""
        if not problems:
            self._watch_targets(targets)

    # --- Polling ---------------------------------------------------------------------

    def _run(self) -> None:
        self._looked = self._totalled = self.now()
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._tick(self.now())
            except Exception:  # The figures would never change again.
                _logger.exception("dashboard.failed")

    def _tick(self, now: float) -> None:
        """Do what is due."""
        if now - self._looked >= _LIST_SECONDS:
            self._looked = now
            self._read_again()
        if now - self._totalled >= self._interval:
            self._totalled = now
            self._add_total(now)
        for watched in self._due(now):
            thread = threading.Thread(
                target=self._poll, args=[watched], name="poll", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # The system has no room for a thread now.
                self._end_of(watched)

    def _due(self, now: float) -> list[Watched]:
        """Return which instances are asked now, at most `POLLS_MAX` at a time."""
        with self._lock:
            found = [
                watched
                for watched in self._watched.values()
                if watched.asked is None and watched.due <= now
            ]
            found = found[: max(0, POLLS_MAX - self._polls)]
            for watched in found:
                watched.asked = now
            self._polls += len(found)
        return found

    def _poll(self, watched: Watched) -> None:
        url = watched.target.url
        found: Stats | InstanceError
        try:
            found = fetch_stats(url, timeout=self._timeout, volumes=False)
        except InstanceError as error:
            found = error
        except Exception:  # noqa: BLE001 - What answers may be anything.
            found = InstanceError(url, _NOT_VOLCACHE)
        with self._lock:
            now = self.now()
            try:
                watched.add(found, now)
            except Exception:  # noqa: BLE001 - As above.
                watched.add(InstanceError(url, _NOT_VOLCACHE), now)
        self._end_of(watched)

    def _end_of(self, watched: Watched) -> None:
        """A poll is over; plan the next."""
        with self._lock:
            now = self.now()
            watched.due = max(
                now + _TICK_SECONDS, (watched.asked or now) + self._interval
            )
            watched.asked = None
            self._polls -= 1

    def _age(self, now: float) -> None:
        """Let instances be down that have not even failed to answer for long."""
        limit = 3 * self._interval + 2 * self._timeout
        for watched in self._watched.values():
            asked = watched.asked
            if asked is not None and now - asked > limit:
                error = InstanceError("", f"no answer for {now - asked:.0f} s")
                watched.fail(error, asked)

    def _add_total(self, now: float) -> None:
        with self._lock:
            self._age(now)
            rates = _summed([w.rates for w in self._watched.values() if w.is_up])
            self._totals.append(rates.point(now))
            while self._totals[0].at < now - HISTORY_SECONDS:
                self._totals.popleft()


# --- Numbers of one instance ---------------------------------------------------------


def _figures(stats: Stats) -> Json:
    """Return what is shown of the last numbers; strings are short and of one line."""
    size = _count(stats, "store", "volume_size")
    return {
        "version": _text(stats, "version"),
        "mount_point": _text(stats, "store", "mount_point"),
        "uptime_seconds": _count(stats, "uptime_seconds"),
        "keys": _count(stats, "store", "keys"),
        "live_bytes": _count(stats, "store", "live_bytes"),
        "dead_bytes": _count(stats, "store", "dead_bytes"),
        "free_bytes": _count(stats, "store", "free_bytes"),
        "capacity_bytes": _count(stats, "store", "volume_num") * size,
        "rss_bytes": _count(stats, "process", "rss_bytes"),
    }


def _count(stats: Any, *keys: str) -> int:  # noqa: ANN401 - As JSON has it.
    """Return a number of JSON as an integer from 0 to `_NUMBER_MAX`."""
    return int(min(max(0.0, number_at(stats, *keys)), _NUMBER_MAX))


def _text(stats: Stats, *keys: str) -> str:
    found = value_at(stats, *keys)
    return one_line(found, _TEXT_MAX) if isinstance(found, str) else ""


def _sample(stats: Stats, now: float) -> _Sample:
    by = value_at(stats, "requests", "by")
    rows = by if isinstance(by, list) else []
    # What memcached clients read and store is added to the GETs and PUTs.
    commands = value_at(stats, "memcache")
    found, missed = _count(commands, "hits"), _count(commands, "misses")
    hits = sum(_count(stats, "requests", "hits", tier) for tier in ("MEMC", "DISK"))
    hits += found
    times = _counts(value_at(stats, "latency", "GET", "counts"))
    more_times = _counts(value_at(commands, "latency", "get", "counts"))
    return _Sample(
        at=now,
        started=number_at(stats, "started"),
        total=_count(stats, "requests", "total") + _count(commands, "total"),
        gets=_count_of(rows, "GET") + found + missed,
        puts=_count_of(rows, "PUT") + _count(commands, "stored"),
        hits=hits,
        reads=hits + _count(stats, "requests", "missed") + missed,
        sent=_count(stats, "requests", "bytes_out") + _count(commands, "bytes_out"),
        received=_count(stats, "requests", "bytes_in") + _count(commands, "bytes_in"),
        times=tuple(map(add, times, more_times)),
    )


def _count_of(rows: list[Any], method: str) -> float:
    return sum(
        _count(row, "count") for row in rows if value_at(row, "method") == method
    )


def _counts(found: Any) -> tuple[int, ...]:  # noqa: ANN401 - As JSON has it.
    """Return the counts of a histogram; zeros if it is not one."""
    if isinstance(found, list) and len(found) == BUCKETS:
        return tuple(_count({"n": n}, "n") for n in found)
    return (0,) * BUCKETS


def _is_later(sample: _Sample, before: _Sample) -> bool:
    """Return whether both are of one process, and may be compared."""
    return (
        abs(sample.started - before.started) < 1
        and sample.total >= before.total
        and sample.at > before.at
    )


def _between(before: _Sample, after: _Sample) -> _Rates:
    seconds = after.at - before.at

    def per_second(now: float, then: float) -> float:
        return max(0.0, now - then) / seconds

    times = Histogram(list(after.times)).without(Histogram(list(before.times)))
    return _Rates(
        requests=per_second(after.total, before.total),
        gets=per_second(after.gets, before.gets),
        puts=per_second(after.puts, before.puts),
        sent=per_second(after.sent, before.sent),
        received=per_second(after.received, before.received),
        hits=max(0.0, after.hits - before.hits),
        reads=max(0.0, after.reads - before.reads),
        p99=times.quantile(0.99) if times.count else None,
    )


# --- Numbers of all ------------------------------------------------------------------


def _summed(rates: Iterable[_Rates]) -> _Rates:
    """Return the sums, without p99, which has none."""
    known = [one for one in rates if one.requests is not None]
    if not known:
        return _NOTHING

    def total(values: Iterable[float | None]) -> float:
        return sum(value or 0.0 for value in values)

    return _Rates(
        requests=total(one.requests for one in known),
        gets=total(one.gets for one in known),
        puts=total(one.puts for one in known),
        sent=total(one.sent for one in known),
        received=total(one.received for one in known),
        hits=sum(one.hits for one in known),
        reads=sum(one.reads for one in known),
    )


def _totals(watched: Sequence[Watched]) -> Json:
    """Return the totals of the instances that answer."""
    up = [one for one in watched if one.is_up]
    rates = _summed(one.rates for one in up)
    severities = [one.health.severity for one in watched]
    return {
        "instances": len(watched),
        "up": len(up),
        "down": severities.count(DOWN),
        "degraded": severities.count(DEGRADED),
        "warning": severities.count(WARNING),
        "healthy": sum(one.health.severity == HEALTHY for one in up),
        "out": sum(one.health.state == OUT for one in watched),
        "unknown": sum(one.health.state == UNKNOWN for one in watched),
        **{
            key: sum(one.figures[key] for one in up)
            for key in ("keys", "live_bytes", "dead_bytes", "free_bytes")
        },
        "capacity_bytes": sum(one.figures["capacity_bytes"] for one in up),
        "requests_per_second": _rounded(rates.requests, 2),
        "gets_per_second": _rounded(rates.gets, 2),
        "puts_per_second": _rounded(rates.puts, 2),
        "sent_bytes_per_second": _rounded(rates.sent, 0),
        "received_bytes_per_second": _rounded(rates.received, 0),
        "hit_ratio": _rounded(rates.hit_ratio, 4),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
