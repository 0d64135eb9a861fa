"""
Every metric of an instance: its name, what it means, and its values in a snapshot.

Names, base units and help texts follow the conventions of Prometheus.

One metric, whatever it is of: its name, what it means, and its values.

Prometheus' own library is known to `prometheus.py` alone, which writes families as it
wants them. A counter gets `_total` behind its name there.
"""

from __future__ import annotations

import resource
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from volcache.cache import HotState
    from volcache.histogram import Histogram
    from volcache.monitoring.requests import RequestStats
    from volcache.monitoring.snapshot import Snapshot
    from volcache.store.stats import StoreStats, VolumeUsage

# Shown as 0 before the first of a kind: a rate needs a beginning.
_FAILURES: Final = ("closed", "journal", "other", "protocol", "refused", "timeout")


def families(snapshot: Snapshot) -> Iterator[Family]:
    """Yield all metrics; those of the hot tier only if there is one."""
    yield from _instance(snapshot)
    yield from _requests(snapshot.requests)
    yield Family(
        "histogram",
        "volcache_request_duration_seconds",
        "Time the application took for a request, without the network.",
        ("method",),
        {(verb,): found for verb, found in snapshot.request_durations.items()},
    )
    yield from _disk(snapshot.counts, snapshot.durations)
    yield from _sizes(snapshot)
    yield from _volumes(snapshot.usage.volumes)
    if snapshot.hot is not None:
        yield from _hot(snapshot.hot, snapshot.durations["memcached"])
    yield from _process(snapshot)


def _instance(snapshot: Snapshot) -> Iterator[Family]:
    yield gauges(
        "volcache_build_info", "1, with the version.", "version", {__version__: 1}
    )
    yield gauge(
        "volcache_ready",
        "Whether requests should be sent here, as /-/ready says: 1 or 0.",
        not snapshot.problem,
    )
    yield gauge(
        "volcache_boot_seconds",
        "How long the store took to open.",
        snapshot.boot_seconds,
    )
    yield gauges(
        "volcache_boot_findings",
        "What the start found in index files and volumes, in numbers.",
        "kind",
        asdict(snapshot.recovery),
    )


def _requests(requests: RequestStats) -> Iterator[Family]:
    yield Family(
        "counter",
        "volcache_requests",
        "Requests answered.",
        ("method", "status"),
        {
            (method, str(status)): count
            for (method, status), count in sorted(requests.requests().items())
        },
    )
    yield counters(
        "volcache_hits",
        "GETs and HEADs that found a file: DISK on the disk, MEMC in memcached.",
        "source",
        requests.hits(),
    )
    yield counter("volcache_misses", "GETs and HEADs that found none.", requests.misses)
    yield counter(
        "volcache_received_bytes", "Of files that were stored.", requests.bytes_in
    )
    yield counter(
        "volcache_sent_bytes",
        "Of files, or parts of them, that were given back.",
        requests.bytes_out,
    )


def _disk(counts: StoreStats, durations: Mapping[str, Histogram]) -> Iterator[Family]:
    yield counters(
        "volcache_store_misses",
        "Reads of the store that found nothing, by why.",
        "reason",
        counts.misses(),
    )
    for name, text in (
        ("disk_read", "Time to read a record."),
        ("disk_write", "Time to write a record."),
        ("rotation", "Time to begin a new volume."),
        ("sync", "Time to sync what was written."),
    ):
        yield histogram(f"volcache_{name}_duration_seconds", text, durations[name])
    yield counter(
        "volcache_rotations", "Times a new volume was begun.", counts.rotations
    )
    yield counter(
        "volcache_evicted_records",
        "Files lost because their volume was the oldest.",
        counts.evicted_records,
    )
    yield counter(
        "volcache_evicted_bytes", "Bytes of their records.", counts.evicted_bytes
    )
    yield counter(
        "volcache_damaged_records",
        "Records that did not check out when they were read.",
        counts.damaged_records,
    )
    yield counters(
        "volcache_disk_errors",
        "Times the disk refused.",
        "operation",
        {
            "read": counts.read_errors,
            "write": counts.write_errors,
            "sync": counts.sync_errors,
            "index": counts.index_errors,
        },
    )


