"""
One reclaim under way: how far it is, and what it has to do next.

The core looks at records and copies them (`native.Reclaim`); this module decides how many
of them at a time, where the copies go, and what follows from an error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from volcache.store.index import SHARES
from volcache.store.native import Reclaim

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.errors import StoreIOError
    from volcache.store.clock import Clock
    from volcache.store.eviction import Frequency, Terms
    from volcache.store.index import Step
    from volcache.store.native import Index
    from volcache.store.stats import StoreStats
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

# Copied by one call: at 100 MB/s, 10 ms.
_COPIED_MAX: Final = 1 << 20
# Copied when the room is needed at once, and the rest is dropped: 40 ms.
_COPIED_AT_ONCE_MAX: Final = 4 << 20
# The search of the index counts as much work as so large a share of the volume.
_SEARCH_SHARE: Final = 4
# After so many reads that the disk has refused, nothing more is copied.
_UNREADABLE_MAX: Final = 3
# After so many records that have failed a check: they were read in vain.
_DAMAGED_MAX: Final = 64


class Reclaimer:
    """
    The reclaim of one volume.

    Attributes (read-only for others):
        volume: The volume; it stays valid until the log drops it.
        targets: The volumes that got copies, and where the last one ends.
        is_drained: Nothing is left to be copied.
    """

    def __init__(  # noqa: PLR0913 - The parts of the log.
        self,
        volume: Volume,
        mean: float,
        *,
        index: Index,
        policy: Frequency,
        stats: StoreStats,
        clock: Clock,
        refused: Callable[[Volume, OSError], StoreIOError],
        more_room: Callable[[], Volume | None],
    ) -> None:
        """
        Begin; nothing is read.

        Args:
            volume: Is sealed.
            mean: Bytes of both rings for each live record.
            index: Has the positions.
            policy: Says what is kept.
            stats: Counts what happens to records.
            clock: Says what has expired.
            refused: Counts an append that failed.
            more_room: Returns another volume for copies when one is full, if there is one.
        """
        self.volume = volume
        self.targets: dict[Volume, int] = {}
        self.is_drained = False
        self._mean = mean
        self._index = index
        self._policy = policy
        self._stats = stats
        self._clock = clock
        self._refused = refused
        self._more_room = more_room
        self._reclaim = Reclaim(index, volume.seq, volume.id, volume.end)
        self._shares = 0  # of the index that were searched
        self._at = 0  # records that begin before were looked at
        self._copies = True
        self._unreadable = self._damaged = 0

    @property
    def remaining(self) -> int:
        """The work that is left, in bytes of the volume."""
        search = self.volume.end * (SHARES - self._shares) // (SHARES * _SEARCH_SHARE)
        return 0 if self.is_drained else search + self.volume.end - self._at

    @property
    def progress(self) -> float:
        """The share of the work that is done, 0 to 1."""
        whole = self.volume.end + self.volume.end // _SEARCH_SHARE
        return 1 - self.remaining / whole

    def advance(self, budget: int, target: Volume | None) -> None:
        """
        Do some of the work.

        Args:
            budget: In bytes of the volume.
            target: Gets the copies; None: there are none.
        """
        if self._shares < SHARES:
            share_bytes = self.volume.end // (SHARES * _SEARCH_SHARE) + 1
            self._search(budget // share_bytes + 1)
            return
        self._at = min(self._at + budget, self.volume.end)
        self._look(self._at, _COPIED_MAX, target)

    def finish(self, target: Volume | None) -> None:
        """Do all the work that is left; what would take too long is dropped."""
        self._search(SHARES)
        self._at = self.volume.end
        self._look(self._at, _COPIED_AT_ONCE_MAX, target)
        if not self.is_drained:
            self._look(self._at, _COPIED_AT_ONCE_MAX, None)

    def _search(self, shares: int) -> None:
        shares = min(shares, SHARES - self._shares)
        if shares:
            fate = self._reclaim.collect(shares, self._terms())
            self._stats.fate = self._stats.fate.plus(fate)
            self._shares += shares

    def _terms(self) -> Terms:
        tokens = self._index.heat().tokens
        return self._policy.terms(self.volume.use.ring, tokens, self._mean)

    def _look(self, end: int, copy_bytes: int, target: Volume | None) -> None:
        """Look at the records before an offset."""
        if not self._copies:
            target = None
        terms = self._terms()
        now_ms = self._clock.now_ms()
        why = ""
        while why not in {"more", "done"}:
            step = self._reclaim.step(end, copy_bytes, terms, target, now_ms)
            why = step.why
            copy_bytes -= step.fate.copied_bytes
            self._stats.fate = self._stats.fate.plus(step.fate)
            if target is not None and step.fate.copied:
                self.targets[target] = target.end
            if step.error is not None:
                self._count_error(step, target)
            if why == "full":
                target = self._more_room()
            if not self._copies:
                target = None
        self.is_drained = why == "done"

    def _count_error(self, step: Step, target: Volume | None) -> None:
        error = step.error
        if step.why == "refused" and target is not None and isinstance(error, OSError):
            self._refused(target, error)
            self._copies = False
            return
        if isinstance(error, OSError):
            self._stats.count_read_error(error)
            self._unreadable += 1
        elif error is not None:
            self._stats.count_reclaim_damage(error)
            self._damaged += 1
        self._copies = (
            self._unreadable < _UNREADABLE_MAX and self._damaged < _DAMAGED_MAX
        )
