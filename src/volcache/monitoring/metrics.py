"""
The table of metrics: each number that an instance shows is declared here, once.

A row has the name, type and labels for Prometheus, the path in the JSON of `/-/stats`,
the place in the output of `volcache stats`, the help text, and how the value is read from
a snapshot. `prometheus.py`, `stats_json.py`, `terminal.py` and docs/REFERENCE.md are
generated from the table. A new number needs the place where it is counted, a row here and
a test.

Names, base units and help texts follow the conventions of Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from volcache import __version__
from volcache.histogram import Histogram
from volcache.monitoring.commands import KINDS
from volcache.monitoring.requests import REFUSED_KINDS, VERBS
from volcache.store.index_format import encode_key
from volcache.store.stats import STATES, ErrorKind

if TYPE_CHECKING:
    from volcache.cache import HotState
    from volcache.monitoring.commands import CommandStats
    from volcache.monitoring.snapshot import Snapshot
    from volcache.store.stats import (
        EvictionUsage,
        LastError,
        RingUsage,
        ScrubStats,
        VolumeUsage,
    )

Kind = Literal["counter", "gauge", "histogram", "info"]
Unit = Literal["", "bytes", "seconds"]
Value = int | float | str | Histogram | None
# The values of a metric by the values of its labels; one row with () without labels.
Series = Mapping[tuple[str | int, ...], Value]
Read = Callable[["Snapshot"], Series]

HOTTEST_MAX: Final = 10


class Label(NamedTuple):
    """A label; the names of its values if they are known, empty if they are open."""

    name: str
    values: tuple[str, ...] = ()


class Cell(NamedTuple):
    """
    The place of a metric in the terminal.

    `line` may hold a label in braces, for one line per label value; `text` is what is
    shown, with the value in place of `{}`. The styles are those of `terminal.py`. Of the
    styles value, factor and percent, None is not shown.
    """

    line: str
    text: str = "{}"
    style: Literal[
        "value", "factor", "percent", "rate", "share", "nonzero", "quantiles", "state"
    ] = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """
    One row of the table.

    A row of kind `info`, or without a name, is not shown to Prometheus. A path is made of
    keys joined by dots. A key may hold a label in braces: `hits.{source}`. A key with
    names in brackets, `volumes[id].size`, is a list of objects, one per series, which
    have the values of the labels under these names. A value of None is null in JSON and
    absent for Prometheus.
    """

    kind: Kind
    text: str
    read: Read
    name: str = ""
    unit: Unit = ""
    labels: tuple[Label, ...] = ()
    path: str = ""
    cells: tuple[Cell, ...] = ()


class Section(NamedTuple):
    """Rows about one part of an instance."""

    title: str
    metrics: tuple[Metric, ...]
    note: str = ""  # for the reference page: how the numbers relate
    # Whether an instance has this part; if not, Prometheus' output leaves it out.
    is_part: Callable[[Snapshot], bool] = lambda _: True


def _row(
    kind: Kind,
    name: str,
    path: str,
    text: str,
    read: Callable[[Snapshot], Value],
    *cells: Cell,
    unit: Unit = "",
) -> Metric:
    """Declare a metric without labels."""
    return Metric(
        kind=kind,
        name=name,
        path=path,
        text=text,
        read=lambda snapshot: {(): read(snapshot)},
        cells=cells,
        unit=unit or _unit_of(name or path),
    )


def _labelled(
    kind: Kind,
    labels: tuple[Label, ...],
    name: str,
    path: str,
    text: str,
    read: Read,
    *cells: Cell,
) -> Metric:
    """Declare a metric with labels."""
    return Metric(
        kind=kind,
        name=name,
        path=path,
        text=text,
        read=read,
        cells=cells,
        labels=labels,
        unit=_unit_of(name or path),
    )


def _unit_of(name: str) -> Unit:
    """Return the unit that ends a name, as Prometheus' conventions demand."""
    base = name.removesuffix("_total")
    if base.endswith("_bytes"):
        return "bytes"
    return "seconds" if base.endswith("_seconds") else ""


_gauge = partial(_row, "gauge")
_counter = partial(_row, "counter")
_histogram = partial(_row, "histogram")
_info = partial(_row, "info")


def _label(name: str, *values: str) -> tuple[Label, ...]:
    return (Label(name, values),)


def _id(volume: int) -> int | None:
    """Return a volume id; None for -1."""
    return None if volume < 0 else volume


def _seconds(started_ms: int) -> float | None:
    """Return a time in seconds; None if it is not known."""
    return started_ms / 1000 if started_ms else None


def _by_one(values: Mapping[str, Value]) -> Series:
    """Return a series by its only label."""
    return {(name,): value for name, value in values.items()}


def _volumes(
    kind: Kind,
    name: str,
    key: str,
    text: str,
    read: Callable[[VolumeUsage], Value],
) -> Metric:
    """Declare a metric of each volume."""
    return _labelled(
        kind,
        _label("volume"),
        name,
        f"store.volumes[id].{key}",
        text,
        lambda s: {(volume.id,): read(volume) for volume in s.usage.volumes},
    )


