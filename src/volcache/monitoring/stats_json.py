"""A snapshot as the JSON of `/-/stats`: times in seconds, sizes in bytes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from volcache import __version__
from volcache.store.index_format import encode_key

if TYPE_CHECKING:
    from volcache.cache import HotState
    from volcache.histogram import Histogram
    from volcache.monitoring.requests import RequestStats
    from volcache.monitoring.snapshot import Snapshot
    from volcache.store.stats import StoreStats, StoreUsage, VolumeUsage

_NS_PER_SECOND: Final = 1_000_000_000
_HOTTEST_MAX: Final = 10
_STORE_COUNTERS: Final = (
    *("rotations", "evicted_records", "evicted_bytes", "damaged_records"),
    *("read_errors", "write_errors", "sync_errors", "index_errors"),
)
_HOT_COUNTERS: Final = (
    *("gets", "hits", "stale", "promotions", "refused", "invalidations"),
    *("flushes", "states"),
)


def encode_stats(snapshot: Snapshot) -> bytes:
    """Return a snapshot as one JSON object, in ASCII."""
    requests = snapshot.requests
    shown = {
        "version": __version__,
        "now": snapshot.now,
        "started": snapshot.started,
        "uptime_seconds": snapshot.uptime,
        "boot_seconds": snapshot.boot_seconds,
        "ready": not snapshot.problem,
        "store": _store(snapshot),
        "requests": _requests(requests, snapshot.counts),
        "latency": {
            name: _durations(histogram)
            for name, histogram in (
                snapshot.request_durations | snapshot.durations
            ).items()
        },
        "hot": None if snapshot.hot is None else _hot(snapshot.hot),
        "hottest": [
            {"key": encode_key(key), "reads": reads}
            for key, reads in requests.hottest(_HOTTEST_MAX)
        ],
        "process": snapshot.process._asdict(),
    }
    return json.dumps(shown).encode()


def _store(snapshot: Snapshot) -> dict[str, Any]:
    usage, counts = snapshot.usage, snapshot.counts
    return {
        "mount_point": snapshot.mount_point,
        "sync_mode": snapshot.sync_mode,
        **_sizes(usage),
        **{name: getattr(counts, name) for name in _STORE_COUNTERS},
        "recovery": asdict(snapshot.recovery),
        "volumes": [_volume(volume) for volume in usage.volumes],
    }


def _sizes(usage: StoreUsage) -> dict[str, Any]:
    return {
        "volume_size": usage.volume_size,
        "volume_num": usage.volume_num,
        "keys": usage.keys,
        "live_bytes": usage.live,
        "dead_bytes": usage.dead,
        "free_bytes": usage.free,
        "head": {
            "id": usage.active_id,
            "generation": usage.active_generation,
            "write_position": usage.active_end,
        },
    }


def _volume(volume: VolumeUsage) -> dict[str, Any]:
    return {
        "id": volume.id,
        "generation": volume.generation,
        "state": volume.state,
        "size": volume.size,
        "used_bytes": volume.used,
        "live_records": volume.live_records,
        "live_bytes": volume.live,
        "dead_bytes": volume.dead,
        "began": volume.started_ms / 1000 if volume.started_ms else None,
    }


def _requests(requests: RequestStats, counts: StoreStats) -> dict[str, Any]:
    by = requests.requests()
    return {
        "total": sum(by.values()),
        "by": [
            {"method": method, "status": status, "count": count}
            for (method, status), count in sorted(by.items())
        ],
        "bytes_in": requests.bytes_in,
        "bytes_out": requests.bytes_out,
        "hits": requests.hits(),
        "missed": requests.misses,
        "misses": counts.misses(),
    }


def _durations(histogram: Histogram) -> dict[str, Any]:
    return {
        "counts": histogram.counts,
        "sum_seconds": histogram.total_ns / _NS_PER_SECOND,
    }


def _hot(hot: HotState) -> dict[str, Any]:
    return {
        "servers": [
            {"address": address, "up": is_up} for address, is_up in hot.up.items()
        ],
        "promoted_keys": hot.promoted,
        **{name: getattr(hot.stats, name) for name in _HOT_COUNTERS},
        "failures": dict(hot.stats.failures),
    }
