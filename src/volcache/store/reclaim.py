"""
Reclaim: which volume is reclaimed, how fast, and what of it is copied.

With the eviction policy "fifo" there is only ring main, and the oldest volume is reclaimed
as it is. With "frequency", `eviction.py` chooses the volume, and the records that are worth
it are copied before, some with each put: see `Evictor.continue_reclaim`. The core looks at
records and copies them (`native.Reclaim`).

Invariants:
    - Only the oldest volume of a ring is reclaimed, one at a time: the next reclaim begins
      when META.txt no longer names it.
    - All records of a key are in one ring, except that one in the probation volume that is
      reclaimed may have a copy in ring main, and what replaces that. Therefore no older
      record of a key becomes current when the record or tombstone that superseded it is
      reclaimed, and a start replays probation, then main.
    - META.txt names a probation volume as the first to be reclaimed before a record of it
      is copied. If a crash ends the reclaim, it is the first after a start. No other volume
      is reclaimed while it is written, unless all are.

Locking: the caller holds the lock of the store.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from volcache.errors import DiskFullError, StoreError
from volcache.store.format import Ring
from volcache.store.index import SHARES
from volcache.store.native import Reclaim
from volcache.store.rings import RING_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from volcache.store.eviction import Frequency, Thresholds
    from volcache.store.index import PolicyStats, Step
    from volcache.store.rings import KeptPurges, Rings
    from volcache.store.space import DiskSpace
    from volcache.store.syncs import Syncs
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

# A reclaim goes on after so many bytes were appended: the calls for it take no time then.
_STEP_BYTES: Final = 1 << 16
_NO_STEPS: Final = 1 << 62
# It begins when there is room for half a volume in the active one, and reads at least two
# bytes for each byte appended: it ends before the room is needed.
_ROOM_SHARE: Final = 2
_PACE_MIN: Final = 2
# It should end when there is room for this share of a volume: then what was copied is
# synced before the volume is dropped.
_SPARE_SHARE: Final = 8
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
        volume: The volume; it stays valid until it is dropped.
        targets: The volumes that got copies, and where the last one ends.
        is_drained: Nothing is left to be copied.
    """

    def __init__(
        self, volume: Volume, mean: float, policy: Frequency, evictor: Evictor
    ) -> None:
        """
        Begin; nothing is read.

        Args:
            volume: Is sealed.
            mean: Size of a live record.
            policy: Says what is kept.
            evictor: Has the rings, and more room for copies.
        """
        self.volume = volume
        self.targets: dict[Volume, int] = {}
        self.is_drained = False
        self._mean, self._policy, self._evictor = mean, policy, evictor
        self._index, self._stats = evictor.rings.index, evictor.rings.stats
        self._reclaim = Reclaim(self._index, volume.seq, volume.id)
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
        else:
            self._copy(min(self._at + budget, self.volume.end), _COPIED_MAX, target)

    def finish(self, target: Volume | None) -> None:
        """Do all the work that is left; what would take too long is dropped."""
        self._search(SHARES)
        self._copy(self.volume.end, _COPIED_AT_ONCE_MAX, target)
        if not self.is_drained:
            self._copy(self.volume.end, _COPIED_AT_ONCE_MAX, None)

    def _search(self, shares: int) -> None:
        shares = min(shares, SHARES - self._shares)
        if shares:
            disposition = self._reclaim.collect(shares, self._thresholds())
            self._stats.disposition = self._stats.disposition.plus(disposition)
            self._shares += shares

    def _thresholds(self) -> Thresholds:
        tokens = self._index.policy_stats().tokens
        return self._policy.thresholds(self.volume.use.ring, tokens, self._mean)

    def _copy(self, end: int, copy_bytes: int, target: Volume | None) -> None:
        """Look at the records before an offset, and copy those that are kept."""
        self._at, thresholds = end, self._thresholds()
        now_ms = self._evictor.rings.clock.now_ms()
        why = ""
        while why not in {"more", "done"}:
            target = target if self._copies else None
            step = self._reclaim.step(end, copy_bytes, thresholds, target, now_ms)
            why = step.why
            copy_bytes -= step.disposition.copied_bytes
            self._stats.disposition = self._stats.disposition.plus(step.disposition)
            if target is not None and step.disposition.copied:
                self.targets[target] = target.end
            if step.error is not None:
                self._count_error(step, target)
            if why == "full":
                target = self._evictor.more_room()
        self.is_drained = why == "done"

    def _count_error(self, step: Step, target: Volume | None) -> None:
        error = step.error
        if step.why == "refused" and target is not None and isinstance(error, OSError):
            self._evictor.syncs.refused(target, error)
            self._copies = False
        elif isinstance(error, OSError):
            self._stats.count_read_error(error)
            self._unreadable += 1
        elif error is not None:
            self._stats.count_reclaim_damage(error)
            self._damaged += 1
        if self._unreadable >= _UNREADABLE_MAX or self._damaged >= _DAMAGED_MAX:
            self._copies = False