def _hot(
    kind: Kind,
    name: str,
    path: str,
    text: str,
    read: Callable[[HotState], Value],
    *cells: Cell,
) -> Metric:
    """Declare a metric of the hot tier; without one it has no value."""
    return _labelled(
        kind,
        (),
        name,
        path,
        text,
        lambda s: {} if s.hot is None else {(): read(s.hot)},
        *cells,
    )


_hot_counter = partial(_hot, "counter")


def _memcache(
    kind: Kind,
    name: str,
    key: str,
    text: str,
    read: Callable[[CommandStats], Value],
    *cells: Cell,
) -> Metric:
    """Declare a figure of the memcached protocol; without it, it has no value."""
    return _labelled(
        kind,
        (),
        name,
        f"memcache.{key}",
        text,
        lambda s: {} if s.commands is None else {(): read(s.commands)},
        *cells,
    )


def _has_rings(snapshot: Snapshot) -> bool:
    return snapshot.usage.eviction.has_rings


def _gained_ratio(snapshot: Snapshot) -> float | None:
    """Return the estimated gain as a share of all GETs; None if it is not known."""
    gained, gets = snapshot.usage.eviction.gained_hits, snapshot.requests.gets
    if snapshot.commands is not None:
        gets += snapshot.commands.hits + snapshot.commands.misses
    return None if gained is None or not gets else gained / gets


def _rings(
    kind: Kind,
    name: str,
    key: str,
    text: str,
    read: Callable[[RingUsage], Value],
    *cells: Cell,
) -> Metric:
    """Declare a metric of each ring; without two of them it has no value."""
    return _labelled(
        kind,
        _label("ring"),
        name,
        f"rings.by[ring].{key}",
        text,
        lambda s: (
            {
                ("main",): read(s.usage.eviction.main),
                ("probation",): read(s.usage.eviction.probation),
            }
            if _has_rings(s)
            else {}
        ),
        *cells,
    )


def _scrub(
    kind: Kind,
    name: str,
    key: str,
    text: str,
    read: Callable[[ScrubStats], Value],
    *cells: Cell,
    unit: Unit = "",
) -> Metric:
    """Declare a figure of the scrub; without one it has no value."""
    return Metric(
        kind=kind,
        name=name,
        path=f"scrub.{key}",
        text=text,
        read=lambda s: {(): read(s.counts.scrub)} if s.counts.scrub.rate else {},
        cells=cells,
        unit=unit or _unit_of(name or key),
    )


def _evicting(
    kind: Kind,
    name: str,
    key: str,
    text: str,
    read: Callable[[EvictionUsage], Value],
    *cells: Cell,
    unit: Unit = "",
) -> Metric:
    """Declare a figure of the eviction policy; without two rings it has no value."""
    return Metric(
        kind=kind,
        name=name,
        path=f"rings.{key}",
        text=text,
        read=lambda s: {(): read(s.usage.eviction)} if _has_rings(s) else {},
        cells=cells,
        unit=unit or _unit_of(name or key),
    )


def _connections(
    kind: Kind, name: str, key: str, text: str, *cells: Cell, path: str = ""
) -> Metric:
    """Declare a figure of the gate; without one it has no value."""
    return _row(
        kind,
        name,
        f"server.{path or key}",
        text,
        lambda s: None if s.connections is None else s.connections[key],
        *cells,
    )


def _last_errors(snapshot: Snapshot) -> list[tuple[str, LastError | None]]:
    """Return the last error of each kind since the start; None if there was none."""
    return [(kind, snapshot.counts.last_errors.get(kind)) for kind in _ERRORS]


_METHOD: Final = Label("method", VERBS)
_ERRORS: Final = get_args(ErrorKind)
_FINDINGS: Final = (
    *("entries", "scanned", "torn", "damaged", "rebuilt", "dropped", "stale"),
    *("rejected", "unknown", "meta_lost"),
)
# Why a record of a volume that was reclaimed was not reinserted, and the field of `Fate`.
_DROPPED: Final = {
    "unread": "unused",
    "limited": "unpaid",
    "expired": "expired",
    "purged": "purged",
    "damaged": "damaged",
    "unreadable": "unreadable",
    "skipped": "left",
}
_CLOSED: Final = ("head", "idle", "room", "transfer")
_FAILURES: Final = ("closed", "other", "protocol", "refused", "timeout")

_INSTANCE: Final = (
    _info(
        "",
        "version",
        "Version of volcache.",
        lambda _: __version__,
        Cell("instance", "volcache {}"),
    ),
    _labelled(
        "gauge",
        _label("version"),
        "volcache_build_info",
        "",
        "Always 1; the label is the version of volcache.",
        lambda _: {(__version__,): 1},
    ),
    _info(
        "",
        "store.mount_point",
        "Directory of the store, as in the settings.",
        lambda s: s.mount_point,
        Cell("instance", "mount point {}"),
    ),
    _info("", "now", "Time of this snapshot, in seconds since 1970.", lambda s: s.now),
    _gauge(
        "process_start_time_seconds",
        "started",
        "Start time of the process, in seconds since 1970.",
        lambda s: s.started,
    ),
    _info(
        "",
        "uptime_seconds",
        "Seconds since the process started.",
        lambda s: s.uptime,
        Cell("instance", "up {}"),
    ),
    _gauge(
        "volcache_ready",
        "ready",
        "Whether the instance is ready for requests, as /-/ready answers.",
        lambda s: not s.problem,
        Cell("instance", "ready|NOT READY", "state"),
    ),
    _gauge(
        "volcache_boot_seconds",
        "boot_seconds",
        "Time it took to open the store at startup.",
        lambda s: s.boot_seconds,
    ),
    _labelled(
        "gauge",
        _label("kind", *_FINDINGS),
        "volcache_boot_findings",
        "store.recovery.{kind}",
        "Findings of the last startup in index files and volumes, by kind.",
        lambda s: {(kind,): getattr(s.recovery, kind) for kind in _FINDINGS},
    ),
)

