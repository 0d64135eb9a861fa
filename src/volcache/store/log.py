"""
The log: which volumes there are, which ones are written, rotation and reclaim.

Volume ids are numbers from 0 to `volume_num - 1`; sequence numbers order all volumes by
age. Each volume is in a *ring*, main or probation, and each ring has an active volume,
which is written. When it has no room for the next record, the log rotates: an unused id
becomes the active volume, with a new salt. If all ids are used, it gets that of the volume
that is reclaimed. With the eviction policy "fifo" there is only ring main, and the oldest
volume is reclaimed as it is. With "frequency", `eviction.py` chooses the volume, and the
records that are worth it are copied before, some with each put: see `continue_reclaim`.

The steps of a rotation, and what a crash after each of them leaves:
    1. Disk space for the new volume is allocated, unless the file of the id has it already.
       Nothing has changed.
    2. The old active volume is sealed: its index file is complete. The next start rotates
       again.
    3. The index file of the id is removed. The data file still holds the volume that is
       reclaimed; a start would scan it. A directory in the place of the file stays.
    4. META.txt names the new active volume. The reclaimed volume has become invalid.
    5. The header of the new volume is written, and its empty index file. A start would
       write both from what META.txt says. Without an index file, the volume still works.
An index file that reappears after a power loss is ignored: its first line has the salt.
The reclaimed volume is removed from memory last, so that a step that fails leaves a store
that serves everything it served before.

A volume raises what the disk refuses; this module decides what follows. It contains
nothing about keys.

If the disk has less space than `volume_num` volumes need, it determines how many there
are: an id without space is not used, as if there was none, and the oldest volume is
reclaimed instead. The space is looked at when a volume is to be started, so that their
number grows when there is more. A volume keeps the space of its file after it was dropped.
If the disk is so full that not even META.txt can be replaced, the oldest volume is *given
up*: its index file is removed, its file is emptied, and then META.txt is replaced, without
it. It may be the active one of ring probation, if that is all there is beside ring main. A
crash in between leaves a volume that META.txt names, but that has no records: a start
drops it, and older ones of its ring, of which there are none.

Invariants:
    - `volumes` has every valid volume; the active one of a ring is the newest of it.
    - Only the oldest volume of a ring is reclaimed, one at a time: the next reclaim begins
      when META.txt no longer names it.
    - All records of a key are in one ring, except that one in the probation volume that is
      reclaimed may have a copy in ring main, and what replaces that. Therefore no older
      record of a key becomes current when the record or tombstone that superseded it is
      reclaimed, and a start replays probation, then main.
    - META.txt names a probation volume as the first to be reclaimed before a record of it
      is copied. If a crash ends the reclaim, it is the first after a start. No other volume
      is reclaimed while it is written, unless all are.
    - What an append that failed may have left is not found by a start, before anything
      else is appended, or a deletion answered that finds nothing; see `settle`.
    - What was purged is in no volume that is newer than the purge; see `purges.py`.

Locking: the caller holds the lock of the store, except for `sync`, `probe` and
`record_expiry`.
"""

from __future__ import annotations

import errno
import logging
import random
import secrets
import threading
from collections import deque
from contextlib import contextmanager, suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.errors import (
    DiskFullError,
    ReadOnlyError,
    StoreIOError,
    TooManyPurgesError,
    ValueTooLargeError,
)
from volcache.store.disk import DiskSpace, is_short
from volcache.store.files import SyncFailedError
from volcache.store.format import (
    VALUE_BYTES_MAX,
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeUse,
)
from volcache.store.index_file import remove_index_file
from volcache.store.progress import Progress
from volcache.store.purges import (
    PURGES_MAX,
    Purge,
    PurgeList,
    PurgeStay,
    encode_purges,
    next_file,
)
from volcache.store.reclaimer import Reclaimer
from volcache.store.stats import (
    EvictionUsage,
    RingUsage,
    StoreUsage,
    VolumeUsage,
)
from volcache.store.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.eviction import Frequency
    from volcache.store.manifest import ListedPurges
    from volcache.store.recovery import Recovered
    from volcache.store.stats import State

SyncMode = Literal["none", "periodic", "always"]

_logger = logging.getLogger("volcache.store")
_PROBE_BYTES: Final = 4096
# A start after a kill may begin this much later than the time at the kill.
_PROGRESS_AHEAD_US: Final = 1_000_000
# Of a store that is not written, the time is noted this often: a start after a kill must
# not begin much earlier, if the clock of the machine was set back meanwhile.
_PROGRESS_EVERY_US: Final = 60_000_000
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
# If giving up a volume has freed nothing, none is given up for this time.
_GIVE_UP_PAUSE_NS: Final = 60_000_000_000


class LogOptions(NamedTuple):
    """How the volumes are used."""

    volume_size: int  # bytes of a volume that is started from now on
    volume_num: int
    sync_mode: SyncMode
    policy: Frequency | None  # None: "fifo"
    refusal: str = ""  # why nothing can be written, as a sentence; empty: it can


