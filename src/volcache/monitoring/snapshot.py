"""
What there is to know of a running instance, gathered in one place when somebody asks.

Nothing is computed or kept for it while requests are answered: a snapshot reads the plain
integers that the store, the hot tier and the web layer count anyway, and asks the system
for the rest. It is made in the thread that answers requests, so nothing needs a lock.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.cache import FileCache, HotState
    from volcache.monitoring.requests import RequestStats
    from volcache.store.stats import RecoveryStats, StoreStats, StoreUsage

_NS_PER_SECOND: Final = 1_000_000_000
_PAGE_BYTES: Final = resource.getpagesize()
_PROCESS: Final = Path("/proc/self")


class Readiness:
    """Whether requests should be sent here, and if not, why; cheap, and without a lock."""

    def __init__(
        self,
        is_disk_good: Callable[[], bool],
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask these two each time; neither may raise."""
        self._is_disk_good = is_disk_good
        self._is_draining = is_draining

    def problem(self) -> str:
        """Return why requests should go elsewhere, in words; empty: they may come."""
        if self._is_draining():
            return "the process was told to end, and takes no more connections"
        if not self._is_disk_good():
            return "several reads in a row failed; the log has the cause"
        return ""


class ProcessFigures(NamedTuple):
    """What the system says of the process."""

    pid: int
    rss_bytes: int
    cpu_seconds: float
    open_fds: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    An instance at one moment; counters are those since its start.

    `counts` and `requests` are the ones still being counted in: to be read at once.
    """

    now: float  # seconds since the epoch, as `started`
    started: float
    uptime: float
    boot_seconds: float
    problem: str  # why it is not ready; empty: it is
    mount_point: str
    sync_mode: str
    usage: StoreUsage
    counts: StoreStats
    recovery: RecoveryStats
    requests: RequestStats
    request_durations: dict[str, Histogram]  # by verb
    durations: dict[str, Histogram]  # of what the instance waits for, by its name
    hot: HotState | None
    process: ProcessFigures


class Status:
    """Makes snapshots of one instance."""

    def __init__(  # noqa: PLR0913 - Plain facts, by keyword.
        self,
        cache: FileCache,
        requests: RequestStats,
        *,
        mount_point: str,
        sync_mode: str,
        boot_seconds: float,
        is_draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Watch an instance from now on.

        Args:
            cache: What it serves.
            requests: What its web layer counts.
            mount_point: As in the settings.
            sync_mode: Likewise.
            boot_seconds: How long it took to open the store, just before this.
            is_draining: Whether it was told to end.
            clock: Nanoseconds since the epoch.
        """
        self.readiness = Readiness(cache.store.is_ready, is_draining)
        self.cache = cache
        self.requests = requests
        self._mount_point = mount_point
        self._sync_mode = sync_mode
        self._boot_seconds = boot_seconds
        self._clock = clock
        self._began = time.monotonic() - boot_seconds
        self._started = clock() / _NS_PER_SECOND - boot_seconds

    def snapshot(self) -> Snapshot:
        """Look at everything once; for the thread that answers requests."""
        store = self.cache.store
        counts = store.stats
        hot = self.cache.hot_state()
        return Snapshot(
            now=self._clock() / _NS_PER_SECOND,
            started=self._started,
            uptime=time.monotonic() - self._began,
            boot_seconds=self._boot_seconds,
            problem=self.readiness.problem(),
            mount_point=self._mount_point,
            sync_mode=self._sync_mode,
            usage=store.usage(),
            counts=counts,
            recovery=store.recovery,
            requests=self.requests,
            request_durations=self.requests.latencies(),
            durations={
                "disk_read": counts.reads,
                "disk_write": counts.writes,
                "rotation": counts.rotating,
                # Another thread counts here: what is shown must not change meanwhile.
                "sync": Histogram(list(counts.syncs.counts), counts.syncs.total_ns),
                "memcached": Histogram() if hot is None else hot.stats.calls,
            },
            hot=hot,
            process=process_figures(),
        )


def process_figures(folder: Path = _PROCESS) -> ProcessFigures:
    """
    Ask the system for the figures of this process.

    A process that has run out of descriptors cannot read `folder`, and is one to be
    looked at: memory is then the most it has had, descriptors are as many as it may have.
    """
    try:
        resident = (folder / "statm").read_bytes().split()[1]
        rss_bytes = int(resident) * _PAGE_BYTES
        # One of them is open to list the others.
        open_fds = sum(1 for _ in (folder / "fd").iterdir()) - 1
    except OSError:
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        open_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessFigures(
        pid=os.getpid(),
        rss_bytes=rss_bytes,
        cpu_seconds=time.process_time(),
        open_fds=open_fds,
        threads=threading.active_count(),
    )