_REQUESTS: Final = (
    _info(
        "",
        "requests.total",
        "Requests answered.",
        lambda s: sum(s.requests.requests().values()),
        Cell("requests", "{}", "rate"),
        Cell("requests", "{} since start"),
    ),
    _labelled(
        "counter",
        (_METHOD, Label("status")),
        "volcache_requests_total",
        "requests.by[method,status].count",
        "Requests answered, by method and status.",
        lambda s: dict(sorted(s.requests.requests().items())),
    ),
    _labelled(
        "counter",
        _label("source", "MEMC", "DISK"),
        "volcache_hits_total",
        "requests.hits.{source}",
        "GET and HEAD requests that found a value, by source: disk or memcached.",
        lambda s: _by_one(s.requests.hits()),
        Cell("reads", "{} hits", "share"),
    ),
    _counter(
        "volcache_misses_total",
        "requests.missed",
        "GET and HEAD requests that found no value.",
        lambda s: s.requests.misses,
        Cell("reads", "{} misses", "share"),
    ),
    _counter(
        "volcache_sent_bytes_total",
        "requests.bytes_out",
        "Bytes of values sent.",
        lambda s: s.requests.bytes_out,
        Cell("requests", "sent {}", "rate"),
    ),
    _counter(
        "volcache_received_bytes_total",
        "requests.bytes_in",
        "Bytes of values stored.",
        lambda s: s.requests.bytes_in,
        Cell("requests", "received {}", "rate"),
    ),
    _labelled(
        "counter",
        _label("kind", *REFUSED_KINDS),
        "volcache_unauthorized_total",
        "requests.unauthorized.{kind}",
        "Requests refused for a missing or wrong token, by kind.",
        lambda s: _by_one(s.requests.refused),
        Cell("errors", "unauthorized {}", "nonzero"),
    ),
    _labelled(
        "histogram",
        (_METHOD,),
        "volcache_request_duration_seconds",
        "latency.{method}",
        "Time to process a request, without network time.",
        lambda s: _by_one(s.request_durations),
        Cell("{method}", "{}", "quantiles"),
    ),
    _labelled(
        "info",
        _label("key"),
        "",
        "hottest[key].reads",
        f"The {HOTTEST_MAX} keys read most in recent time, with their estimated reads.",
        lambda s: {
            (encode_key(key),): reads for key, reads in s.requests.hottest(HOTTEST_MAX)
        },
        Cell("hot keys", "(about {})"),
    ),
)

_MEMCACHE: Final = (
    _memcache(
        "info",
        "",
        "total",
        "Commands executed.",
        lambda commands: commands.total,
        Cell("memcache", "{}", "rate"),
        Cell("memcache", "{} since start"),
    ),
    _labelled(
        "counter",
        (Label("command"), Label("result")),
        "volcache_memcache_commands_total",
        "memcache.by[command,result].count",
        "Commands of the memcached protocol, by name and result; each key counts.",
        lambda s: (
            {} if s.commands is None else dict(sorted(s.commands.commands().items()))
        ),
    ),
    _memcache(
        "info",
        "",
        "hits",
        "Keys read that had a value.",
        lambda commands: commands.hits,
        Cell("memcache", "{} hits", "share"),
    ),
    _memcache(
        "info",
        "",
        "misses",
        "Keys read that had no value.",
        lambda commands: commands.misses,
        Cell("memcache", "{} misses", "share"),
    ),
    _memcache(
        "info",
        "",
        "stored",
        "Commands that stored a value.",
        lambda commands: commands.stored,
    ),
    _memcache(
        "counter",
        "volcache_memcache_sent_bytes_total",
        "bytes_out",
        "Bytes sent to memcached clients.",
        lambda commands: commands.bytes_out,
        Cell("memcache", "sent {}", "rate"),
    ),
    _memcache(
        "counter",
        "volcache_memcache_received_bytes_total",
        "bytes_in",
        "Bytes received from memcached clients.",
        lambda commands: commands.bytes_in,
        Cell("memcache", "received {}", "rate"),
    ),
    _memcache(
        "gauge",
        "volcache_memcache_connections",
        "connections.open",
        "Open connections of memcached clients.",
        lambda commands: commands.connections,
        Cell("memcache", "connections {}"),
    ),
    _memcache(
        "counter",
        "volcache_memcache_accepted_total",
        "connections.accepted",
        "Connections of memcached clients accepted.",
        lambda commands: commands.connections_total,
    ),
    _memcache(
        "counter",
        "volcache_memcache_refused_total",
        "connections.refused",
        "Connections of memcached clients closed at once because of the limit.",
        lambda commands: commands.connections_refused,
        Cell("memcache", "refused {}", "nonzero"),
    ),
    _labelled(
        "histogram",
        _label("kind", *KINDS),
        "volcache_memcache_command_duration_seconds",
        "memcache.latency.{kind}",
        "Time to execute a command of the memcached protocol, by kind.",
        lambda s: _by_one(s.command_durations),
        Cell("cmd {kind}", "{}", "quantiles"),
    ),
)