def _sizes(snapshot: Snapshot) -> Iterator[Family]:
    usage = snapshot.usage
    for name, text, value in (
        ("keys", "Files that can be read, expired ones included.", usage.keys),
        ("live_bytes", "Bytes of records that can be read.", usage.live),
        ("dead_bytes", "Bytes written that are of no use any more.", usage.dead),
        ("free_bytes", "Bytes not written yet.", usage.free),
        (
            "capacity_bytes",
            "What the settings allow: volume_num * volume_size.",
            usage.volume_num * usage.volume_size,
        ),
        ("head_volume", "Id of the volume that is being written.", usage.active_id),
        ("head_generation", "Turn of the cycle.", usage.active_generation),
        (
            "head_write_position_bytes",
            "Where in the volume the next record goes.",
            usage.active_end,
        ),
    ):
        yield gauge(f"volcache_{name}", text, value)


def _volumes(volumes: Iterable[VolumeUsage]) -> Iterator[Family]:
    by_id = {str(volume.id): volume for volume in volumes}
    started = {i: v.started_ms / 1000 for i, v in by_id.items() if v.started_ms}
    columns: tuple[tuple[str, str, Mapping[str, float]], ...] = (
        ("size_bytes", "Length of a volume.", {i: v.size for i, v in by_id.items()}),
        (
            "live_bytes",
            "Bytes of its records that can be read.",
            {i: v.live for i, v in by_id.items()},
        ),
        (
            "dead_bytes",
            "Bytes written in it that are of no use any more.",
            {i: v.dead for i, v in by_id.items()},
        ),
        (
            "live_records",
            "Its records that can be read.",
            {i: v.live_records for i, v in by_id.items()},
        ),
        (
            "generation",
            "Turn of the cycle in which it was begun.",
            {i: v.generation for i, v in by_id.items()},
        ),
        ("began_timestamp_seconds", "When it was begun, if that is known.", started),
    )
    for name, text, values in columns:
        yield gauges(f"volcache_volume_{name}", text, "volume", values)


def _hot(hot: HotState, calls: Histogram) -> Iterator[Family]:
    stats = hot.stats
    yield gauges(
        "volcache_hot_server_up",
        "Whether a memcached is asked at present: 1 or 0.",
        "server",
        hot.up,
    )
    yield gauge(
        "volcache_hot_promoted_keys", "Files asked for there first.", hot.promoted
    )
    for name, text, value in (
        ("gets", "Copies asked for.", stats.gets),
        ("hits", "Copies found, stale ones included.", stats.hits),
        ("stale", "Copies found that do not count any more.", stats.stale),
        ("promotions", "Files copied there.", stats.promotions),
        ("refused", "Copies it would not take.", stats.refused),
        (
            "invalidations",
            "Files with a copy that were put or deleted.",
            stats.invalidations,
        ),
        ("flushes", "Times all copies were given up.", stats.flushes),
        ("state_changes", "Times a server went up or down.", stats.states),
    ):
        yield counter(f"volcache_hot_{name}", text, value)
    yield counters(
        "volcache_hot_failures",
        "Calls that failed, by kind.",
        "kind",
        dict.fromkeys(_FAILURES, 0) | stats.failures,
    )
    yield histogram(
        "volcache_hot_call_duration_seconds",
        "Time of a call, failed ones included.",
        calls,
    )


def _process(snapshot: Snapshot) -> Iterator[Family]:
    """Yield what every Prometheus client calls by these names."""
    process = snapshot.process
    yield gauge(
        "process_start_time_seconds",
        "When the process began, since the epoch.",
        snapshot.started,
    )
    yield counter(
        "process_cpu_seconds", "CPU time, of user and system.", process.cpu_seconds
    )
    yield gauge("process_resident_memory_bytes", "Memory it has.", process.rss_bytes)
    yield gauge("process_open_fds", "Descriptors it has open.", process.open_fds)
    yield gauge(
        "process_max_fds",
        "Descriptors it may have.",
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    yield gauge("process_threads", "Its threads of Python.", process.threads)


class Family(NamedTuple):
    """A metric, with a value for each combination of its labels' values."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float | Histogram]


def gauge(name: str, text: str, value: float) -> Family:
    """Make a gauge without labels."""
    return Family("gauge", name, text, (), {(): value})


def counter(name: str, text: str, value: float) -> Family:
    """Make a counter without labels."""
    return Family("counter", name, text, (), {(): value})


def histogram(name: str, text: str, value: Histogram) -> Family:
    """Make a histogram without labels."""
    return Family("histogram", name, text, (), {(): value})


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Family:
    """Make a gauge with one label."""
    return Family("gauge", name, text, (label,), {(k,): v for k, v in values.items()})


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Family:
    """Make a counter with one label."""
    return Family("counter", name, text, (label,), {(k,): v for k, v in values.items()})