class Evictor:
    """
    Chooses the volumes to be reclaimed, and drops them.

    Attributes (read-only for others):
        rings, syncs: Of the log.
        reclaimer: The reclaim under way.
        step_bytes: `continue_reclaim` is to be called when so many bytes were appended.
    """

    def __init__(
        self,
        rings: Rings,
        space: DiskSpace,
        syncs: Syncs,
        policy: Frequency | None,
        purges: KeptPurges,
        start_for_relocated: Callable[[], Volume],
    ) -> None:
        """
        Reclaim nothing yet.

        Args:
            rings: Has the volumes.
            space: Has the free ids.
            syncs: Syncs copies.
            policy: For the volumes of the settings; None: "fifo".
            purges: Are dropped with the volumes.
            start_for_relocated: Starts a volume of ring main.
        """
        self.rings, self.syncs = rings, syncs
        self._space, self._purges, self._last_policy = space, purges, policy
        self._start_for_relocated = start_for_relocated
        self.reclaimer: Reclaimer | None = None
        self.step_bytes = _NO_STEPS
        if policy is not None:
            self.step_bytes = min(_STEP_BYTES, max(1, space.volume_size // 64))
        # Volumes of ring main in which a killed process may have left copies that are not
        # synced, up to an offset.
        self._relocated_before = {volume: volume.end for volume in rings.of(Ring.MAIN)}
        # How much had been put when each of the last volumes was started, and when.
        self._history: deque[tuple[int, int]] = deque()
        # How many hits in the ghost there had been when reads of older records began to be
        # counted; None: they are not counted yet.
        self._ghost_hits_before: int | None = None

    @property
    def policy(self) -> Frequency | None:
        """The policy for the volumes that the disk has space for; None: "fifo"."""
        policy = self._last_policy
        capacity = self._space.allowed * self._space.volume_size
        if policy is not None and policy.capacity != capacity:
            policy = self._last_policy = policy.resized(capacity)
        return policy

    @property
    def put_bytes(self) -> int:
        """Bytes of records that were put or deleted since the store was opened."""
        return sum(self.rings.appended()) - self.rings.stats.disposition.copied_bytes

    # --- Which volume --------------------------------------------------------------

    def next_to_drop(self) -> Volume | None:
        """Return the volume to be dropped next; None: all are being written."""
        if self.reclaimer is not None:
            return self.reclaimer.volume
        if self.policy is not None:
            return self._victim(self.policy)
        oldest = (self.rings.of(Ring.PROBATION) or self.rings.of(Ring.MAIN))[0]
        return None if oldest in self.rings.actives else oldest

    def _victim(self, policy: Frequency) -> Volume | None:
        """Return the volume to be reclaimed next; None: there is only one."""
        probation, main = self.rings.of(Ring.PROBATION), self.rings.of(Ring.MAIN)
        if probation and probation[0].seq <= self.rings.manifest.probation_first:
            return probation[0]
        actives = self.rings.actives
        sealed = [[v for v in ring if v not in actives] for ring in (main, probation)]
        held, has_sealed_main = sum(v.end for v in probation), bool(sealed[Ring.MAIN])
        ring = policy.victim(held, has_sealed_main=has_sealed_main)
        found = sealed[ring] or sealed[1 - ring] or probation
        return found[0] if found else None

    def takes_free_id(self, ring: Ring) -> bool:
        """
        Return whether the next volume of a ring gets an id without a volume.

        With "frequency", the last such id is for copies: without it, those that find no
        room in the active volume would be lost. Ring main may take it while they are made,
        and a ring without a volume at any time.
        """
        free = self._space.free_ids
        if self.policy is None or self.rings.actives[ring] is None:
            return free > 0
        is_copying = self.reclaimer is not None and not self.reclaimer.is_drained
        return free > (ring is not Ring.MAIN or not is_copying)

    # --- The reclaim under way -----------------------------------------------------

    def continue_reclaim(self, appended: int) -> None:
        """
        Go on with the reclaim under way, or begin one if room will be needed soon.

        Bounded work, after a put that is done: what fails is counted, and ends the reclaim
        or this step.

        Args:
            appended: The bytes appended since the last call.
        """
        if self.rings.refusal:
            return
        try:
            self._continue(appended)
        except (OSError, MemoryError, StoreError) as error:
            self.rings.count_postponed(error)

    def _continue(self, appended: int) -> None:
        reclaimer = self.reclaimer or self._begin_if_due()
        if reclaimer is None:
            return
        if reclaimer.is_drained:
            self._drop_early(reclaimer.volume)
            return
        room = self._room(0) - self._space.volume_size // _SPARE_SHARE
        pace = max(_PACE_MIN, reclaimer.remaining / max(room, appended))
        reclaimer.advance(int(appended * pace), self.rings.actives[Ring.MAIN])
        for volume in reclaimer.targets:
            if volume.is_index_due:
                self.rings.write_index(volume)

    def finish_reclaim(self, ring: Ring) -> None:
        """Finish a reclaim at once if the next volume of a ring needs the id."""
        if self.policy is None or self.takes_free_id(ring):
            return
        reclaimer = self.reclaimer or self._begin(self.policy)
        if reclaimer is not None and not reclaimer.is_drained:
            reclaimer.finish(self.rings.actives[Ring.MAIN])

    def _begin_if_due(self) -> Reclaimer | None:
        """Begin a reclaim if room will be needed soon."""
        rings, policy = self.rings, self.policy
        room = self._room(self._space.free_ids - 1)
        # Of four ids, only two may have been used.
        has_sealed = len(rings.volumes) > len(rings.written)
        is_due = has_sealed and room < self._space.volume_size // _ROOM_SHARE
        return self._begin(policy) if policy is not None and is_due else None

    def _room(self, free: int) -> int:
        """
        Return how much can be appended, at least, until `free` + 1 ids are needed.

        A ring without an active volume takes the id for copies, so it needs none.
        """
        rooms = sorted(volume.room for volume in self.rings.written)
        return self._space.volume_size if free >= len(rooms) else sum(rooms[: free + 1])

    def _begin(self, policy: Frequency) -> Reclaimer | None:
        """
        Choose a volume, and begin to reclaim it; None: there is none.

        Raises:
            MemoryError: There is none for it.
            OSError: META.txt does not name the volume as the first to be reclaimed.
        """
        rings, volume = self.rings, self._victim(policy)
        if volume is None:
            return None
        count = rings.index.count
        rings.index.size_ghost(count)
        live_bytes = sum(rings.index.live(seq)[1] for seq in rings.volumes)
        if volume in rings.actives:  # All are, or it may be outdated.
            rings.seal(volume)
        reclaimer = Reclaimer(volume, live_bytes / max(1, count), policy, self)
        first = rings.manifest.probation_first
        if volume.use.ring is Ring.PROBATION and volume.seq > first:
            rings.write_manifest(probation_first=volume.seq)
        if volume in rings.actives:
            self.syncs.end_writing(volume)
        ring = RING_NAMES[volume.use.ring]
        _logger.debug(
            "reclaim.started volume=%d seq=%d ring=%s", volume.id, volume.seq, ring
        )
        self.reclaimer = reclaimer
        return reclaimer

    def more_room(self) -> Volume | None:
        """Return the active volume of ring main with more room, or a new one."""
        active = self.rings.actives[Ring.MAIN]
        if active is not None and active.unallocated and not self.rings.unresolved:
            with suppress(OSError, DiskFullError):
                self._space.extend(active)
                return active
        if not self._space.free_ids:
            return None
        try:
            volume = self._start_for_relocated()
            self.rings.resolve_failed_writes()
        except (OSError, MemoryError, StoreError) as error:
            self.rings.count_postponed(error)
            return None
        return volume

    def _drop_early(self, volume: Volume) -> None:
        """Drop a volume before its id is needed, if two will be needed soon."""
        rings, free = self.rings, self._space.free_ids
        if free and self._room(free) >= self._space.volume_size // _ROOM_SHARE:
            return
        if self.syncs.mode == "periodic" and self._unsynced_relocated():
            self.syncs.wanted.set()
            return
        if volume.seq == max(rings.volumes):
            return  # LOCK must not name a volume that is newer than META.txt.
        self.sync_relocated()
        rings.write_manifest(set(rings.volumes.values()) - {volume})
        with rings.completing("the removal of a volume"):
            self.drop([volume])

    def drop(self, volumes: list[Volume], *, used_ids: Collection[int] = ()) -> None:
        """
        Drop volumes from memory that META.txt no longer names; this does not fail.

        Args:
            volumes: They.
            used_ids: Their files stay as they are; another volume says that they are old.
        """
        for volume in volumes:
            self.rings.drop(volume)
            if volume.id not in used_ids:
                self._space.free(volume)
            self._space.record_dropped(volume)
            self.reclaimer = None
        self._purges.drop()

    # --- Copies --------------------------------------------------------------------

    def sync_relocated(self) -> None:
        """Sync what was copied, before the originals are dropped."""
        if self.syncs.mode == "none":
            return
        for volume in self._unsynced_relocated():
            self.syncs.sync_volume(volume)
        self._relocated_before.clear()

    def _unsynced_relocated(self) -> list[Volume]:
        """Return the volumes with copies that a power loss could still take."""
        targets = self.reclaimer.targets if self.reclaimer else {}
        ends = self._relocated_before | targets
        return [v for v, at in ends.items() if self.rings.has(v) and v.synced_end < at]

    # --- Keys and the single ring --------------------------------------------------

    def record_displaced(self) -> None:
        """
        Go on after the index has lost an entry for want of memory.

        The ring of its key is not known. What is put without an entry goes to ring main
        from now on, and what ring probation has now is reclaimed first.

        Raises:
            StoreIOError: META.txt could not be written.
        """
        probation = self.rings.of(Ring.PROBATION)
        if probation:
            with self.rings.refusals_counted("replace META.txt"):
                self.rings.write_manifest(probation_first=probation[-1].seq)
        self.rings.index.accept_displaced()

    def record_start(self) -> None:
        """Find out which records a single ring would have reclaimed by now."""
        if self.policy is None:
            return
        put, history = self.put_bytes, self._history
        limit = put - self.policy.capacity
        history.append((put, self.rings.clock.now_us()))
        while len(history) > 1 and history[1][0] <= limit:
            history.popleft()
        oldest_put, time_us = history[0]
        if oldest_put <= limit:
            self.rings.index.count_older(time_us)
            if self._ghost_hits_before is None:
                self._ghost_hits_before = self.rings.index.policy_stats().ghost_hits

    def gained_hits(self, policy_stats: PolicyStats) -> int | None:
        """Return how many more reads were hits than with a single ring, if it is known."""
        if self._ghost_hits_before is None:
            return None
        return policy_stats.older_hits - (
            policy_stats.ghost_hits - self._ghost_hits_before
        )