_STORE: Final = (
    _info(
        "",
        "store.sync_mode",
        "When stored values are synced to the disk, as in the settings.",
        lambda s: s.sync_mode,
    ),
    _labelled(
        "counter",
        _label(
            "reason",
            *("absent", "expired", "purged", "evicted", "damaged", "unreadable"),
        ),
        "volcache_store_misses_total",
        "requests.misses.{reason}",
        "Store reads that found no value, by reason.",
        lambda s: _by_one(s.counts.misses()),
    ),
    _histogram(
        "volcache_disk_read_duration_seconds",
        "latency.disk_read",
        "Time to read a record from the disk.",
        lambda s: s.counts.reads,
        Cell("disk read", "{}", "quantiles"),
    ),
    _histogram(
        "volcache_disk_write_duration_seconds",
        "latency.disk_write",
        "Time to write a record to the disk.",
        lambda s: s.counts.writes,
        Cell("disk write", "{}", "quantiles"),
    ),
    _histogram(
        "volcache_rotation_duration_seconds",
        "latency.rotation",
        "Time of a rotation to the next volume.",
        lambda s: s.counts.rotating,
    ),
    _histogram(
        "volcache_sync_duration_seconds",
        "latency.sync",
        "Time of a sync to the disk.",
        lambda s: s.sync_durations,
    ),
    _counter(
        "volcache_rotations_total",
        "store.rotations",
        "Rotations to the next volume.",
        lambda s: s.counts.rotations,
    ),
    _info(
        "",
        "store.eviction",
        "Eviction policy in use: frequency or fifo.",
        lambda s: s.usage.eviction.policy,
        Cell("eviction"),
    ),
    _labelled(
        "gauge",
        _label("policy"),
        "volcache_eviction_info",
        "",
        "Always 1; the label is the eviction policy in use: frequency or fifo.",
        lambda s: {(s.usage.eviction.policy,): 1},
    ),
    _counter(
        "volcache_put_bytes_total",
        "store.put_bytes",
        "Bytes of records appended by PUT and DELETE, without reinserted ones.",
        lambda s: s.usage.eviction.put_bytes,
    ),
    _info(
        "",
        "store.next_reclaimed",
        "Id of the volume that is reclaimed now or next; null if there is none.",
        lambda s: _id(s.usage.eviction.next_id),
    ),
    _counter(
        "volcache_evicted_records_total",
        "store.evicted_records",
        "Live records lost when their volume was reclaimed.",
        lambda s: s.counts.evicted_records,
    ),
    _counter(
        "volcache_evicted_bytes_total",
        "store.evicted_bytes",
        "Bytes of live records lost when their volume was reclaimed.",
        lambda s: s.counts.evicted_bytes,
    ),
    _counter(
        "volcache_damaged_records_total",
        "store.damaged_records",
        "Records that failed a check when they were read.",
        lambda s: s.counts.damaged_records,
        Cell("errors", "damaged records {}", "nonzero"),
    ),
    _labelled(
        "counter",
        _label("operation", "read", "write", "sync", "index"),
        "volcache_disk_errors_total",
        "store.{operation}_errors",
        "Failed disk operations.",
        lambda s: {
            ("read",): s.counts.read_errors,
            ("write",): s.counts.write_errors,
            ("sync",): s.counts.sync_errors,
            ("index",): s.counts.index_errors,
        },
        Cell("errors", "disk errors {}", "nonzero"),
    ),
    _labelled(
        "gauge",
        _label("kind", *_ERRORS),
        "volcache_last_error_timestamp_seconds",
        "store.last_errors.{kind}",
        "When the last error of a kind was, in seconds since 1970; not set if none.",
        lambda s: {
            (kind,): last.at if last else None for kind, last in _last_errors(s)
        },
    ),
    _labelled(
        "info",
        _label("kind", *_ERRORS),
        "",
        "store.last_error_texts.{kind}",
        "Text of the last error of a kind; null if there was none.",
        lambda s: {
            (kind,): last.text if last else None for kind, last in _last_errors(s)
        },
    ),
    _info(
        "",
        "store.volume_num",
        "Number of volumes, as in the settings or, with auto, as determined.",
        lambda s: s.usage.volume_num,
        Cell("volumes", "{}"),
    ),
    _info(
        "",
        "store.volume_size",
        "Size of a new volume, in bytes.",
        lambda s: s.usage.volume_size,
        Cell("volumes", "{} each"),
        unit="bytes",
    ),
    _gauge(
        "volcache_capacity_bytes",
        "",
        "Capacity by the settings: volume_num times volume_size.",
        lambda s: s.usage.volume_num * s.usage.volume_size,
    ),
    _gauge(
        "volcache_active_volume",
        "store.active.id",
        "Id of the active volume; with two rings, of the one started last.",
        lambda s: s.usage.active_id,
        Cell("volumes", "active {}"),
    ),
    _gauge(
        "volcache_active_sequence",
        "store.active.sequence",
        "Sequence number of the active volume.",
        lambda s: s.usage.active_seq,
        Cell("volumes", "sequence number {}"),
    ),
    _gauge(
        "volcache_active_write_position_bytes",
        "store.active.write_position",
        "Offset of the next record in the active volume.",
        lambda s: s.usage.active_end,
        Cell("volumes", "written {}"),
    ),
    _gauge(
        "volcache_live_bytes",
        "store.live_bytes",
        "Bytes of records that can be read.",
        lambda s: s.usage.live,
        Cell("space", "live {}"),
    ),
    _gauge(
        "volcache_dead_bytes",
        "store.dead_bytes",
        "Bytes of overwritten, deleted and damaged records, and of volume headers.",
        lambda s: s.usage.dead,
        Cell("space", "dead {}"),
    ),
    _gauge(
        "volcache_free_bytes",
        "store.free_bytes",
        "Bytes not written yet; not more than the file system has free.",
        lambda s: s.usage.free,
        Cell("space", "free {}"),
    ),
    _gauge(
        "volcache_keys",
        "store.keys",
        "Keys in the index, including expired and purged ones.",
        lambda s: s.usage.keys,
        Cell("space", "keys {}"),
    ),
    _info(
        "",
        "store.disk.state",
        "Why the disk refuses to write: full or read-only; null if it does not.",
        lambda s: s.usage.disk.state or None,
        Cell("space", "DISK IS {}"),
    ),
    _gauge(
        "volcache_disk_writable",
        "",
        "Whether the disk accepts writes, as far as is known.",
        lambda s: not s.usage.disk.state,
    ),
    _gauge(
        "volcache_disk_free_bytes",
        "store.disk.free_bytes",
        "Free bytes of the file system, for users other than root.",
        lambda s: s.usage.disk.free,
    ),
    _gauge(
        "volcache_disk_total_bytes",
        "store.disk.total_bytes",
        "Size of the file system.",
        lambda s: s.usage.disk.total,
    ),
    _gauge(
        "volcache_disk_volumes",
        "store.disk.volumes",
        "Volumes that the disk allows at present, at most volume_num.",
        lambda s: s.usage.disk.volumes,
    ),
    _gauge(
        "volcache_disk_limited",
        "store.disk.limited",
        "Whether the disk allows fewer volumes than the settings.",
        lambda s: s.usage.disk.is_limited,
    ),
    _counter(
        "volcache_given_up_volumes_total",
        "store.given_up_volumes",
        "Volumes dropped because the disk had no space for other files of the store.",
        lambda s: s.counts.given_up_volumes,
    ),
    _counter(
        "volcache_purges_total",
        "store.purges",
        "Prefixes that were purged.",
        lambda s: s.counts.purges,
    ),
    _gauge(
        "volcache_purge_entries",
        "store.purge_entries",
        "Purges in the list that reads are compared with; at most 256.",
        lambda s: s.usage.purges,
    ),
)

