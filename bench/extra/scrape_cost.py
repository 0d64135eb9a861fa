"""
CPU of the thread that answers requests, for one scrape, by the number of volumes.

A store with this number of volumes, all written, is opened in this process, and the
application is called as bjoern calls it. All requests wait while an answer is made.

    .venv/bin/python -m bench.extra.scrape_cost [--rounds 50]
"""

from __future__ import annotations

import gc
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.extra.script import make_parser, measuring
from bench.report import table
from support.stores import UnsyncedFileSystem
from volcache.cache import Cache
from volcache.http.admin import Admin
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.store import Store

if TYPE_CHECKING:
    from pathlib import Path

VOLUMES: Final = (10, 100, 1000, 8000)
VOLUME_SIZE: Final = 16 * 1024
VALUE: Final = bytes(1000)
# What a busy instance has answered; each has a histogram.
ANSWERS: Final = (
    ("GET", "200 OK", "DISK"),
    ("GET", "304 Not Modified", "DISK"),
    ("GET", "404 Not Found", "MISS"),
    ("HEAD", "200 OK", "DISK"),
    ("PUT", "200 OK", ""),
    ("DELETE", "200 OK", ""),
    ("OPTIONS", "200 OK", ""),
)


class Scrape(NamedTuple):
    """One kind of request."""

    path: str
    accept: str = ""
    coding: str = ""
    has_series: bool = False  # of each volume

    @property
    def name(self) -> str:
        """As the table shows it."""
        notes = [
            *(["OpenMetrics"] if self.accept else []),
            *([self.coding] if self.coding else []),
            *(["metrics_volumes"] if self.has_series else []),
        ]
        return ", ".join([f"`{self.path}`", *notes])


OPEN_METRICS: Final = "application/openmetrics-text;version=1.0.0"
SCRAPES: Final = (
    Scrape("/-/metrics"),
    Scrape("/-/metrics", OPEN_METRICS, "gzip"),
    Scrape("/-/metrics", OPEN_METRICS, "gzip", has_series=True),
    Scrape("/-/stats?volumes=0"),
    Scrape("/-/stats?volumes=0", "", "gzip"),
    Scrape("/-/stats"),
    Scrape("/-/stats", "", "gzip"),
)


def fill(folder: Path, volumes: int) -> Store:
    """Return a store in which every volume was written."""
    store = Store.open(
        str(folder),
        volume_size=VOLUME_SIZE,
        volume_num=volumes,
        sync_mode="none",
        eviction="frequency",
        fs=UnsyncedFileSystem(),
    )
    number = 0
    while store.stats.rotations < volumes + 2:
        store.put(b"%d" % number, VALUE)
        number += 1
    return store


def ask(admin: Admin, scrape: Scrape) -> int:
    """Return the bytes of the body of an answer."""
    path, _, query = scrape.path.partition("?")
    environ: Any = {
        "REQUEST_METHOD": "GET",
        "QUERY_STRING": query,
        "HTTP_HOST": "127.0.0.1:1234",
        "HTTP_ACCEPT": scrape.accept,
        "HTTP_ACCEPT_ENCODING": scrape.coding,
        "REMOTE_ADDR": "127.0.0.1",
    }
    return sum(map(len, admin.respond("GET", path, environ)[2]))


def make_admin(store: Store, *, has_series: bool) -> Admin:
    """Return the paths of an instance that has answered requests."""
    requests = RequestStats()
    for answer in ANSWERS:
        for ns in (50_000, 200_000, 3_000_000):
            requests.answers[answer].observe(0, ns)
    status = Monitor(
        Cache(store),
        requests,
        settings={"mount_point": "data", "sync_mode": "none"},
        boot_seconds=1.0,
    )
    return Admin(Cache(store), status=status, metrics_volumes=has_series)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="for each (50)")
    options = parser.parse_args()
    found: dict[Scrape, list[str]] = {scrape: [] for scrape in SCRAPES}
    with measuring(options.directory) as (_, work):
        for volumes in VOLUMES:
            store = fill(work / str(volumes), volumes)
            # As an instance does after its start.
            gc.collect()
            gc.freeze()
            admins = [make_admin(store, has_series=one) for one in (False, True)]
            for scrape in SCRAPES:
                took, size = [], 0
                for _ in range(max(5, options.rounds)):
                    began = time.thread_time()
                    size = ask(admins[scrape.has_series], scrape)
                    took.append((time.thread_time() - began) * 1000)
                text = f"{median(took):.2f} ({min(took):.2f}-{max(took):.2f})"
                found[scrape].append(f"{text}, {size / 1000:.0f} kB")
            gc.unfreeze()
            store.close()
    print()
    print(
        table(
            ["ms of CPU: median (all)", *(f"{n:,} volumes" for n in VOLUMES)],
            [[scrape.name, *found[scrape]] for scrape in SCRAPES],
        )
    )


if __name__ == "__main__":
    main()
