"""
What a store has counted since it was opened, and the log lines that go with it.

What a start found, in counts; the first damages also in the log, with coordinates.

How full the volumes are, for whoever watches: computed when asked, kept nowhere.

Every byte of a volume is one of three: *live*, of a record that a get would find; *dead*,
written and of no use any more (records replaced, deleted, damaged, and the volume's
header); *free*, not written in this life.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache.errors import DamagedRecordError
    from volcache.store.index import Index
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

# A disk that dies fails every request: after the first lines of a kind, only each one
# that doubles the count is logged.
_LINES_OF_A_KIND: Final = 10
# Of read errors with no good read between: then the disk, not a record, is bad.
READ_ERRORS_IN_ROW_MAX: Final = 3


@dataclass(slots=True)
class StoreStats:
    """Counts since the store was opened."""

    rotations: int = 0
    evicted_records: int = 0  # live records lost by reclaim
    evicted_bytes: int = 0
    absent_reads: int = 0  # of keys the index does not have: a miss each
    evicted_reads: int = 0  # of keys it has, in a volume that is gone: a miss each
    expired_reads: int = 0  # of values whose time was over: a miss each
    damaged_records: int = 0  # found by reads: a miss each
    read_errors: int = 0
    read_errors_in_row: int = 0
    write_errors: int = 0
    sync_errors: int = 0
    index_errors: int = 0
    reads: Histogram = field(default_factory=Histogram)  # of records, by `pread`
    writes: Histogram = field(default_factory=Histogram)  # of records, by `pwritev`
    rotating: Histogram = field(default_factory=Histogram)  # one for each rotation
    syncs: Histogram = field(default_factory=Histogram)  # one for each call of `sync`

    @property
    def is_disk_good(self) -> bool:
        """Whether reads work: false after several errors without a good one between."""
        return self.read_errors_in_row < READ_ERRORS_IN_ROW_MAX

    def misses(self) -> dict[str, int]:
        """Return how many reads of the store found nothing, by why."""
        return {
            "absent": self.absent_reads,
            "expired": self.expired_reads,
            "evicted": self.evicted_reads,
            "damaged": self.damaged_records,
            "unreadable": self.read_errors,
        }

    def count_damaged(self, error: DamagedRecordError) -> None:
        """Count a record that does not check out."""
        self.damaged_records += 1
        _log_some("read.damaged count=%d error=%r", self.damaged_records, error)

    def count_read_error(self, error: OSError) -> None:
        """Count a read that the disk refused."""
        self.read_errors += 1
        self.read_errors_in_row += 1
        _log_some("read.failed count=%d error=%r", self.read_errors, error)
        if self.read_errors_in_row == READ_ERRORS_IN_ROW_MAX:
            _logger.error("disk.not_ready errors_in_row=%d", self.read_errors_in_row)

    def count_disk_recovery(self) -> None:
        """Take the disk for good again."""
        self.read_errors_in_row = 0
        _logger.warning("disk.ready read_errors=%d", self.read_errors)

    def count_write_error(self, error: Exception) -> None:
        """Count a put or delete that the disk refused."""
        self.write_errors += 1
        _log_some("write.failed count=%d error=%r", self.write_errors, error)

    def count_rotation_error(self, error: Exception) -> None:
        """Count a rotation that the disk refused: a write error as well."""
        self.write_errors += 1
        _log_some("rotation.failed count=%d error=%r", self.write_errors, error)

    def count_sync_error(self, error: OSError) -> None:
        """Count a sync that failed: what was not synced is not promised any more."""
        self.sync_errors += 1
        _log_some("sync.failed count=%d error=%r", self.sync_errors, error)

    def count_index_error(self, error: OSError, *, volume: int) -> None:
        """Count an index file that could not be written; nothing is lost by it."""
        self.index_errors += 1
        if _is_logged(self.index_errors):
            _logger.error(
                "index.failed count=%d volume=%d error=%r",
                self.index_errors,
                volume,
                str(error),
            )


def _log_some(event: str, count: int, error: Exception) -> None:
    """Log an event whose fields are `count` and `error`, unless there are many."""
    if _is_logged(count):
        _logger.error(event, count, str(error))


def _is_logged(count: int) -> bool:
    """Tell whether one more of a kind is worth a line."""
    return count <= _LINES_OF_A_KIND or count & (count - 1) == 0


_logger = logging.getLogger("volcache.store")
_DAMAGE_LINES_MAX: Final = 20  # of the log, in one start


@dataclass(slots=True)
class RecoveryStats:
    """Counts of one start."""

    entries: int = 0  # lines of index files that counted
    scanned: int = 0  # records found by reading volumes
    torn: int = 0  # records cut off at the end of a volume
    damaged: int = 0  # headers, values and gaps that do not check out
    rebuilt: int = 0  # index files that were missing or damaged
    dropped: int = 0  # volumes given up because volume_num is smaller now
    stale: int = 0  # volumes whose header a power loss has set back to a life reclaimed
    meta_lost: bool = False  # META.txt was missing or damaged

    def count_damage(self, what: str, volume: int, start: int, end: int) -> None:
        """Count damage from byte `start` to `end` of a volume."""
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
        """Count a record that was being written when everything stopped."""
        self.torn += 1
        _logger.info("recovery.torn_tail volume=%d offset=%d", volume, start)

    def count_rebuilt(self, volume: int, records: int) -> None:
        """Count an index file that the volume had to replace."""
        self.rebuilt += 1
        _logger.warning("recovery.index_rebuilt volume=%d records=%d", volume, records)

    def count_dropped(self, volume: int, generation: int) -> None:
        """Count a volume that was given up."""
        self.dropped += 1
        _logger.warning(
            "recovery.volume_dropped volume=%d generation=%d", volume, generation
        )

    def count_stale(self, volume: int, generation: int) -> None:
        """Count a volume that shows a life which was reclaimed before."""
        self.stale += 1
        _logger.warning(
            "recovery.stale_volume volume=%d generation=%d", volume, generation
        )

    def count_meta_lost(self) -> None:
        """Remember that META.txt had to be made anew."""
        self.meta_lost = True
        _logger.warning("recovery.meta_lost rebuilt_from=volumes")


State = Literal["head", "sealed", "empty"]


class VolumeUsage(NamedTuple):
    """One slot of the cycle, and the life in it; sizes are bytes."""

    id: int
    generation: int
    state: State
    size: int
    used: int  # header included
    live_records: int
    live: int
    started_ms: int  # since the epoch, when it became the head; 0: empty, or not known

    @property
    def dead(self) -> int:
        """Bytes that are written and of no use any more."""
        return self.used - self.live


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """All volumes by their ids, and which is being written."""

    volumes: list[VolumeUsage]
    volume_size: int  # of one that is begun now
    volume_num: int
    active_id: int
    active_generation: int
    active_end: int  # where the next record goes

    @property
    def keys(self) -> int:
        """The number of keys, expired ones included."""
        return sum(volume.live_records for volume in self.volumes)

    @property
    def live(self) -> int:
        """Bytes of records that a get would find."""
        return sum(volume.live for volume in self.volumes)

    @property
    def dead(self) -> int:
        """Bytes that are written and of no use any more."""
        return sum(volume.dead for volume in self.volumes)

    @property
    def free(self) -> int:
        """Bytes not written: what is neither live nor dead; 0 after a shrinking."""
        return max(0, self.volume_num * self.volume_size - self.live - self.dead)


def measure(
    volumes: Mapping[int, Volume],
    active: Volume,
    index: Index,
    *,
    volume_size: int,
    volume_num: int,
    size_of: Callable[[Volume], int],
) -> StoreUsage:
    """
    Look at every slot that may hold a volume, and at every volume that holds a life.

    Args:
        volumes: By their lives.
        active: The one being written.
        index: Knows what is live.
        volume_size: Bytes of a volume that is begun now.
        volume_num: How many slots there are.
        size_of: Tells how long the file of a volume is; may raise `OSError`.
    """
    found = {
        volume_id: VolumeUsage(volume_id, 0, "empty", volume_size, 0, 0, 0, 0)
        for volume_id in range(volume_num)
    }
    for seq, volume in volumes.items():
        records, live = index.live(seq)
        found[volume.id] = VolumeUsage(
            volume.id,
            volume.generation,
            "head" if volume is active else "sealed",
            max(volume.end, _size_or_none(volume, size_of)),
            volume.end,
            records,
            live,
            volume.started_ms,
        )
    return StoreUsage(
        volumes=[found[volume_id] for volume_id in sorted(found)],
        volume_size=volume_size,
        volume_num=volume_num,
        active_id=active.id,
        active_generation=active.generation,
        active_end=active.end,
    )


def _size_or_none(volume: Volume, size_of: Callable[[Volume], int]) -> int:
    """Ask the disk; one that does not answer is no reason to know nothing else."""
    try:
        return size_of(volume)
    except OSError:
        return 0