_SCRUB: Final = (
    _scrub(
        "info",
        "",
        "rate",
        "Bytes per second that the scrub reads, as in the settings.",
        lambda scrub: scrub.rate,
        Cell("scrub", "{}/s"),
        unit="bytes",
    ),
    _scrub(
        "counter",
        "volcache_scrub_bytes_total",
        "bytes",
        "Bytes that the scrub has read.",
        lambda scrub: scrub.bytes,
    ),
    _scrub(
        "gauge",
        "volcache_scrub_progress_ratio",
        "progress_ratio",
        "The share of the present pass over all volumes that is done.",
        lambda scrub: scrub.progress,
        Cell("scrub", "{} of a pass", "percent"),
    ),
    _scrub(
        "info",
        "",
        "volume",
        "Id of the volume that is read now; null: none.",
        lambda scrub: _id(scrub.volume_id),
    ),
    _scrub(
        "counter",
        "volcache_scrub_passes_total",
        "passes",
        "Passes over all volumes that were completed.",
        lambda scrub: scrub.passes,
    ),
    _scrub(
        "gauge",
        "volcache_scrub_ended_timestamp_seconds",
        "ended",
        "When the last pass was completed, in seconds since 1970; not set if none was.",
        lambda scrub: scrub.ended_ms / 1000 if scrub.ended_ms else None,
    ),
    _labelled(
        "counter",
        _label("kind", "record", "file"),
        "volcache_scrub_findings_total",
        "scrub.findings.{kind}",
        "Damage that the scrub found: records, and index files or unreadable sectors.",
        lambda s: _by_one(s.counts.scrub.found_by_kind) if s.counts.scrub.rate else {},
        Cell("scrub", "findings {}", "nonzero"),
    ),
    _scrub(
        "info",
        "",
        "found",
        "When the last damage was found, in seconds since 1970; null: none was.",
        lambda scrub: scrub.found_ms / 1000 if scrub.found_ms else None,
    ),
)

