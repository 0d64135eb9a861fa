"""
The log: when a volume is started, and which one is given up on a full disk.

When the active volume of a ring has no room for the next record, the log rotates: an
unused id becomes the active volume, with a new salt. If all ids are used, it gets that of
the volume that is reclaimed, see `reclaim.py`. The other parts of the log are the valid
volumes (`rings.py`), ids and space (`space.py`) and syncs (`syncs.py`).

The steps of a rotation, and what a crash after each of them leaves:
    1. Disk space for the new volume is allocated, unless the file of the id has it already,
       and memory for it. Nothing has changed.
    2. The old active volume is sealed: its index file is complete. The next start rotates
       again.
    3. The index file of the id is removed. The data file still holds the volume that is
       reclaimed; a start would scan it. A directory in the place of the file stays.
    4. META.txt names the new active volume. The reclaimed volume has become invalid.
    5. The header of the new volume is written, and its empty index file. A start would
       write both from what META.txt says. Without an index file, the volume still works.
An index file that reappears after a power loss is ignored: its first line has the salt.
A step up to the fourth may fail: the store then serves everything it served before. No step
behind it can fail, see `Rings.completing`.

A volume raises what the disk refuses; this module decides what follows. It contains
nothing about keys.

If the disk is so full that not even META.txt can be replaced, the oldest volume is *given
up*: its index file is removed, its file is emptied, and then META.txt is replaced, without
it. It may be the active one of ring probation, if that is all there is beside ring main. A
crash in between leaves a volume that META.txt names, but that has no records: a start
drops it, and older ones of its ring, of which there are none.

Locking: the caller holds the lock of the store, except for `probe`, `close`
and `drop`.
"""

from __future__ import annotations

import logging
import random
import secrets
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.errors import DiskFullError, StoreIOError, ValueTooLargeError
from volcache.store.files import SyncFailedError, close_all
from volcache.store.format import VALUE_BYTES_MAX, VOLUME_HEADER_BYTES, Ring, VolumeUse
from volcache.store.reclaim import Evictor
from volcache.store.rings import RING_NAMES, KeptPurges, Rings
from volcache.store.space import DiskSpace
from volcache.store.syncs import Syncs
from volcache.store.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.rings import LogOptions, Recovered

_logger = logging.getLogger("volcache.store")
_PROBE_BYTES: Final = 4096
# If giving up a volume has freed nothing, none is given up for this time.
_EVICT_PAUSE_NS: Final = 60_000_000_000


