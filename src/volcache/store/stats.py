"""What a store has counted since it was opened, and the log lines that go with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from volcache.metrics import Histogram

if TYPE_CHECKING:
    from volcache.errors import DamagedRecordError

_log = logging.getLogger("volcache.store")

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

    def note_damaged(self, error: DamagedRecordError) -> None:
        """Count a record that does not check out."""
        self.damaged_records += 1
        _log_some("read.damaged count=%d error=%r", self.damaged_records, error)

    def note_read_error(self, error: OSError) -> None:
        """Count a read that the disk refused."""
        self.read_errors += 1
        self.read_errors_in_row += 1
        _log_some("read.failed count=%d error=%r", self.read_errors, error)
        if self.read_errors_in_row == READ_ERRORS_IN_ROW_MAX:
            _log.error("disk.not_ready errors_in_row=%d", self.read_errors_in_row)

    def note_disk_answers(self) -> None:
        """Take the disk for good again."""
        self.read_errors_in_row = 0
        _log.warning("disk.ready read_errors=%d", self.read_errors)

    def note_write_error(self, error: Exception) -> None:
        """Count a put or delete that the disk refused."""
        self.write_errors += 1
        _log_some("write.failed count=%d error=%r", self.write_errors, error)

    def note_rotation_error(self, error: Exception) -> None:
        """Count a rotation that the disk refused: a write error as well."""
        self.write_errors += 1
        _log_some("rotation.failed count=%d error=%r", self.write_errors, error)

    def note_sync_error(self, error: OSError) -> None:
        """Count a sync that failed: what was not synced is not promised any more."""
        self.sync_errors += 1
        _log_some("sync.failed count=%d error=%r", self.sync_errors, error)

    def note_index_error(self, error: OSError, *, volume: int) -> None:
        """Count an index file that could not be written; nothing is lost by it."""
        self.index_errors += 1
        if _is_logged(self.index_errors):
            _log.error(
                "index.failed count=%d volume=%d error=%r",
                self.index_errors,
                volume,
                str(error),
            )


def _log_some(event: str, count: int, error: Exception) -> None:
    """Log an event whose fields are `count` and `error`, unless there are many."""
    if _is_logged(count):
        _log.error(event, count, str(error))


def _is_logged(count: int) -> bool:
    """Tell whether one more of a kind is worth a line."""
    return count <= _LINES_OF_A_KIND or count & (count - 1) == 0