_AGES: Final = (
    _labelled(
        "gauge",
        _label("state", *STATES),
        "volcache_volumes",
        "store.states.{state}",
        "Volumes by state: active, sealed, reclaiming or empty.",
        lambda s: {(state,): number for state, number in s.usage.states.items()},
    ),
    _gauge(
        "volcache_oldest_volume_began_timestamp_seconds",
        "store.oldest_began",
        "When the oldest volume became active; not set if unknown.",
        lambda s: _seconds(s.usage.oldest_started_ms),
    ),
    _gauge(
        "volcache_active_volume_began_timestamp_seconds",
        "store.active.began",
        "When the active volume became active; not set if unknown.",
        lambda s: _seconds(s.usage.active_started_ms),
    ),
)

_VOLUMES: Final = (
    _volumes(
        "gauge",
        "volcache_volume_sequence",
        "sequence",
        "Sequence number of a volume, which orders them by age; 0 if empty.",
        lambda v: v.seq,
    ),
    _volumes(
        "info",
        "",
        "state",
        "State: active, sealed, reclaiming or empty.",
        lambda v: v.state,
    ),
    _volumes(
        "info",
        "",
        "ring",
        "Ring of a volume: main or probation; null if empty.",
        lambda v: v.ring or None,
    ),
    _volumes(
        "gauge",
        "volcache_volume_size_bytes",
        "size",
        "File size of a volume.",
        lambda v: v.size,
    ),
    _volumes(
        "info",
        "",
        "used_bytes",
        "Bytes written, including the volume header.",
        lambda v: v.used,
    ),
    _volumes(
        "gauge",
        "volcache_volume_live_records",
        "live_records",
        "Records of a volume that can be read.",
        lambda v: v.live_records,
    ),
    _volumes(
        "gauge",
        "volcache_volume_live_bytes",
        "live_bytes",
        "Bytes of a volume's records that can be read.",
        lambda v: v.live,
    ),
    _volumes(
        "gauge",
        "volcache_volume_dead_bytes",
        "dead_bytes",
        "Bytes of a volume's overwritten, deleted and damaged records and its header.",
        lambda v: v.dead,
    ),
    _volumes(
        "gauge",
        "volcache_volume_began_timestamp_seconds",
        "began",
        "When a volume became active, in seconds since 1970; not set if unknown.",
        lambda v: _seconds(v.started_ms),
    ),
)

_RINGS: Final = (
    _rings(
        "gauge",
        "volcache_ring_volumes",
        "volumes",
        "Volumes of a ring.",
        lambda ring: ring.volumes,
        Cell("{ring}", "volumes {}"),
    ),
    _rings(
        "gauge",
        "volcache_ring_used_bytes",
        "used_bytes",
        "Bytes written in a ring, including volume headers.",
        lambda ring: ring.used,
        Cell("{ring}", "written {}"),
    ),
    _rings(
        "gauge",
        "volcache_ring_live_bytes",
        "live_bytes",
        "Bytes of a ring's records that can be read.",
        lambda ring: ring.live,
        Cell("{ring}", "live {}"),
    ),
    _rings(
        "gauge",
        "volcache_ring_live_records",
        "live_records",
        "Records of a ring that can be read.",
        lambda ring: ring.live_records,
        Cell("{ring}", "records {}"),
    ),
    _rings(
        "gauge",
        "volcache_ring_began_timestamp_seconds",
        "began",
        "When the oldest volume of a ring became active; not set if unknown.",
        lambda ring: _seconds(ring.started_ms),
    ),
    _evicting(
        "gauge",
        "volcache_probation_limit_bytes",
        "probation_limit_bytes",
        "Above this, volumes of ring probation are reclaimed first.",
        lambda e: e.probation_max,
    ),
    _evicting(
        "counter",
        "volcache_reinserted_records_total",
        "reinserted_records",
        "Records of reclaimed volumes that were appended again.",
        lambda e: e.fate.copied,
    ),
    _evicting(
        "counter",
        "volcache_reinserted_bytes_total",
        "reinserted_bytes",
        "Bytes of records of reclaimed volumes that were appended again.",
        lambda e: e.fate.copied_bytes,
    ),
    _labelled(
        "counter",
        _label("reason", *_DROPPED),
        "volcache_dropped_records_total",
        "rings.dropped.{reason}",
        "Records of reclaimed volumes that were not appended again, by reason.",
        lambda s: (
            {
                (reason,): getattr(s.usage.eviction.fate, field)
                for reason, field in _DROPPED.items()
            }
            if _has_rings(s)
            else {}
        ),
    ),
    _evicting(
        "gauge",
        "volcache_write_amplification",
        "write_amplification",
        "Bytes appended for each byte put, since the start.",
        lambda e: e.write_amplification,
        Cell("eviction", "write amplification {}", "factor"),
    ),
    _evicting(
        "counter",
        "volcache_ghost_hits_total",
        "ghost_hits",
        "PUTs of keys soon after they were dropped from ring probation.",
        lambda e: e.ghost_hits,
    ),
    _evicting(
        "counter",
        "volcache_older_hits_total",
        "older_hits",
        "Hits of records that a single ring would probably have missed.",
        lambda e: e.older_hits,
    ),
    _evicting(
        "gauge",
        "volcache_gained_hits",
        "gained_hits",
        "Estimate: hits more than with a single ring, since the start.",
        lambda e: e.gained_hits,
    ),
    _labelled(
        "gauge",
        (),
        "volcache_gained_hits_ratio",
        "rings.gained_hits_ratio",
        "Estimate: volcache_gained_hits as a share of all GETs.",
        lambda s: {(): _gained_ratio(s)} if _has_rings(s) else {},
        Cell("eviction", "estimated gain over fifo {} of GETs", "percent"),
    ),
    _evicting(
        "gauge",
        "volcache_reinsertable_bytes",
        "reinsertable_bytes",
        "Tokens: bytes of records that may be appended again now.",
        lambda e: int(e.tokens),
    ),
    _evicting(
        "gauge",
        "volcache_reclaimed_volume",
        "reclaim.volume",
        "Id of the volume that is being reclaimed; not set if none is.",
        lambda e: _id(e.reclaiming),
        Cell("eviction", "volume {} is being reclaimed"),
    ),
    _evicting(
        "gauge",
        "volcache_reclaimed_ratio",
        "reclaim.done_ratio",
        "Share of that reclaim that is done, 0 to 1; not set if there is none.",
        lambda e: None if e.reclaiming < 0 else round(e.reclaimed, 4),
        Cell("eviction", "{} of it done", "percent"),
    ),
)

