"""
What a store counts since it was opened, what a start found, and how full the volumes are.

Usage is computed on request. Every byte of a volume is one of three: *live*, part of a
record that a get would return; *dead*, written but unused (records replaced, deleted or
damaged, and the header of the volume); *free*, not written since the volume was started.
"""

from __future__ import annotations

import errno
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.errors import DiskFullError
from volcache.histogram import NS_PER_SECOND, Histogram
from volcache.store.files import DISK_FULL
from volcache.store.index import Disposition

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.errors import DamagedRecordError

Refusal = Literal["", "full", "read-only"]

_logger = logging.getLogger("volcache.store")

# A failing disk fails every request: after this many lines of one kind, a line is logged
# only when the count has doubled.
_LINES_OF_A_KIND: Final = 10
# After this many read errors without a successful read, the disk counts as failed.
READ_ERRORS_IN_ROW_MAX: Final = 3
_DAMAGE_LINES_MAX: Final = 20  # in the log, per start
_TEXT_MAX: Final = 300  # characters of the text of an error that are kept

ErrorKind = Literal["read", "write", "sync", "index", "damaged"]


class LastError(NamedTuple):
    """The last error of one kind."""

    at: float  # seconds since the epoch
    text: str  # one line, cut off if long


@dataclass(slots=True)
class ScrubStats:
    """What the scrub has done since the store was opened; it is off if `rate` is 0."""

    rate: int = 0  # bytes per second
    bytes: int = 0  # that were read
    passes: int = 0  # over all volumes, complete ones
    total_bytes: int = 0  # of the present pass
    left_bytes: int = 0  # of these, not read yet
    volume_id: int = -1  # that is read now; -1: none
    ended_ms: int = 0  # when the last pass was complete, since the epoch; 0: none was
    found_ms: int = 0  # when something was found, since the epoch; 0: nothing was
    found_by_kind: dict[str, int] = field(
        default_factory=lambda: {"record": 0, "file": 0}
    )

    @property
    def found(self) -> int:
        """The number of findings of all kinds."""
        return sum(self.found_by_kind.values())

    @property
    def progress(self) -> float:
        """The share of the present pass that is done; 0 before the first."""
        return 1 - self.left_bytes / self.total_bytes if self.total_bytes else 0.0

    def begin_pass(self, total: int) -> None:
        """Note how many bytes are to be read."""
        self.total_bytes = self.left_bytes = total

    def end_pass(self, now_ms: int) -> None:
        """Count a pass that is complete."""
        self.passes += 1
        self.volume_id, self.left_bytes, self.ended_ms = -1, 0, now_ms

    def count(self, kind: str, now_ms: int) -> None:
        """Count a finding."""
        self.found_by_kind[kind] += 1
        self.found_ms = now_ms