class CircularLog:
    """
    The volumes of one mount point.

    Attributes (read-only for others):
        rings, space, syncs, kept_purges, evictor: The parts.
        volumes, actives: Those of `rings`.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        recovered: Recovered,
        options: LogOptions,
        clock: Clock,
    ) -> None:
        """Continue with what recovery has found, and allocate the active volumes."""
        self._fs, policy = directory.fs, options.policy
        if policy is not None:
            recovered.index.set_policy(policy.rates)  # Before the rings bind volumes.
        self.rings = rings = Rings(directory, recovered, options, clock)
        self.volumes, self.actives = rings.volumes, rings.actives
        self.space = DiskSpace(rings, options)
        self.syncs = Syncs(rings, options.sync_mode)
        self.kept_purges = KeptPurges(rings, recovered.purges)
        self.evictor = Evictor(
            rings, self.space, self.syncs, policy, self.kept_purges, self._start_main
        )
        self._evict_again_ns = 0
        if not options.refusal:
            self._allocate_actives()
            rings.record_progress()
            self.syncs.begin(recovered.volumes)

    def _allocate_actives(self) -> None:
        """At startup: without disk space, log it and serve reads."""
        for active in self.rings.open_volumes:
            try:
                self.space.extend(active)
                active.trim()
            except (OSError, DiskFullError) as error:
                self.rings.stats.count_write_error(error)

    def resolve_failed_writes(self, kept: Collection[Volume] = ()) -> None:
        """
        Let no start find what was refused.

        Before that nothing may be acknowledged, also not a deletion that finds nothing: a
        start would take the record for the newest one of its key.

        Args:
            kept: Volumes that are not given up for it.

        Raises:
            StoreIOError: The disk still refuses, or nothing is written any more.
        """
        if self.rings.unresolved or self.rings.refusal:
            with self.rings.refusals_counted("write"):
                try:
                    self.rings.resolve_failed_writes()
                except OSError as error:
                    if not self._evict_for_space(error, kept):
                        raise
                    self.rings.resolve_failed_writes()

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
            StoreIOError: The disk refused, or there is no memory. In all cases the store
                continues as before.
        """
        active = self.actives[ring]
        room = self.space.volume_size - VOLUME_HEADER_BYTES
        has_room = active is not None and active.end + size <= active.capacity
        if length > VALUE_BYTES_MAX or (size > room and not has_room):
            limit = min(VALUE_BYTES_MAX, max(0, room - (size - length)))
            raise ValueTooLargeError(size=length, limit=limit)
        self.resolve_failed_writes()
        active = self.actives[ring]  # It may have been closed.
        if active is not None and active.end + size <= active.capacity:
            return active
        with self.rings.refusals_counted("start a volume"):
            volume = self._with_space(lambda: self._make_room(ring, size))
        self.resolve_failed_writes([volume])
        if volume.end + size > volume.capacity:
            raise StoreIOError("disk refused to write to the volume that was started")
        return volume

    def _make_room(self, ring: Ring, size: int) -> Volume:
        """Return the active volume of a ring with room, an allocated or a new one."""
        active = self.actives[ring]
        if active in self.rings.open_volumes:
            self._extend(active, size)
        if active is None or active.end + size > active.capacity:
            self.evictor.finish_reclaim(ring)
            active = self.actives[ring]  # May be new, for copies.
        if active is not None and active.end + size <= active.capacity:
            return active
        if (
            ring is Ring.PROBATION
            and not self.rings.of(ring)
            and not self.evictor.takes_free_id(ring)
            and self.evictor.next_to_drop() is None
        ):
            # The disk holds one volume only. No record in ring probation can be outdated
            # by one in ring main, because there is none.
            return self._make_room(Ring.MAIN, size)
        self.rings.resolve_failed_writes()
        return self._rotate(ring, self._to_drop(ring), size)

    def _extend(self, active: Volume, size: int) -> None:
        """Allocate space for a record in its volume, if that may have more."""
        try:
            if active.end + size > active.capacity:
                self.space.extend(active, size)
        except DiskFullError:
            # If there is an older volume, the next one is started early, in its place.
            has_older = len(self.volumes) > len(self.rings.written)
            if not (self.space.is_sparse and has_older):
                raise

    def _start_main(self) -> Volume:
        self.rings.resolve_failed_writes()
        return self._rotate(Ring.MAIN, [])

    def flush(self) -> None:
        """
        Drop every record: start a volume and make it the oldest valid one.

        Constant work, whatever the number of keys.

        Raises:
            DiskFullError: There is no disk space for the next volume.
            StoreIOError: The disk refused, or there is no memory. In both cases nothing
                was dropped; but after the second, it may be at the next start.
        """
        with self.rings.refusals_counted("flush"):
            dropped = self.volumes.values()
            volume = self._with_space(lambda: self._rotate(Ring.MAIN, list(dropped)))
        _logger.warning("store.flushed volume=%d", volume.id)

    def _rotate(self, ring: Ring, dropped: list[Volume], size: int = 0) -> Volume:
        """
        Seal the active volume of a ring and start the next; see the module.

        Args:
            ring: The ring.
            dropped: The volumes that are not valid from then on.
            size: Of the record that the volume is started for.
        """
        started_ns = perf_counter_ns()
        rings, space = self.rings, self.space
        active = self._next_volume(ring, dropped)
        _logger.debug("rotation.started volume=%d seq=%d", active.id, active.seq)
        space.allocate(active, space.length_of(active, size), size)
        rings.prepare(active)
        sealed = [v for v in rings.written if v.use.ring is ring or v in dropped]
        for volume in sealed:
            rings.seal(volume)
        kept = [v for v in self.volumes.values() if v not in dropped]
        others = [v for v in rings.open_volumes if v not in sealed]
        rings.directory.remove_index_file(active.id)
        rings.write_manifest([*kept, active], [active, *others])
        with rings.completing("the start of a volume"):
            rings.start(active)
            # After a flush, the header of the new volume says that all others are old.
            used = [active] if kept else dropped
            self.evictor.drop(dropped, used_ids={volume.id for volume in used})
            space.record_started(active)
            for volume in sealed:
                self.syncs.end_writing(volume)
            rings.add(active)
            space.log_limit()
            self.evictor.record_start()
            rings.record_progress()
        took = perf_counter_ns() - started_ns
        rings.stats.rotations += 1
        rings.stats.rotating.observe(started_ns, took)
        _logger.info(
            "rotation.completed volume=%d seq=%d ring=%s seconds=%.3f",
            active.id,
            active.seq,
            RING_NAMES[ring],
            took / 1e9,
        )
        return active

    def _next_volume(self, ring: Ring, dropped: list[Volume]) -> Volume:
        """Return a volume with an id that is not used, or that of a dropped volume."""
        rings, number = self.rings, self.space.volume_num
        # Not the id of an active volume: until META.txt is replaced, it is needed.
        freed = {v.id for v in dropped if v.id < number and v not in rings.written}
        volume = self.space.next_id(rings.last_started.id, freed)
        return Volume(
            self._fs,
            rings.descriptors[volume],
            use=VolumeUse(volume, rings.last_seq + 1, ring, secrets.randbits(64)),
            store_id=rings.manifest.store_id,
        )

    def _to_drop(self, ring: Ring) -> list[Volume]:
        """Return the volumes to be dropped when the next one is started: none, or one."""
        space = self.space
        if self.evictor.takes_free_id(ring):
            return []
        self.evictor.sync_relocated()
        oldest = self.evictor.next_to_drop()
        if oldest is not None:
            return [oldest]
        if space.may_be_smaller:
            return []  # It is started in what space there is.
        lacking, free = min(space.ids_without_space), space.found.free
        raise DiskFullError(volume=lacking, needed=space.volume_size, free=free)

    # --- A disk that is full -------------------------------------------------------

    def _with_space(self, attempt: Callable[[], Volume]) -> Volume:
        """
        Start a volume; if the disk is full, reclaim or give up older ones for it.

        Raises:
            DiskFullError: There is no older one, or that did not help.
            OSError: The disk refused.
        """
        space = self.space
        space.begin()
        while True:
            try:
                return attempt()
            except (DiskFullError, OSError) as error:
                is_full = isinstance(error, DiskFullError)
                # Others have filled the disk, perhaps in the middle of a volume: nothing
                # that was just stored is lost for it.
                kept = self.rings.written if space.is_sparse else []
                if is_full and space.room and self.evictor.next_to_drop() is not None:
                    # It has less than it says: reclaim the oldest, which has its space.
                    space.room = 0
                elif self._evict_for_space(error, kept):
                    pass
                elif is_full and not space.may_be_smaller:
                    space.may_be_smaller = True
                else:
                    raise

    def make_space(self, error: OSError) -> bool:
        """
        Give up the oldest volume, if that may let a write succeed that was refused.

        Some file systems allocate space that they do not have.
        """
        if isinstance(error, SyncFailedError):
            return False
        was_evicted = self._evict_for_space(error, self.rings.written)
        return was_evicted and not self.rings.unresolved

    def _evict_for_space(
        self, error: DiskFullError | OSError, kept: Collection[Volume] = ()
    ) -> bool:
        """
        Free the space of the oldest volume; return whether that was done.

        Args:
            error: Why.
            kept: Volumes that stay. The active one of ring main always does.
        """
        space, main = self.space, self.actives[Ring.MAIN]
        is_paused = perf_counter_ns() < self._evict_again_ns
        if is_paused or not space.is_short(error, main):
            return False
        before = space.free_bytes()
        if space.free_spare():
            space.look()
            return True
        volume = self.evictor.next_to_drop()
        if volume is None or volume in {main, *kept} or self.rings.may_bring_back:
            return False  # Its records hide those that may come back.
        if not self._empty(volume):
            return False
        stats = self.rings.stats
        stats.count_given_up(volume.id, volume.seq, free=before, error=error)
        self._drop_empty(volume)
        space.look()
        if space.found.free <= before:
            self._evict_again_ns = perf_counter_ns() + _EVICT_PAUSE_NS
        return True

    def _empty(self, volume: Volume) -> bool:
        """Free the space of a volume; return whether that was done."""
        self.evictor.sync_relocated()
        directory = self.rings.directory
        try:
            directory.remove_index_file(volume.id)
            if volume.seq == max(self.volumes):
                # LOCK and an index file must not name a volume newer than META.txt.
                directory.clear_progress()
                self._fs.sync_directory(directory.index)
            self._fs.truncate(volume.fd, 0)
        except OSError as error:
            self.rings.stats.count_write_error(error)
            return False
        return True

    def _drop_empty(self, volume: Volume) -> None:
        """Drop a volume that no longer has records."""
        with self.rings.completing("the removal of a volume"):
            if volume in self.actives:
                volume.retire()
                self.syncs.end_writing(volume)
            self.evictor.drop([volume], used_ids={volume.id})
        try:
            # Some file systems have the space when it is on the disk.
            self._fs.sync(volume.fd)
            self.rings.write_manifest()
        except OSError as error:
            self.rings.count_postponed(error)
            self.rings.block_writes_of(volume)  # A power loss could bring it back.

    # --- The end -------------------------------------------------------------------

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

    def close(self) -> None:
        """
        Write pending entries, sync everything and close all files; no lock is held.

        META.txt then says how far each volume goes, so that the next start need not scan.
        """
        try:
            for active in self.rings.written:
                self.rings.write_index(active)
            self.syncs.sync()
            self.syncs.sync_all()
            if not self.rings.refusal:
                self._write_ends()
        finally:
            self.drop()

    def _write_ends(self) -> None:
        try:
            self.rings.resolve_failed_writes()
            self.rings.write_manifest(written=())
        except OSError as error:
            self.rings.stats.count_write_error(error)

    def drop(self) -> None:
        """Close all files as they are, without a write; may be called again."""
        rings = self.rings
        rings.index.close()
        self.syncs.close_index_files()
        refused = close_all(self._fs, rings.descriptors.values())
        rings.descriptors.clear()
        if refused is not None:
            rings.stats.count_write_error(refused)