_HOT: Final = (
    _labelled(
        "gauge",
        _label("server"),
        "volcache_hot_server_up",
        "hot.servers[address].up",
        "Whether a memcached server is in use.",
        lambda s: {} if s.hot is None else _by_one(s.hot.up),
        Cell("hot tier", "up|DOWN", "state"),
    ),
    _hot(
        "gauge",
        "volcache_hot_promoted_keys",
        "hot.promoted_keys",
        "Keys that are read from memcached first.",
        lambda hot: hot.promoted,
        Cell("hot tier", "promoted keys {}"),
    ),
    _hot_counter(
        "volcache_hot_gets_total",
        "hot.gets",
        "Reads from memcached.",
        lambda hot: hot.stats.gets,
    ),
    _hot_counter(
        "volcache_hot_hits_total",
        "hot.hits",
        "Reads from memcached that found a copy, including stale copies.",
        lambda hot: hot.stats.hits,
    ),
    _hot_counter(
        "volcache_hot_stale_total",
        "hot.stale",
        "Stale copies rejected.",
        lambda hot: hot.stats.stale,
    ),
    _hot_counter(
        "volcache_hot_promotions_total",
        "hot.promotions",
        "Records copied to memcached.",
        lambda hot: hot.stats.promotions,
    ),
    _hot_counter(
        "volcache_hot_refused_total",
        "hot.refused",
        "Copies that memcached refused to store.",
        lambda hot: hot.stats.refused,
    ),
    _hot_counter(
        "volcache_hot_invalidations_total",
        "hot.invalidations",
        "Copies invalidated by a PUT or DELETE of their key.",
        lambda hot: hot.stats.invalidations,
    ),
    _hot_counter(
        "volcache_hot_flushes_total",
        "hot.flushes",
        "Times that all copies were invalidated at once.",
        lambda hot: hot.stats.flushes,
    ),
    _hot_counter(
        "volcache_hot_state_changes_total",
        "hot.state_changes",
        "Changes of memcached servers between up and down.",
        lambda hot: hot.stats.states,
    ),
    _labelled(
        "counter",
        _label("kind", *_FAILURES),
        "volcache_hot_failures_total",
        "hot.failures.{kind}",
        "Failed calls to memcached, by kind.",
        lambda s: (
            {}
            if s.hot is None
            else _by_one(dict.fromkeys(_FAILURES, 0) | s.hot.stats.failures)
        ),
        Cell("hot tier", "failures {}", "nonzero"),
    ),
    _histogram(
        "volcache_hot_call_duration_seconds",
        "latency.memcached",
        "Time of a call to memcached, including failed calls.",
        lambda s: Histogram() if s.hot is None else s.hot.stats.calls,
    ),
)

_SERVER: Final = (
    _gauge(
        "volcache_gate",
        "server.gate",
        "Whether bjoern was built with the gate.",
        lambda s: s.connections is not None,
    ),
    _connections("gauge", "volcache_connections", "open", "Open connections."),
    _connections(
        "gauge", "volcache_idle_connections", "idle", "Those without a request."
    ),
    _connections(
        "gauge",
        "volcache_max_connections",
        "limit",
        "Limit of open connections, from that of descriptors.",
    ),
    _connections(
        "counter", "volcache_accepted_total", "accepted", "Connections accepted."
    ),
    _labelled(
        "counter",
        _label("reason", *_CLOSED),
        "volcache_closed_connections_total",
        "server.closed.{reason}",
        "Connections closed by the instance, by reason: a timeout, or the limit.",
        lambda s: {
            (reason,): None
            if s.connections is None
            else s.connections[f"closed_{reason}"]
            for reason in _CLOSED
        },
    ),
    _connections(
        "counter",
        "volcache_turned_away_total",
        "turned_away",
        "Connections answered 503 because none was idle at the limit.",
    ),
    _connections(
        "counter",
        "volcache_cold_reads_total",
        "cold_reads",
        "Records read by the reader threads because they were not in memory.",
    ),
    _connections(
        "gauge",
        "volcache_waiting_reads",
        "waiting_reads",
        "Records that wait for a reader thread.",
    ),
    _connections(
        "gauge",
        "volcache_body_bytes",
        "body_bytes",
        "Memory that is reserved for the bodies of requests.",
    ),
    _connections(
        "gauge",
        "volcache_waiting_bodies",
        "waiting_bodies",
        "Requests that wait for memory for their body.",
    ),
)