@dataclass(slots=True)
class DiskStats:
    """What the disk has refused, and whether it reads and writes now."""

    damaged_records: int = 0  # misses: a check of the record failed
    read_errors: int = 0
    read_errors_in_row: int = 0
    write_errors: int = 0
    sync_errors: int = 0
    index_errors: int = 0
    # Of the kinds that have happened. `damaged` includes records that a reclaim found.
    last_errors: dict[ErrorKind, LastError] = field(default_factory=dict)
    clock: Callable[[], int] = time.time_ns  # nanoseconds since the epoch
    refused: Refusal = ""  # why the disk has refused the last write that failed
    writes_at_refusal: int = 0  # how many records had been written then
    reads: Histogram = field(default_factory=Histogram)  # `pread` of a record
    writes: Histogram = field(default_factory=Histogram)  # `pwritev` of a record
    syncs: Histogram = field(default_factory=Histogram)  # one per call of `sync`

    @property
    def is_disk_good(self) -> bool:
        """Whether reads work: false after several errors in a row."""
        return self.read_errors_in_row < READ_ERRORS_IN_ROW_MAX

    def count_damaged(self, error: DamagedRecordError) -> None:
        """Count a record that failed a check."""
        self.damaged_records += 1
        self._keep("damaged", error)
        _log_some("read.damaged count=%d error=%r", error, self.damaged_records)

    def count_read_error(self, error: OSError) -> None:
        """Count a read that failed: it is unknown whether there is a value."""
        self.read_errors += 1
        self.read_errors_in_row += 1
        self._keep("read", error)
        _log_some("read.failed count=%d error=%r", error, self.read_errors)
        if self.read_errors_in_row == READ_ERRORS_IN_ROW_MAX:
            _logger.error("disk.not_ready errors_in_row=%d", self.read_errors_in_row)

    def count_disk_recovery(self) -> None:
        """Log that reads work again."""
        self.read_errors_in_row = 0
        _logger.warning("disk.ready read_errors=%d", self.read_errors)

    def count_write_error(self, error: Exception) -> None:
        """Count a put or delete that the disk refused."""
        self.write_errors += 1
        self._keep("write", error)
        _log_some("write.failed count=%d error=%r", error, self.write_errors)
        self._record_refusal(error)

    def count_rotation_error(self, error: Exception) -> None:
        """Count a rotation that the disk refused; it is a write error, too."""
        self.write_errors += 1
        self._keep("write", error)
        _log_some("rotation.failed count=%d error=%r", error, self.write_errors)
        self._record_refusal(error)

    def _record_refusal(self, error: Exception) -> None:
        """Remember why the disk refuses to write, and log it once."""
        code = error.errno if isinstance(error, OSError) else None
        why: Refusal = ""
        if code == errno.EROFS:
            why = "read-only"
        elif code in DISK_FULL or isinstance(error, DiskFullError):
            why = "full"
        if not why:
            return
        if why != self.refusal():
            _logger.error("disk.refuses_writes reason=%s error=%r", why, str(error))
        self.refused, self.writes_at_refusal = why, self.writes.count

    def refusal(self) -> Refusal:
        """Return why the disk refuses to write; empty if it has written since."""
        if self.refused and self.writes.count != self.writes_at_refusal:
            _logger.warning("disk.accepts_writes reason=%s", self.refused)
            self.refused = ""
        return self.refused

    def count_sync_error(self, error: OSError) -> None:
        """Count a failed sync: data written since the last one may be lost."""
        self.sync_errors += 1
        self._keep("sync", error)
        _log_some("sync.failed count=%d error=%r", error, self.sync_errors)

    def count_index_error(self, error: OSError, *, volume: int) -> None:
        """Count a failed write of an index file; the records stay readable."""
        self.index_errors += 1
        self._keep("index", error)
        count = self.index_errors
        _log_some("index.failed count=%d volume=%d error=%r", error, count, volume)

    def _keep(self, kind: ErrorKind, error: Exception) -> None:
        """Keep the time and the text of an error until the next one of its kind."""
        text = " ".join(str(error).split())[:_TEXT_MAX]
        self.last_errors[kind] = LastError(self.clock() / NS_PER_SECOND, text)


def _log_some(event: str, error: Exception, count: int, *fields: int) -> None:
    """Log an error with its count and other fields, unless there are too many."""
    if count <= _LINES_OF_A_KIND or count & (count - 1) == 0:
        _logger.error(event, count, *fields, str(error))