class CircularLog:
    """
    The volumes of one mount point.

    Attributes (read-only for others):
        volumes: The valid volumes by sequence number. The dict object never changes.
        actives: The volumes that are written, by ring. None: the ring has none yet; ring
            main always has one. The list object never changes.
        manifest: The contents of META.txt.
        sync_wanted: Set when something waits for `sync`, in the mode "periodic".
        step_bytes: `continue_reclaim` is to be called when so many bytes were appended.
        purges: Which records are misses although the index has them.
        dropped_purge_us: The time of the newest purge that was dropped from `purges`
            because all records that it covered were reclaimed; -1: there was none.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        recovered: Recovered,
        options: LogOptions,
        clock: Clock,
    ) -> None:
        """Continue with what recovery has found, and allocate the active volumes."""
        self._directory = directory
        self._fs = directory.fs
        self._lock = recovered.index.lock
        self._stats = recovered.stats
        self._volume_size, self._volume_num, self._sync_mode = options[:3]
        self._last_policy, self._refusal = options.policy, options.refusal
        self._clock = clock
        self._index = recovered.index
        self._descriptors = recovered.descriptors
        self.manifest = recovered.manifest
        self.volumes = {volume.seq: volume for volume in recovered.volumes}
        self._last_progress_us = 0  # the time in the last one written to LOCK
        # Volumes of which a start may find more than it should: an append or a sync has
        # failed, or META.txt names one that was given up.
        self._unsettled: set[Volume] = set()
        # Sealed volumes that are not synced; `sync` removes them and closes their files.
        self._unsynced: deque[Volume] = deque()
        # How much had been put when each of the last volumes was started, and when.
        self._history: deque[tuple[int, int]] = deque()
        self.sync_wanted = threading.Event()
        # How many hits in the ghost there had been when reads of older records began to be
        # counted; None: they are not counted yet.
        self._ghost_hits_before: int | None = None
        self._reclaimer: Reclaimer | None = None
        # Volumes of ring main in which a killed process may have left copies that are not
        # synced, up to an offset.
        self._copied_before: dict[Volume, int] = {}
        self._bytes_since_reclaim = (
            0  # bytes that were appended since the last step of a reclaim
        )
        self.actives: list[Volume | None] = [None, None]
        # The newest volume of each ring, also when it was reclaimed.
        self._newest: list[Volume | None] = [None, None]
        self._last_seq = recovered.newest_seq  # of all volumes there ever were
        self.dropped_purge_us = -1
        self._set_purges(recovered.purges)
        self._resume(recovered.volumes)

    def _resume(self, volumes: list[Volume]) -> None:
        """Go on with the volumes that recovery has found, oldest first."""
        self._space = DiskSpace(
            self._directory,
            self._descriptors,
            self.volumes,
            self._stats,
            volume_size=self._volume_size,
            volume_num=self._volume_num,
        )
        self._give_up_again_ns = 0
        self.step_bytes = _NO_STEPS
        if self._last_policy is not None:
            self._index.set_policy(self._last_policy.rates)
            self.step_bytes = min(_STEP_BYTES, max(1, self._volume_size // 64))
        # Volumes of ring probation up to this one are reclaimed before any of ring main.
        # With "fifo" that is all of them: what is put from now on replaces records there.
        self._probation_first = self.manifest.probation_first
        for volume in volumes:
            self._bind(volume)
            if volume.use.ring is Ring.MAIN or volume.seq > self._probation_first:
                self.actives[volume.use.ring] = volume
        self._appended_before = self._appended
        self._opened_us = self._clock.now_us()
        self._appended_at_open = [v.appended if v else 0 for v in self._newest]
        if self._refusal:
            return
        self._allocate_actives()
        self.record_progress()
        # A process that was killed has not synced what it wrote last.
        if self._sync_mode == "periodic":
            self._unsynced.extend(v for v in volumes if v not in self.actives)
        elif self._sync_mode == "always":
            self._sync_all()
        self._copied_before = {
            volume: volume.end for volume in volumes if volume.use.ring is Ring.MAIN
        }

    @property
    def active(self) -> Volume:
        """The active volume that was started last."""
        return max(self._actives(), key=lambda volume: volume.seq)

    def _actives(self) -> list[Volume]:
        return [volume for volume in self.actives if volume is not None]

    def _open_volumes(self) -> list[Volume]:
        """Return the volumes to which records may be appended."""
        return [
            volume
            for volume in self._actives()
            if volume.lacks_header or not (volume.is_retired or volume.is_sealed)
        ]

    def _ring(self, ring: Ring) -> list[Volume]:
        """Return the valid volumes of a ring, oldest first."""
        return [
            volume
            for _, volume in sorted(self.volumes.items())
            if volume.use.ring is ring
        ]

    @property
    def _appended(self) -> int:
        """Bytes of records that were ever appended to the volumes known here."""
        return sum(volume.appended for volume in self._newest if volume is not None)

    @property
    def _policy(self) -> Frequency | None:
        """The policy for the volumes that the disk has space for; None: "fifo"."""
        policy, capacity = self._last_policy, self._space.allowed * self._volume_size
        if policy is not None and policy.capacity != capacity:
            policy = self._last_policy = policy.resized(capacity)
        return policy

    @property
    def put_bytes(self) -> int:
        """Bytes of records that were put or deleted since the store was opened."""
        reinserted = self._stats.fate.copied_bytes
        return self._appended - self._appended_before - reinserted

    def _allocate_actives(self) -> None:
        """At startup: without disk space, log it and serve reads."""
        for active in self._actives():
            if active.is_sealed or active.is_retired:
                continue
            try:
                self._space.allocate(active, max(self._volume_size, active.end))
                active.trim()
            except (OSError, DiskFullError) as error:
                self._stats.count_write_error(error)

    # --- Appending -----------------------------------------------------------------

    def refused(self, volume: Volume, error: OSError) -> StoreIOError:
        """Count an append that failed, and let no start find its record."""
        self.hold(volume)
        if isinstance(error, SyncFailedError):
            what = "sync"
            # The record is there until META.txt says where the volume ends.
            with suppress(OSError):
                volume.erase_refused(sync=False)
            self._retire_unsynced(volume, error)
        else:
            what = "write"
            self._stats.count_write_error(error)
        with suppress(OSError):  # The next append tries it again.
            self._settle()
        return _refusal_of(error, what)

    def hold(self, volume: Volume) -> None:
        """Append nothing to any volume before this one is settled."""
        self._unsettled.add(volume)
        for active in self._actives():
            active.hold()

    def settle(self) -> None:
        """
        Let no start find what was refused.

        Before that nothing may be acknowledged, also not a deletion that finds nothing: a
        start would take the record for the newest one of its key.

        Raises:
            StoreIOError: The disk still refuses.
        """
        if self._unsettled:
            with self._refusals_counted("write"):
                try:
                    self._settle()
                except OSError as error:
                    if not self._give_up_oldest(error):
                        raise
                    self._settle()

    def _settle(self) -> None:
        """
        Erase what is behind the end of a volume, or write to META.txt where it ends.

        Only the second helps after a failed sync, because a later one proves nothing, and
        if a volume was given up.

        Raises:
            OSError: The disk still refuses; what is not settled stays so.
        """
        for volume in self._unsettled.copy():
            if volume.lacks_header:
                volume.write_header()
                self._open_index_file(volume)
            if volume in self._open_volumes():
                with suppress(OSError):
                    volume.erase_refused(sync=self._sync_mode == "always")
                    self._unsettled.discard(volume)
        closed = self._unsettled.copy()
        if closed:
            others = [v for v in self._open_volumes() if v not in closed]
            self._write_manifest(written=others)
            for volume in closed:
                self._seal(volume)
        self._release()

    def _release(self) -> None:
        """Append again if all volumes are settled."""
        if not self._unsettled:
            for active in self._actives():
                active.release()

    def write_index(self, volume: Volume) -> None:
        """Write pending entries; if that fails, a start finds the records by a scan."""
        with self._index_errors_counted(volume):
            volume.write_index()
        self.record_progress()

    def record_progress(self, *, ahead_us: int = 0) -> None:
        """
        Write to LOCK how far the active volumes were written, and the time.

        Args:
            ahead_us: Added to the time, so that the next calls need not write it.
        """
        if self._refusal or self._unsettled:
            return  # A start takes a volume that LOCK names without its header for another.
        time_us = self._clock.now_us() + ahead_us
        store_id, boot = self.manifest.store_id, self.manifest.boot
        lines = [
            Progress(store_id, active.seq, active.last_salt, active.end, time_us, boot)
            for active in self._actives()
        ]
        # It only helps a start to notice replaced files: the next one may succeed.
        with suppress(OSError):
            self._directory.write_progress(lines[0], lines[-1])
            self._last_progress_us = time_us

    def _bind(self, volume: Volume) -> None:
        """Add a volume, the newest of its ring, to what the index can read."""
        ring = volume.use.ring
        before = self._newest[ring]
        volume.born = 0 if before is None else before.appended
        self._newest[ring] = volume
        self._last_seq = max(self._last_seq, volume.seq)
        self._index.bind_volume(volume.seq, volume.fd, volume.id, volume.salts)
        self._index.set_age(volume.seq, ring, volume.born, volume.end)

    def record_expiry(self, expires_ms: int) -> None:
        """Let a later start know that a record has expired, whatever the clock says."""
        if expires_ms * 1000 <= self._last_progress_us:
            return
        with self._lock:
            if expires_ms * 1000 > self._last_progress_us:
                self.record_progress(ahead_us=_PROGRESS_AHEAD_US)

    # --- Rotation ------------------------------------------------------------------

    def with_room(self, ring: Ring, size: int, length: int) -> Volume:
        """
        Return the active volume of a ring with room for a record; rotate if needed.

        A rotation may drop the record that the new one supersedes, or copy it to the other
        ring: then the caller has to ask for the ring again.

        Args:
            ring: The ring.
            size: Of the record, bytes.
            length: Of its value, bytes.

        Raises:
            ValueTooLargeError: The record does not fit an empty volume.
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In all cases the store continues as before.
        """
        active = self.actives[ring]
        if active is not None and active.end + size <= active.capacity:
            return active
        self.settle()
        room = self._volume_size - VOLUME_HEADER_BYTES
        if size > room or length > VALUE_BYTES_MAX:
            limit = min(VALUE_BYTES_MAX, max(0, room - (size - length)))
            raise ValueTooLargeError(size=length, limit=limit)
        with self._refusals_counted("start a volume"):
            volume = self._with_space(lambda: self._make_room(ring, size))
        self.settle()
        return volume

    def _make_room(self, ring: Ring, size: int) -> Volume:
        """Return the active volume of a ring with room, an allocated or a new one."""
        active = self.actives[ring]
        if active is not None and not (
            active.capacity or active.is_sealed or active.is_retired
        ):
            # There was no disk space when the store was opened.
            self._space.allocate(active, max(self._volume_size, active.end))
        if active is None or active.end + size > active.capacity:
            self._finish_reclaim(ring)
            active = self.actives[ring]  # May be new, for copies.
        if active is not None and active.end + size <= active.capacity:
            return active
        if (
            ring is Ring.PROBATION
            and not self._ring(ring)
            and not self._takes_free_id(ring)
            and self._oldest_to_drop() is None
        ):
            # The disk holds one volume only. No record in ring probation can be outdated
            # by one in ring main, because there is none.
            return self._make_room(Ring.MAIN, size)
        return self._rotate(ring, size)

    def flush(self) -> None:
        """
        Drop every record: start a volume and make it the oldest valid one.

        Constant work, whatever the number of keys.

        Raises:
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused. In both cases nothing was dropped.
        """
        with self._refusals_counted("flush"):
            self._with_space(lambda: self._rotate(Ring.MAIN, is_flush=True))
        _logger.warning("store.flushed volume=%d", self.active.id)

    @contextmanager
    def _refusals_counted(self, what: str) -> Iterator[None]:
        """Count what the disk refuses, and raise it as an error of the store."""
        if self._refusal:
            raise ReadOnlyError(self._refusal)
        try:
            yield
        except DiskFullError as error:
            self._stats.count_rotation_error(error)
            raise
        except OSError as error:
            self._stats.count_rotation_error(error)
            raise _refusal_of(error, what) from error

    def _is_full(self, error: OSError | DiskFullError) -> bool:
        """
        Return whether work that can wait was refused for want of space.

        That is no error. A reclaim is begun when room is needed; lines of an index file
        are written with the next ones, or a start scans the volume.
        """
        return isinstance(error, DiskFullError) or is_short(
            self._fs, self._directory.data, error
        )

    @contextmanager
    def _index_errors_counted(self, volume: Volume) -> Iterator[None]:
        """Count what the disk refuses of an index file, and continue without it."""
        try:
            yield
        except OSError as error:
            if not self._is_full(error):
                self._stats.count_index_error(error, volume=volume.id)

    # --- The space of the disk -----------------------------------------------------

    def _with_space(self, attempt: Callable[[], Volume]) -> Volume:
        """
        Start a volume; if the disk is full, reclaim or give up older ones for it.

        Raises:
            DiskFullError: There is no older one, or that did not help.
            OSError: The disk refused.
        """
        space = self._space
        space.begin()
        while True:
            try:
                return attempt()
            except (DiskFullError, OSError) as error:
                is_full = isinstance(error, DiskFullError)
                if is_full and space.room and self._oldest_to_drop() is not None:
                    # It has less than it says: reclaim the oldest, which has its space.
                    space.room = 0
                elif self._give_up_oldest(error):
                    pass
                elif is_full and not space.may_be_smaller:
                    space.may_be_smaller = True
                else:
                    raise

    def _oldest_to_drop(self) -> Volume | None:
        """Return the volume to be dropped next; None: all are being written."""
        if self._reclaimer is not None:
            return self._reclaimer.volume
        if self._policy is not None:
            return self._victim(self._policy)
        oldest = (self._ring(Ring.PROBATION) or self._ring(Ring.MAIN))[0]
        return None if oldest in self.actives else oldest

    def make_space(self, error: OSError) -> bool:
        """
        Give up the oldest volume, if that may let a write succeed that was refused.

        Some file systems allocate space that they do not have.
        """
        if isinstance(error, SyncFailedError):
            return False
        return self._give_up_oldest(error, self._actives()) and not self._unsettled

    def _give_up_oldest(
        self, error: DiskFullError | OSError, kept: Collection[Volume] = ()
    ) -> bool:
        """
        Free the space of the oldest volume; return whether that was done.

        Args:
            error: Why.
            kept: Volumes that stay. The active one of ring main always does.
        """
        space, main = self._space, self.actives[Ring.MAIN]
        if perf_counter_ns() < self._give_up_again_ns or not space.is_short(
            error, main
        ):
            return False
        before = space.free_bytes()
        if space.free_spare():
            space.look()
            return True
        volume = self._oldest_to_drop()
        if volume is None or volume in kept or volume is main:
            return False
        if not self._empty(volume):
            return False
        _logger.warning(
            "disk.volume_given_up volume=%d seq=%d free=%d error=%r",
            volume.id,
            volume.seq,
            before,
            str(error),
        )
        self._give_up(volume)
        space.look()
        if space.found.free <= before:
            self._give_up_again_ns = perf_counter_ns() + _GIVE_UP_PAUSE_NS
        return True

    def _empty(self, volume: Volume) -> bool:
        """Free the space of a volume; return whether that was done."""
        self._sync_copies()
        try:
            if volume.seq == max(self.volumes):
                # LOCK must not name a volume that is newer than META.txt.
                self._directory.clear_progress()
            remove_index_file(self._fs, self._directory.index_path(volume.id))
            self._fs.truncate(volume.fd, 0)
        except OSError as refused:
            self._stats.count_write_error(refused)
            return False
        return True

    def _give_up(self, volume: Volume) -> None:
        """Drop a volume that no longer has records."""
        self._stats.given_up_volumes += 1
        if volume in self.actives:
            volume.retire()
            self._end_writing(volume)
        self._drop([volume.seq], volume.id, everything=False)
        try:
            # Some file systems have the space when it is on the disk.
            self._fs.sync(volume.fd)
            self._write_manifest()
        except OSError as refused:
            if not self._is_full(refused):
                self._stats.count_rotation_error(refused)
            self.hold(volume)  # A power loss could bring it back.

    # --- Starting a volume ---------------------------------------------------------

    def _rotate(
        self,
        ring: Ring,
        size: int = 0,
        *,
        is_flush: bool = False,
        for_copies: bool = False,
    ) -> Volume:
        """Seal the active volume of a ring and start the next; see the module."""
        started_ns = perf_counter_ns()
        if is_flush:
            dropped = sorted(self.volumes)
        else:
            self._settle()
            dropped = [] if for_copies else self._to_drop(ring)
        use = self._next_use(ring, dropped)
        _logger.debug("rotation.started volume=%d seq=%d", use.volume, use.seq)
        active = Volume(
            self._fs,
            self._descriptors[use.volume],
            use=use,
            store_id=self.manifest.store_id,
            started_ms=self._clock.now_ms(),
        )
        self._space.allocate(active, self._space.length_of(active, size))
        sealed = [v for v in self.actives if v and (is_flush or v.use.ring is ring)]
        for volume in sealed:
            self._seal(volume)
        kept = [volume for seq, volume in self.volumes.items() if seq not in dropped]
        others = (
            [] if is_flush else [v for v in self._open_volumes() if v not in sealed]
        )
        self._start(active, kept, [active, *others])
        self._drop(dropped, use.volume, everything=is_flush)
        self._trim(active)
        self._space.record_started(active)
        self.volumes[active.seq] = active
        self._index.add_volume(active.seq)
        self._bind(active)
        for volume in sealed:
            self._end_writing(volume)
        self.actives[ring] = active
        self._space.log_limit()
        self._record_start()
        self.record_progress()
        self._count_rotation(use, started_ns)
        return active

    def _count_rotation(self, use: VolumeUse, started_ns: int) -> None:
        self._stats.rotations += 1
        took = perf_counter_ns() - started_ns
        self._stats.rotating.observe(started_ns, took)
        _logger.info(
            "rotation.completed volume=%d seq=%d ring=%s seconds=%.3f",
            use.volume,
            use.seq,
            use.ring.name.lower(),
            took / 1e9,
        )

    def _finish_reclaim(self, ring: Ring) -> None:
        """Finish a reclaim at once if the next volume of a ring needs the id."""
        if self._policy is None or self._takes_free_id(ring):
            return
        reclaimer = self._reclaimer or self._begin_reclaim(self._policy)
        if reclaimer is not None and not reclaimer.is_drained:
            reclaimer.finish(self.actives[Ring.MAIN])

    def _takes_free_id(self, ring: Ring) -> bool:
        """
        Return whether the next volume of a ring gets an id without a volume.

        With "frequency", the last such id is for copies: without it, those that find no
        room in the active volume would be lost. Ring main may take it while they are made,
        and a ring without a volume at any time.
        """
        if self._policy is None or self.actives[ring] is None:
            return self._space.free_ids > 0
        reclaimer = self._reclaimer
        is_copying = reclaimer is not None and not reclaimer.is_drained
        return self._space.free_ids > (ring is not Ring.MAIN or not is_copying)

    def _to_drop(self, ring: Ring) -> list[int]:
        """Return the volumes to be dropped when the next one is started: none, or one."""
        space = self._space
        if self._takes_free_id(ring):
            return []
        self._sync_copies()
        oldest = self._oldest_to_drop()
        if oldest is not None:
            return [oldest.seq]
        if space.may_be_smaller:
            return []  # It is started in what space there is.
        raise DiskFullError(
            volume=min(space.ids_without_space),
            needed=self._volume_size,
            free=space.found.free,
        )

    def _next_use(self, ring: Ring, dropped: list[int]) -> VolumeUse:
        """Return the use of an id that has no volume, or whose volume is dropped."""
        # Not the id of an active volume: until META.txt is replaced, it is needed.
        actives = self._actives()
        volumes = [self.volumes[seq] for seq in dropped]
        freed = {v.id for v in volumes if v.id < self._volume_num and v not in actives}
        volume = self._space.next_id(self.active.id, freed)
        return VolumeUse(volume, self._last_seq + 1, ring, secrets.randbits(64))

    def _seal(self, volume: Volume) -> None:
        """Seal a volume; without a complete index file the next start scans it."""
        with self._index_errors_counted(volume):
            volume.seal()

    def _start(self, volume: Volume, kept: list[Volume], actives: list[Volume]) -> None:
        """
        Make a volume the active one on the disk; its space is allocated already.

        A header that cannot be written has to be before anything is appended: META.txt
        names the volume, and it must not be taken out again, because it would be older
        than a header that is on the disk after all. A missing index file is only counted.

        Args:
            volume: To be started.
            kept: The volumes that stay valid.
            actives: Those that are written from now on.

        Raises:
            OSError: META.txt names the old active volume, or the new one whose header is
                not written yet; a start can continue from both, and a retry is safe.
        """
        remove_index_file(self._fs, self._directory.index_path(volume.id))
        self._write_manifest([*kept, volume], actives)
        before = self._newest[volume.use.ring]
        try:
            volume.start(
                volume.started_ms,
                mount_count=self.manifest.mount_count,
                oldest_seq=min(v.seq for v in [*kept, volume]),
                previous_salt=0 if before is None else before.last_salt,
            )
        except OSError as error:
            self._stats.count_write_error(error)
            volume.hold()
            self.hold(volume)
        else:
            self._open_index_file(volume)

    def _trim(self, volume: Volume) -> None:
        """Cut a file that was longer; no error, because META.txt names the volume."""
        try:
            volume.trim()
        except OSError as error:
            self._stats.count_write_error(error)

    def _open_index_file(self, volume: Volume) -> None:
        """Create the index file of a volume; without it, the volume still works."""
        with self._index_errors_counted(volume):
            volume.open_index_file(self._directory.index_path(volume.id), 0)

    def _record_start(self) -> None:
        """Find out which records a single ring would have reclaimed by now."""
        if self._policy is None:
            return
        put = self.put_bytes
        self._history.append((put, self._clock.now_us()))
        while len(self._history) > 1 and (
            self._history[1][0] <= put - self._policy.capacity
        ):
            self._history.popleft()
        oldest_put, time_us = self._history[0]
        if oldest_put <= put - self._policy.capacity:
            self._index.count_older(time_us)
            if self._ghost_hits_before is None:
                self._ghost_hits_before = self._index.heat().ghost_hits

    def bind_hot(self, identity: str) -> None:
        """Let `close` write to META.txt which HOT.txt is valid."""
        self.manifest = self.manifest._replace(hot=identity)

    def _write_manifest(
        self,
        kept: Iterable[Volume] | None = None,
        written: Collection[Volume] | None = None,
        *,
        purges: ListedPurges | None = None,
    ) -> None:
        """
        Write META.txt.

        Args:
            kept: The volumes that stay valid; None: all.
            written: Those that are being written, none after a clean stop; None: those to
                which records may be appended.
            purges: What it says of PURGE.txt from now on; None: the same as before, or
                nothing if no purge is needed with these volumes.
        """
        volumes = sorted(kept or self.volumes.values(), key=lambda volume: volume.seq)
        written = self._open_volumes() if written is None else written
        if purges is None and self.purges.since(volumes[0].seq):
            purges = self.manifest.purges
        probation = (v.seq for v in volumes if v.use.ring is Ring.PROBATION)
        first = (seq for seq in probation if seq <= self._probation_first)
        manifest = self.manifest._replace(
            time_us=self._clock.now_us(),
            volumes=tuple(v.listed(is_open=v in written) for v in volumes),
            probation_first=max(first, default=0),
            purges=purges,
        )
        self._directory.write_manifest(manifest)
        self.manifest = manifest
        self._unsettled.intersection_update(written)
        self._release()

    def _drop(self, seqs: list[int], used_id: int | None, *, everything: bool) -> None:
        """
        Drop volumes from memory that META.txt no longer names.

        Args:
            seqs: Their sequence numbers.
            used_id: The id that is used again.
            everything: Leave their files as they are; the new volume says they are old.
        """
        for seq in seqs:
            volume = self.volumes.pop(seq)
            if volume.id != used_id and not everything:
                self._free(volume)
            self._space.record_dropped(volume)
            records, lost = self._index.reclaim(seq)
            self._stats.evicted_records += records
            self._stats.evicted_bytes += lost
            _logger.info(
                "rotation.reclaimed volume=%d seq=%d ring=%s evicted=%d bytes=%d",
                volume.id,
                seq,
                volume.use.ring.name.lower(),
                records,
                lost,
            )
        if seqs:
            self._reclaimer = None
        self._drop_purges()

    def _free(self, volume: Volume) -> None:
        """Make a dropped volume unusable; free its space if there are too many."""
        try:
            remove_index_file(self._fs, self._directory.index_path(volume.id))
            # Not if `volume_num` was lowered: volumes with higher ids take space, too.
            if all(
                other.id < self._volume_num
                for other in (volume, *self.volumes.values())
            ):
                # Should META.txt be lost, it must not be taken for a valid one.
                volume.invalidate()
                return
            self._fs.truncate(volume.fd, 0)
            # A power loss could bring it back after what superseded its records is gone.
            self._fs.sync(volume.fd)
            self._fs.sync_directory(self._directory.index)
        except OSError as error:
            self._stats.count_write_error(error)

    # --- Purges --------------------------------------------------------------------

    def purge(self, prefix: bytes) -> Purge:
        """
        Let every record stored so far whose key begins with a prefix be a miss.

        Raises:
            TooManyPurgesError: The list is full.
            StoreIOError: The disk refused. In both cases nothing has changed; but after
                the second, the purge may take effect at the next start.
        """
        purge = Purge(self._clock.next_us(), self._last_seq, prefix)
        purges = self._needed_purges().plus(purge)
        if len(purges) > PURGES_MAX:
            raise TooManyPurgesError(limit=PURGES_MAX)
        file = next_file(self.manifest.store_id, self.manifest.purges, purges)
        with self._refusals_counted("record a purge"):
            self._directory.write_purges(encode_purges(file))
            self._write_manifest(purges=file.listed)
        self._set_purges(purges)
        return purge

    def _needed_purges(self) -> PurgeList:
        """Return the purges that cover records in valid volumes."""
        return self.purges.since(min(self.volumes, default=self._last_seq + 1))

    def _set_purges(self, purges: PurgeList) -> None:
        """Let reads use another list; no reader sees a part of it."""
        self._index.set_purges(purges)
        self.purges = purges

    def _drop_purges(self) -> None:
        """Drop the purges that META.txt no longer needs."""
        needed = self._needed_purges()
        if needed is self.purges:
            return
        dropped = set(self.purges) - set(needed)
        self.dropped_purge_us = max(purge.time_us for purge in dropped)
        self._set_purges(needed)
        _logger.info("purge.dropped dropped=%d left=%d", len(dropped), len(needed))
        if not needed:
            with suppress(OSError):  # The next start removes it.
                self._directory.remove_purges()

    def purge_stay(self) -> PurgeStay:
        """Return how long a purge that is made now stays in the list."""
        elapsed_us = max(1, self._clock.now_us() - self._opened_us)
        probation = 0
        if self._policy is not None:
            probation = -(-self._policy.probation_max // self._volume_size)
        needed = 0
        seconds: float | None = 0.0
        for ring, volumes in (
            (Ring.MAIN, self._volume_num - probation),
            (Ring.PROBATION, probation),
        ):
            if not self._ring(ring):
                continue
            active = self.actives[ring]
            room = 0 if active is None else max(0, active.capacity - active.end)
            left = room + max(0, volumes - 1) * self._volume_size
            newest = self._newest[ring]
            appended = newest.appended if newest else 0
            rate = (appended - self._appended_at_open[ring]) / elapsed_us
            needed += left
            if seconds is not None:
                seconds = max(seconds, left / rate / 1e6) if rate > 0 else None
        return PurgeStay(
            len(self.volumes), needed, seconds, len(self._needed_purges()), PURGES_MAX
        )

    # --- Reclaim -------------------------------------------------------------------

    def continue_reclaim(self, appended: int) -> None:
        """
        Go on with the reclaim under way, or begin one if room will be needed soon.

        Bounded work: what the disk refuses is counted and ends the reclaim or this step.

        Args:
            appended: The bytes appended since the last call.
        """
        self._bytes_since_reclaim += appended
        if self._bytes_since_reclaim < self.step_bytes:
            return
        appended, self._bytes_since_reclaim = self._bytes_since_reclaim, 0
        reclaimer = self._reclaimer or self._begin_if_due()
        if reclaimer is None:
            return
        if reclaimer.is_drained:
            self._drop_early(reclaimer)
            return
        room = self._room(0) - self._volume_size // _SPARE_SHARE
        pace = max(_PACE_MIN, reclaimer.remaining / max(room, appended))
        reclaimer.advance(int(appended * pace), self.actives[Ring.MAIN])
        for volume in reclaimer.targets:
            if volume.is_index_due:
                self.write_index(volume)

    def _begin_if_due(self) -> Reclaimer | None:
        """Begin a reclaim if room will be needed soon."""
        if (
            self._policy is None
            or self._room(self._space.free_ids - 1) >= self._volume_size // _ROOM_SHARE
            # There are four ids, and only two have been used.
            or len(self.volumes) == len(self._actives())
        ):
            return None
        try:
            return self._begin_reclaim(self._policy)
        except OSError as error:
            if not self._is_full(error):
                self._stats.count_rotation_error(error)
            return None

    def _room(self, free: int) -> int:
        """
        Return how much can be appended, at least, until `free` + 1 ids are needed.

        A ring without an active volume takes the id for copies, so it needs none.
        """
        rooms = sorted(
            volume.capacity - volume.end if volume.capacity else 0
            for volume in self._actives()
        )
        if free >= len(rooms):
            return self._volume_size
        return sum(rooms[: free + 1])

    def _begin_reclaim(self, policy: Frequency) -> Reclaimer | None:
        """
        Choose a volume, and begin to reclaim it; None: there is none.

        Raises:
            OSError: META.txt does not name the volume as the first to be reclaimed.
        """
        volume = self._victim(policy)
        if volume is None:
            return None
        ends = sum(volume.end for volume in self.volumes.values())
        count = self._index.count
        self._index.size_ghost(count)
        if volume in self.actives:  # All are, or it may be outdated.
            self._seal(volume)
        if volume.use.ring is Ring.PROBATION and volume.seq > self._probation_first:
            before, self._probation_first = self._probation_first, volume.seq
            try:
                self._write_manifest()
            except OSError:
                self._probation_first = before
                raise
        if volume in self.actives:
            self._end_writing(volume)
        _logger.debug(
            "reclaim.started volume=%d seq=%d ring=%s",
            volume.id,
            volume.seq,
            volume.use.ring.name.lower(),
        )
        self._reclaimer = Reclaimer(
            volume,
            ends / max(1, count),
            index=self._index,
            policy=policy,
            stats=self._stats,
            clock=self._clock,
            refused=self.refused,
            more_room=self._more_room,
        )
        return self._reclaimer

    def _more_room(self) -> Volume | None:
        """Return a new active volume of ring main, if there is an unused id."""
        if not self._space.free_ids:
            return None
        try:
            volume = self._rotate(Ring.MAIN, for_copies=True)
            self._settle()
        except (DiskFullError, OSError) as error:
            if not self._is_full(error):
                self._stats.count_rotation_error(error)
            return None
        return volume

    def _victim(self, policy: Frequency) -> Volume | None:
        """Return the volume to be reclaimed next; None: there is only one."""
        probation, main = self._ring(Ring.PROBATION), self._ring(Ring.MAIN)
        if probation and probation[0].seq <= self._probation_first:
            return probation[0]
        sealed = {
            Ring.PROBATION: [v for v in probation if v not in self.actives],
            Ring.MAIN: [v for v in main if v not in self.actives],
        }
        ring = policy.victim(
            sum(volume.end for volume in probation),
            has_sealed_main=bool(sealed[Ring.MAIN]),
        )
        other = Ring.MAIN if ring is Ring.PROBATION else Ring.PROBATION
        found = sealed[ring] or sealed[other] or probation
        return found[0] if found else None

    def _drop_early(self, reclaimer: Reclaimer) -> None:
        """Drop a volume before its id is needed, if two will be needed soon."""
        free = self._space.free_ids
        if free and self._room(free) >= self._volume_size // _ROOM_SHARE:
            return
        if self._sync_mode == "periodic" and self._unsynced_copies():
            self.sync_wanted.set()
            return
        seq = reclaimer.volume.seq
        if seq == max(self.volumes):
            return  # LOCK must not name a volume that is newer than META.txt.
        self._sync_copies()
        kept = [volume for other, volume in self.volumes.items() if other != seq]
        try:
            self._write_manifest(kept)
        except OSError as error:
            if not self._is_full(error):
                self._stats.count_rotation_error(error)
            return
        self._drop([seq], None, everything=False)

    def _sync_copies(self) -> None:
        """Sync what was copied, before the originals are dropped."""
        if self._sync_mode == "none":
            return
        for volume in self._unsynced_copies():
            self._sync_volume(volume)
        self._copied_before.clear()

    def _unsynced_copies(self) -> list[Volume]:
        """Return the volumes with copies that a power loss could still take."""
        copies = dict(self._copied_before)
        if self._reclaimer is not None:
            copies.update(self._reclaimer.targets)
        return [
            volume
            for volume, end in copies.items()
            if volume.seq in self.volumes and not volume.is_synced_up_to(end)
        ]

    def record_displaced(self) -> None:
        """
        Go on after the index has lost an entry for want of memory.

        The ring of its key is not known. What is put without an entry goes to ring main
        from now on, and what ring probation has now is reclaimed first.

        Raises:
            StoreIOError: META.txt could not be written.
        """
        probation = self._ring(Ring.PROBATION)
        if probation:
            self._probation_first = probation[-1].seq
            with self._refusals_counted("replace META.txt"):
                self._write_manifest()
        self._index.accept_displaced()

    def _end_writing(self, volume: Volume) -> None:
        """Leave a sealed volume to the next `sync`, or close its index file."""
        if self._sync_mode == "periodic":
            # Before `actives` changes: `sync` must find the volume here or there.
            self._unsynced.append(volume)
        else:
            if self._sync_mode == "always":
                self._sync_volume(volume)
            volume.close_index_file()
        self.actives[volume.use.ring] = None

    # --- Usage and health ----------------------------------------------------------

    def usage(self, *, volumes: bool = True) -> StoreUsage:
        """
        Return how full the store is.

        Args:
            volumes: List the volumes: ten times as expensive, some microseconds for each.
        """
        active = self.active
        return StoreUsage(
            volumes=self._volume_usages() if volumes else [],
            states=self._count_states(),
            volume_size=self._volume_size,
            volume_num=self._volume_num,
            active_id=active.id,
            active_seq=active.seq,
            active_end=active.end,
            active_started_ms=active.started_ms,
            eviction=self._eviction_usage(),
            purges=len(self.purges),
            disk=self._space.usage(),
        )

    def _volume_usages(self) -> list[VolumeUsage]:
        """Return how full each volume is, by id."""
        found = {
            volume_id: VolumeUsage(
                volume_id, 0, "empty", self._volume_size, 0, 0, 0, 0, ""
            )
            for volume_id in range(self._volume_num)
        }
        for volume in self.volumes.values():
            records, live = self._index.live(volume.seq)
            found[volume.id] = VolumeUsage(
                volume.id,
                volume.seq,
                self._state(volume),
                max(volume.end, self._size_or_zero(volume)),
                volume.end,
                records,
                # The index knows sizes to an eighth only.
                min(live, volume.end - VOLUME_HEADER_BYTES),
                volume.started_ms,
                _RING_NAMES[volume.use.ring],
            )
        return [found[volume_id] for volume_id in sorted(found)]

    def _state(self, volume: Volume) -> State:
        """Return the state of a volume."""
        if self._reclaimer is not None and volume is self._reclaimer.volume:
            return "reclaiming"
        return "active" if volume in self.actives else "sealed"

    def _count_states(self) -> dict[State, int]:
        """Return the number of volumes in each state."""
        active = len(self._actives())
        reclaiming = int(self._reclaimer is not None)  # That one is not active.
        used = sum(volume.id < self._volume_num for volume in self.volumes.values())
        return {
            "active": active,
            "sealed": len(self.volumes) - active - reclaiming,
            "reclaiming": reclaiming,
            "empty": self._volume_num - used,
        }

    def _ring_usage(self, ring: Ring) -> RingUsage:
        """Return the sums of a ring; half a microsecond for each volume."""
        volumes = [v for v in self.volumes.values() if v.use.ring is ring]
        found = [(v.end, *self._index.live(v.seq)) for v in volumes]
        return RingUsage(
            len(volumes),
            sum(end for end, _, _ in found),
            sum(min(live, end - VOLUME_HEADER_BYTES) for end, _, live in found),
            sum(records for _, records, _ in found),
            min((v.started_ms for v in volumes if v.started_ms), default=0),
        )

    def _eviction_usage(self) -> EvictionUsage:
        policy, heat, fate = self._policy, self._index.heat(), self._stats.fate
        reclaimer, ghost_hits_before = self._reclaimer, self._ghost_hits_before
        return EvictionUsage(
            policy="fifo" if policy is None else "frequency",
            main=self._ring_usage(Ring.MAIN),
            probation=self._ring_usage(Ring.PROBATION),
            probation_max=0 if policy is None else policy.probation_max,
            put_bytes=self.put_bytes,
            fate=fate,
            tokens=heat.tokens,
            ghost_hits=heat.ghost_hits,
            older_hits=heat.older_hits,
            gained_hits=None
            if ghost_hits_before is None
            else heat.older_hits - (heat.ghost_hits - ghost_hits_before),
            next_id=self._next_id(),
            reclaiming=-1 if reclaimer is None else reclaimer.volume.id,
            reclaimed=0.0 if reclaimer is None else reclaimer.progress,
        )

    def _next_id(self) -> int:
        """Return which volume is reclaimed now, or would be if it began now."""
        volume = self._oldest_to_drop()
        is_single = len(self.volumes) == len(self._actives())
        return -1 if volume is None or is_single else volume.id

    def _size_or_zero(self, volume: Volume) -> int:
        """Return the length of the data file; 0 if the disk does not answer."""
        try:
            return self._fs.size(volume.fd)
        except OSError:
            return 0

    def probe(self, reads: int) -> bool:
        """
        Return whether the disk answers reads at a few random places.

        Random, because one place may be in the page cache although the disk is gone.
        """
        volumes = list(self.volumes.values())
        try:
            for _ in range(reads):
                volume = random.choice(volumes)  # noqa: S311 - Not for security.
                offset = random.randrange(volume.end)  # noqa: S311
                self._fs.pread(volume.fd, _PROBE_BYTES, offset)
        except OSError:
            return False
        return True

    # --- Syncing and closing -------------------------------------------------------

    def sync(self) -> None:
        """
        Sync the volumes sealed since the last time, then the active one.

        The calls that wait for the disk are made without the lock.
        """
        if self._refusal:
            return
        started_ns = perf_counter_ns()
        # First: another thread may rotate meanwhile, and the volume that is active now
        # must be synced when this returns.
        with self._lock:
            actives = self._actives()
            # By them a start notices that files were replaced.
            if any(active.has_index_backlog for active in actives):
                self.record_progress()
            elif any(active.writer.pending for active in actives):
                for active in actives:
                    self.write_index(active)
            elif self._clock.now_us() - self._last_progress_us > _PROGRESS_EVERY_US:
                self.record_progress()
        while self._unsynced:
            volume = self._unsynced.popleft()
            self._sync_volume(volume)
            with self._lock:
                volume.close_index_file()
        for active in actives:
            self._sync_volume(active)
        self._stats.syncs.observe(started_ns, perf_counter_ns() - started_ns)

    def _sync_volume(self, volume: Volume) -> None:
        try:
            volume.sync()
        except OSError as error:
            with self._lock:
                self._retire_unsynced(volume, error)

    def _sync_all(self) -> None:
        """Sync all that was not synced since the store was opened, in any mode."""
        for seq in sorted(self.volumes):
            self._sync_volume(self.volumes[seq])

    def _retire_unsynced(self, volume: Volume, error: OSError) -> None:
        """
        Count a failed sync and retire the volume.

        The kernel reports a failed write-back once and may drop the pages: a second
        fsync that succeeds would prove nothing. The next record starts a new volume.
        """
        self._stats.count_sync_error(error)
        for failed in (volume, *self._actives()):
            # If the id was used again meanwhile, the error may be about the new volume.
            if failed.fd == volume.fd:
                failed.retire()
                if any(
                    v.use == failed.use and v.is_open for v in self.manifest.volumes
                ):
                    self.hold(failed)

    def close(self) -> None:
        """
        Write pending entries, sync everything and close all files; no lock is held.

        META.txt then says how far each volume goes, so that the next start need not scan.
        """
        if not self._refusal:
            self._close_files()
        self._index.close()
        for fd in self._descriptors.values():
            self._fs.close(fd)

    def drop(self) -> None:
        """Close all files as they are, without a write; may be called again."""
        self._index.close()
        for volume in {*self.volumes.values(), *self._unsynced}:
            volume.close_index_file()
        while self._descriptors:
            self._fs.close(self._descriptors.popitem()[1])

    def _close_files(self) -> None:
        for active in self._actives():
            self.write_index(active)
        self.sync()
        self._sync_all()
        try:
            self._settle()
            self._write_manifest(written=())
        except OSError as error:
            self._stats.count_write_error(error)
        for active in self._actives():
            active.close_index_file()


def _refusal_of(error: OSError, what: str) -> StoreIOError:
    """Return the error for something that the disk has refused to do."""
    if error.errno == errno.EROFS:
        return ReadOnlyError(
            f"disk refused to {what}: it is read-only; files can be read, and stored again"
            " when it is writable"
        )
    return StoreIOError(f"disk refused to {what}: {error.strerror or error}")


_RING_NAMES: Final = tuple(ring.name.lower() for ring in Ring)