_PROCESS: Final = (
    _info("", "process.pid", "Process id.", lambda s: s.process.pid),
    _counter(
        "process_cpu_seconds_total",
        "process.cpu_seconds",
        "CPU time used, user and system.",
        lambda s: s.process.cpu_seconds,
    ),
    _gauge(
        "process_resident_memory_bytes",
        "process.rss_bytes",
        "Resident memory.",
        lambda s: s.process.rss_bytes,
    ),
    _gauge(
        "process_open_fds",
        "process.open_fds",
        "Open file descriptors.",
        lambda s: s.process.open_fds,
    ),
    _gauge(
        "process_max_fds",
        "process.max_fds",
        "Limit of open file descriptors.",
        lambda s: s.process.max_fds,
    ),
    _gauge(
        "process_threads",
        "process.threads",
        "Python threads.",
        lambda s: s.process.threads,
    ),
)

_REQUESTS_NOTE: Final = (
    "Each request is counted once by method and status, and once in the histogram of its"
    " method, including those under `/-/` and those that the gate refuses. A GET or HEAD of"
    " a key is either a hit or a miss, except with an invalid key (400) or a failed"
    " condition (412). The hit ratio is hits / (hits + misses)."
)
_MEMCACHE_NOTE: Final = (
    "Only with `memcache_listen`: otherwise `memcache` is null in JSON, and these metrics"
    " are absent from Prometheus' output. They are not part of the requests above. A"
    " command for several keys is counted once for each key, and commands that are not"
    " known as `other`. The results of reads are `hit` and `miss`, so the hit ratio is"
    " hits / (hits + misses); `error` is a command that cannot be understood, `failed` one"
    " that the disk refused. The kinds of the durations are "
    + "; ".join(
        f"{kind}: {', '.join(names)}"
        for kind, names in KINDS.items()
        if kind != "other"
    )
    + "; other: all others."
)
_STORE_NOTE: Final = (
    "The age of the oldest value is about `time() -"
    " volcache_oldest_volume_began_timestamp_seconds`. Live, dead and free bytes add up to"
    " the capacity. Store misses are those of reads of the store, also for a PUT or DELETE"
    " with a condition, a PROPFIND, an invalid key, and for values that memcached then had:"
    " their sum can exceed `volcache_misses_total`."
)
_SCRUB_NOTE: Final = (
    "Only with `scrub_rate`: else `scrub` is null in JSON, and these metrics are absent"
    " from Prometheus' output. Damage that stays is found again by each pass."
)
_VOLUMES_NOTE: Final = (
    "Only with `metrics_volumes`: otherwise these metrics are absent from Prometheus'"
    " output. `GET /-/stats?volumes=0` omits the list. With 1,000 volumes, the list and the"
    " series take most of the time of an answer, during which no request is answered."
)
_RINGS_NOTE: Final = (
    "Only with two rings: with `fifo`, or with fewer than 4 volumes, `rings` is null"
    " in JSON, and these metrics are absent from Prometheus' output. Records are dropped"
    " because they were read too seldom (unread), because too much had been appended again"
    " (limited: no tokens were left), because they have expired, were purged, failed a"
    " check (damaged)"
    " or could not be read (unreadable), or because there was no time or no room"
    " (skipped). The gain is older hits minus ghost hits: its sign"
    " is reliable, its amount is not. It is not set until as much as"
    " the capacity was put since the start."
)
_HOT_NOTE: Final = (
    "Only with `memc_on`: otherwise `hot` is null in JSON, and these metrics are absent"
    " from Prometheus' output."
)
_SERVER_NOTE: Final = (
    "Connections are closed without a request for `idle_timeout` (idle), at `head_timeout`"
    " (head), at `transfer_timeout` (transfer), and those idle for longest at the limit of"
    " connections (room). These figures are those of the gate: if bjoern was built without"
    " it, `server.gate` is false, and the others are null in JSON and absent from"
    " Prometheus' output."
)
_PROCESS_NOTE: Final = (
    "If no descriptor is free, memory is the peak and the number of open descriptors is"
    " the limit."
)

SECTIONS: Final = (
    Section("Instance", _INSTANCE),
    Section("Requests", _REQUESTS, _REQUESTS_NOTE),
    Section(
        "memcached protocol",
        _MEMCACHE,
        _MEMCACHE_NOTE,
        lambda snapshot: snapshot.commands is not None,
    ),
    Section("Store", (*_STORE, *_AGES), _STORE_NOTE),
    Section("Scrub", _SCRUB, _SCRUB_NOTE, lambda s: s.counts.scrub.rate > 0),
    Section("Volumes", _VOLUMES, _VOLUMES_NOTE, lambda s: bool(s.usage.volumes)),
    Section("Rings", _RINGS, _RINGS_NOTE, _has_rings),
    Section("Hot tier", _HOT, _HOT_NOTE, lambda snapshot: snapshot.hot is not None),
    Section("Server", _SERVER, _SERVER_NOTE),
    Section("Process", _PROCESS, _PROCESS_NOTE),
)
METRICS: Final = tuple(metric for section in SECTIONS for metric in section.metrics)
