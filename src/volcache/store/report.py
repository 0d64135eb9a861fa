"""What a start found, in counts; the first damages also in the log, with coordinates."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

_log = logging.getLogger("volcache.store")
_DAMAGE_LINES_MAX: Final = 20  # of the log, in one start


@dataclass(slots=True)
class RecoveryReport:
    """Counts of one start."""

    entries: int = 0  # lines of index files that counted
    scanned: int = 0  # records found by reading volumes
    torn: int = 0  # records cut off at the end of a volume
    damaged: int = 0  # headers, values and gaps that do not check out
    rebuilt: int = 0  # index files that were missing or damaged
    dropped: int = 0  # volumes given up because volume_num is smaller now
    stale: int = 0  # volumes whose header a power loss has set back to a life reclaimed
    meta_lost: bool = False  # META.txt was missing or damaged

    def note_damage(self, what: str, volume: int, start: int, end: int) -> None:
        """Count damage from byte `start` to `end` of a volume."""
        self.damaged += 1
        if self.damaged <= _DAMAGE_LINES_MAX:
            _log.warning(
                "recovery.damaged what=%s volume=%d offset=%d end=%d",
                what,
                volume,
                start,
                end,
            )

    def note_torn(self, volume: int, start: int) -> None:
        """Count a record that was being written when everything stopped."""
        self.torn += 1
        _log.info("recovery.torn_tail volume=%d offset=%d", volume, start)

    def note_rebuilt(self, volume: int, records: int) -> None:
        """Count an index file that the volume had to replace."""
        self.rebuilt += 1
        _log.warning("recovery.index_rebuilt volume=%d records=%d", volume, records)

    def note_dropped(self, volume: int, generation: int) -> None:
        """Count a volume that was given up."""
        self.dropped += 1
        _log.warning(
            "recovery.volume_dropped volume=%d generation=%d", volume, generation
        )

    def note_stale(self, volume: int, generation: int) -> None:
        """Count a volume that shows a life which was reclaimed before."""
        self.stale += 1
        _log.warning(
            "recovery.stale_volume volume=%d generation=%d", volume, generation
        )

    def note_meta_lost(self) -> None:
        """Remember that META.txt had to be made anew."""
        self.meta_lost = True
        _log.warning("recovery.meta_lost rebuilt_from=volumes")