@dataclass(slots=True)
class StoreStats(DiskStats):
    """Counts since the store was opened."""

    rotations: int = 0
    evicted_records: int = 0  # live records lost by reclaim
    evicted_bytes: int = 0
    absent_reads: int = 0  # misses: the key is not in the index
    evicted_reads: int = 0  # misses: the volume of the record was reclaimed
    expired_reads: int = 0  # misses: the time to live is over
    purged_reads: int = 0  # misses: stored before a purge of a prefix of the key
    purges: int = 0  # that were made
    given_up_volumes: int = 0  # whose space was needed on a full disk
    disposition: Disposition = field(
        default_factory=Disposition
    )  # of the records of reclaimed volumes
    rotating: Histogram = field(default_factory=Histogram)  # one per rotation
    scrub: ScrubStats = field(default_factory=ScrubStats)

    def misses(self) -> dict[str, int]:
        """Return the number of store misses by reason."""
        return {
            "absent": self.absent_reads,
            "expired": self.expired_reads,
            "purged": self.purged_reads,
            "evicted": self.evicted_reads,
            "damaged": self.damaged_records,
            "unreadable": self.read_errors,
        }

    def count_reclaim_damage(self, error: DamagedRecordError) -> None:
        """Log a record that failed a check before it was copied."""
        self._keep("damaged", error)
        _log_some("reclaim.damaged count=%d error=%r", error, self.disposition.damaged)

    def count_given_up(
        self, volume: int, seq: int, *, free: int, error: Exception
    ) -> None:
        """Count a volume whose space is needed on a full disk."""
        self.given_up_volumes += 1
        _logger.warning(
            "disk.volume_given_up volume=%d seq=%d free=%d error=%r",
            volume,
            seq,
            free,
            str(error),
        )


# --- Recovery ----------------------------------------------------------------------


@dataclass(slots=True)
class RecoveryStats:
    """What a start found, as counts; the first damages also go to the log."""

    entries: int = 0  # entries of index files that were replayed
    scanned: int = 0  # records found by reading volumes
    torn: int = 0  # records cut off at the end of a volume
    damaged: int = 0  # headers, values and gaps that failed a check
    rebuilt: int = 0  # index files that were missing or damaged
    dropped: int = 0  # volumes removed because volume_num is smaller now
    stale: int = 0  # volumes whose header is that of an earlier use
    rejected: int = 0  # files that belong to another volume, use or store
    unknown: int = 0  # volumes with records whose keys are lost; older ones are dropped
    meta_lost: bool = False  # META.txt was missing or damaged

    def count_damage(self, what: str, volume: int, start: int, end: int) -> None:
        """Count damage from offset `start` to `end` of a volume."""
        self.damaged += 1
        if self.damaged <= _DAMAGE_LINES_MAX:
            _logger.warning(
                "recovery.damaged what=%s volume=%d offset=%d end=%d",
                what,
                volume,
                start,
                end,
            )

    def count_torn(self, volume: int, start: int) -> None:
        """Count a record that was not completely written."""
        self.torn += 1
        _logger.info("recovery.torn_tail volume=%d offset=%d", volume, start)

    def count_rebuilt(self, volume: int, records: int) -> None:
        """Count an index file that was rebuilt from its volume."""
        self.rebuilt += 1
        _logger.warning("recovery.index_rebuilt volume=%d records=%d", volume, records)

    def count_dropped(self, volume: int, seq: int) -> None:
        """Count a volume that was removed."""
        self.dropped += 1
        _logger.warning("recovery.volume_dropped volume=%d seq=%d", volume, seq)

    def count_stale(self, volume: int, seq: int) -> None:
        """Count a volume whose header shows an earlier, reclaimed use."""
        self.stale += 1
        _logger.warning("recovery.stale_volume volume=%d seq=%d", volume, seq)

    def count_rejected(self, file: str, expected: str, found: str) -> None:
        """Count a file that belongs to another volume, use or store."""
        self.rejected += 1
        _logger.warning(
            "recovery.file_rejected file=%s expected=%r found=%r", file, expected, found
        )

    def count_unknown(self, volume: int, end: int) -> None:
        """Count a volume of which not all keys are known."""
        self.unknown += 1
        _logger.warning("recovery.keys_unknown volume=%d offset=%d", volume, end)

    def count_meta_lost(self) -> None:
        """Record that META.txt was rebuilt."""
        self.meta_lost = True
        _logger.warning("recovery.meta_lost rebuilt_from=volumes")


# --- Usage -------------------------------------------------------------------------

State = Literal["active", "sealed", "reclaiming", "empty"]
STATES: Final[tuple[State, ...]] = ("active", "sealed", "reclaiming", "empty")


