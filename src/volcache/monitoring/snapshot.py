"""
A snapshot of a running instance: every number that is shown, read at one moment.

While requests are served nothing is computed or kept for monitoring: a snapshot reads the
integers that the store, the hot tier, HTTP and the memcached protocol count, and asks the
system for the rest. It needs no lock: each counter is changed by one thread, and what
another thread may add to meanwhile is copied in one step before it is iterated over.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.histogram import NS_PER_SECOND, Histogram
from volcache.monitoring.requests import RECENT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache.cache import Cache, HotState
    from volcache.monitoring.commands import CommandStats
    from volcache.monitoring.requests import RequestStats
    from volcache.store.stats import RecoveryStats, StoreStats, StoreUsage

_PAGE_BYTES: Final = resource.getpagesize()
_PROCESS: Final = Path("/proc/self")
_STEP_SECONDS: Final = 15.0


class ProcessStats(NamedTuple):
    """The figures that the system has of this process."""

    pid: int
    rss_bytes: int
    cpu_seconds: float
    open_fds: int
    max_fds: int
    threads: int


class Recent(NamedTuple):
    """What was counted in the last minutes, or since the start."""

    requests: Counter[int]  # by status, without those for keys of other instances
    commands: Counter[str]  # of the memcached protocol, by result

    def since(self, before: Recent) -> Recent:
        """Return what was counted after another time."""
        return Recent(self.requests - before.requests, self.commands - before.commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    An instance at one moment; counters are those since its start.

    `counts`, `requests` and `commands` are the live objects, so read them at once. Threads
    may count meanwhile: sums may differ from their parts by what happens in that time.
    """

    now: float  # seconds since the epoch
    started: float  # seconds since the epoch
    uptime: float  # seconds
    boot_seconds: float
    problem: str  # why it is not ready; empty if it is
    settings: Mapping[str, object]  # in effect; of a secret, whether it is set
    usage: StoreUsage
    counts: StoreStats
    recovery: RecoveryStats
    requests: RequestStats
    commands: CommandStats | None  # of the memcached protocol; None without it
    recent: Recent
    sync_durations: Histogram
    hot: HotState | None
    connections: Mapping[str, int] | None  # as the loops count them; None without HTTP
    process: ProcessStats


class Monitor:
    """Makes snapshots of one instance."""

    def __init__(  # noqa: PLR0913 - Plain facts, by keyword.
        self,
        cache: Cache,
        requests: RequestStats,
        *,
        commands: CommandStats | None = None,
        settings: Mapping[str, object],
        boot_seconds: float,
        is_draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Watch an instance.

        Args:
            cache: The cache it serves.
            requests: The counters of its HTTP layer.
            commands: Those of the memcached protocol; None without it.
            settings: All in effect, without secrets; may be replaced later.
            boot_seconds: How long it took to open the store, just before this call.
            is_draining: Whether the process is stopping.
            clock: Nanoseconds since the epoch.
            timer: Seconds, monotonic.
        """
        self._is_draining = is_draining
        self.cache = cache
        self.requests = requests
        self.commands = commands
        self._boot_seconds = boot_seconds
        self.settings = settings
        self._clock = clock
        # Set when HTTP is served: returns the figures.
        self.count_connections: Callable[[], Mapping[str, int]] | None = None
        self._timer, self._started_at = timer, timer() - boot_seconds
        self._started = clock() / NS_PER_SECOND - boot_seconds
        self._counted = deque([(self._started_at, self._count())])

    def problem(self) -> str:
        """Return why requests should go elsewhere; empty if the instance is ready."""
        if self._is_draining():
            return "the process is stopping and accepts no new connections"
        if not self.cache.is_ready():
            return "several reads in a row failed; see the log"
        return ""

    def beat(self) -> None:
        """
        Let the numbers of the last minutes be those of the last minutes.

        Call it in the thread that answers requests, every `BEAT_SECONDS` or more often.
        """
        counted, now = self._counted, self._timer()
        if now - counted[-1][0] >= _STEP_SECONDS:
            counted.append((now, self._count()))
            while counted[1][0] <= now - RECENT_SECONDS:
                counted.popleft()

    def _count(self) -> Recent:
        """Return what was counted since the start."""
        found = Recent(Counter(), Counter())
        for (_, status), number in self.requests.requests().items():
            found.requests[status] += number
        if self.commands is not None:
            self.commands.flush()
            for (_, result), number in self.commands.commands().items():
                found.commands[result] += number
        return found

    def snapshot(self, *, volumes: bool = True) -> Snapshot:
        """
        Read everything once; call it in the thread that answers requests.

        Args:
            volumes: List the volumes, which takes some microseconds for each.
        """
        store = self.cache.store
        syncs = store.stats.syncs
        recent = self._count().since(self._counted[0][1])  # Flushes the commands.
        return Snapshot(
            now=self._clock() / NS_PER_SECOND,
            started=self._started,
            uptime=self._timer() - self._started_at,
            boot_seconds=self._boot_seconds,
            problem=self.problem(),
            settings=self.settings,
            usage=store.usage(volumes=volumes),
            counts=store.stats,
            recovery=store.recovery,
            requests=self.requests,
            commands=self.commands,
            recent=recent,
            # Copied: the thread that syncs counts here while the snapshot is shown.
            sync_durations=Histogram(list(syncs.counts), syncs.total_ns),
            hot=self.cache.hot_state(),
            connections=self.count_connections and self.count_connections(),
            process=process_stats(),
        )


def process_stats(directory: Path = _PROCESS) -> ProcessStats:
    """
    Ask the system for the figures of this process.

    A process without a free descriptor cannot read `directory`, and needs to be watched
    most: its peak memory and its limit of descriptors are returned instead.
    """
    max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        resident = (directory / "statm").read_bytes().split()[1]
        rss_bytes = int(resident) * _PAGE_BYTES
        # One descriptor is open to list the others. There may be thousands of connections:
        # `iterdir` would take 15 us for each.
        open_fds = len(os.listdir(directory / "fd")) - 1  # noqa: PTH208
    except OSError:
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        open_fds = max_fds
    return ProcessStats(
        pid=os.getpid(),
        rss_bytes=rss_bytes,
        cpu_seconds=time.process_time(),
        open_fds=open_fds,
        max_fds=max_fds,
        threads=threading.active_count(),
    )