class VolumeUsage(NamedTuple):
    """One volume id and the volume in it; sizes are bytes."""

    id: int
    seq: int = 0  # 0: empty
    state: State = "empty"
    size: int = 0
    used: int = 0  # header included
    live_records: int = 0
    live: int = 0
    started_ms: int = 0  # since the epoch; 0: empty, or not known
    ring: str = ""  # "main" or "probation"; empty: no volume

    @property
    def dead(self) -> int:
        """Bytes that are written but unused."""
        return self.used - self.live


class RingUsage(NamedTuple):
    """The volumes of one ring together; sizes are bytes."""

    volumes: int = 0
    used: int = 0
    live: int = 0
    live_records: int = 0

    started_ms: int = 0  # the least of them that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionUsage:
    """What the eviction policy has done since the store was opened."""

    policy: str  # "fifo" or "frequency": what is in use
    main: RingUsage
    probation: RingUsage
    probation_max: int  # bytes that ring probation may hold
    put_bytes: int  # of records that were put, and of tombstones
    disposition: Disposition  # of the live records of reclaimed volumes
    tokens: float  # bytes that may be copied now
    ghost_hits: int  # keys put again soon after they were dropped from probation
    older_hits: int  # hits that a single ring would probably have missed
    # An estimate: how many more reads were hits than with a single ring of this size. A
    # key that is put again soon after it was dropped from probation would have been there
    # still. None: not known, because less than the capacity was put since the store was
    # opened.
    gained_hits: int | None
    next_id: int  # of the volume that is reclaimed now or next; -1: none
    reclaiming: int  # id of the volume that is reclaimed; -1: none
    reclaimed: float  # the share of that work that is done

    @property
    def has_rings(self) -> bool:
        """Whether there are two rings; with "fifo", only until probation is reclaimed."""
        return self.policy == "frequency" or self.probation.volumes > 0

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte that was put."""
        return (
            1 + self.disposition.copied_bytes / self.put_bytes
            if self.put_bytes
            else 1.0
        )


class DiskUsage(NamedTuple):
    """The file system of the store; sizes are bytes."""

    free: int
    total: int
    state: Refusal  # why nothing can be written; empty: it can
    volumes: int  # that there can be, at most `volume_num`
    is_limited: bool  # fewer than `volume_num`

    @property
    def is_writable(self) -> bool:
        """Whether the disk accepts writes, as far as is known."""
        return not self.state


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """How full a store is, and which volume is the active one."""

    volumes: list[VolumeUsage]  # all of them by their ids; empty if not asked for
    states: dict[State, int]  # the number of volumes in each state
    volume_size: int  # of a volume that is started now
    volume_num: int
    active_id: int
    active_seq: int
    active_end: int  # offset of the next record
    active_started_ms: int  # since the epoch; 0: not known
    eviction: EvictionUsage
    disk: DiskUsage
    purges: int = 0  # in the list

    @property
    def capacity(self) -> int:
        """Bytes of all volumes, by the settings."""
        return self.volume_num * self.volume_size

    @property
    def rings(self) -> tuple[RingUsage, RingUsage]:
        """Both rings; with "fifo", that of probation is empty."""
        return self.eviction.main, self.eviction.probation

    @property
    def keys(self) -> int:
        """The number of keys, expired and purged ones included."""
        return sum(ring.live_records for ring in self.rings)

    @property
    def live(self) -> int:
        """Bytes of records that are not superseded, expired and purged ones included."""
        return sum(ring.live for ring in self.rings)

    @property
    def dead(self) -> int:
        """Bytes that are written but unused."""
        return sum(ring.used - ring.live for ring in self.rings)

    @property
    def oldest_started_ms(self) -> int:
        """When the oldest volume was started, since the epoch; 0: not known."""
        return min((r.started_ms for r in self.rings if r.started_ms), default=0)

    @property
    def free(self) -> int:
        """
        Bytes neither live nor dead, but not more than are free on the file system.

        0 if the capacity was reduced below live and dead.
        """
        free = self.capacity - self.live - self.dead
        return max(0, min(free, self.disk.free))
