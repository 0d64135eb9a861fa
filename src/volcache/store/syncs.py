"""
Syncs of the volumes, and what follows from one that fails and from a refused append.

The kernel reports a failed write-back once and may drop the pages: a second fsync that
succeeds would prove nothing. So a volume that failed a sync is retired.

Locking: the caller holds the lock of the store, except for `sync`, `sync_all` and
`record_expiry`.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from volcache.store.files import SyncFailedError
from volcache.store.rings import refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volcache.errors import StoreIOError
    from volcache.store.rings import Rings, SyncMode
    from volcache.store.volume import Volume

# A start after a kill may begin this much later than the time at the kill.
_PROGRESS_AHEAD_US: Final = 1_000_000
# Of a store that is not written, the time is recorded this often: a start after a kill
# must not begin much earlier, if the clock of the machine was set back meanwhile.
_PROGRESS_EVERY_US: Final = 60_000_000


class Syncs:
    """
    When volumes are synced.

    Attributes (read-only for others):
        mode: See `Store.open`.
        wanted: Set when something waits for `sync`, in the mode "periodic".
    """

    def __init__(self, rings: Rings, mode: SyncMode) -> None:
        """Sync nothing yet."""
        self._rings, self._lock, self.mode = rings, rings.index.lock, mode
        # Sealed volumes that are not synced; `sync` removes them and closes their files.
        self._unsynced: deque[Volume] = deque()
        self._has_begun = False
        self.wanted = threading.Event()

    def begin(self, volumes: Iterable[Volume]) -> None:
        """
        Sync what a process that was killed has written last, now or by `sync`.

        Not called for a store that is opened to be read only: nothing is synced then.
        """
        self._has_begun = True
        if self.mode == "periodic":
            self._unsynced.extend(v for v in volumes if v not in self._rings.actives)
        elif self.mode == "always":
            self.sync_all()

    def sync(self) -> None:
        """
        Sync the volumes sealed since the last time, then the active ones.

        The calls that wait for the disk are made without the lock.
        """
        rings = self._rings
        if not self._has_begun:
            return
        started_ns = perf_counter_ns()
        # First: another thread may rotate meanwhile, and the volume that is active now
        # must be synced when this returns.
        with self._lock:
            actives = rings.written
            # By them a start notices that files were replaced.
            has_backlog = any(active.has_index_backlog for active in actives)
            if not has_backlog and any(active.pending for active in actives):
                for active in actives:
                    rings.write_index(active)
            elif (
                rings.has_progress
                or rings.clock.now_us() - rings.last_progress_us > _PROGRESS_EVERY_US
            ):
                rings.record_progress()
        while self._unsynced:
            volume = self._unsynced.popleft()
            self.sync_volume(volume)
            with self._lock:
                rings.close_index_file(volume)
        for active in actives:
            self.sync_volume(active)
        rings.stats.syncs.observe(started_ns, perf_counter_ns() - started_ns)

    def sync_all(self) -> None:
        """Sync all that was not synced since the store was opened, in any mode."""
        volumes = sorted(self._rings.volumes.items()) if self._has_begun else []
        for _, volume in volumes:
            self.sync_volume(volume)

    def sync_volume(self, volume: Volume) -> None:
        """Sync a volume, or retire it."""
        try:
            volume.sync()
        except OSError as error:
            with self._lock:
                self.retire(volume, error)

    def retire(self, volume: Volume, error: OSError) -> None:
        """
        Count a failed sync and retire the volume; the next record starts another.

        The caller holds the lock.
        """
        self._rings.stats.count_sync_error(error)
        for failed in (volume, *self._rings.written):
            # If the id was used again meanwhile, the error may be about the new volume.
            if failed.fd == volume.fd:
                failed.retire()
                listed = self._rings.manifest.volumes
                if any(one.use == failed.use and one.is_open for one in listed):
                    self._rings.block_writes_of(failed)

    def end_writing(self, volume: Volume) -> None:
        """Leave a sealed volume to the next `sync`, or close its index file."""
        if self.mode == "periodic":
            # Before `actives` changes: `sync` must find the volume here or there.
            self._unsynced.append(volume)
        else:
            if self.mode == "always":
                self.sync_volume(volume)
            self._rings.close_index_file(volume)
        self._rings.actives[volume.use.ring] = None

    def record_expiry(self, expires_ms: int) -> None:
        """Let a later start know that a record has expired, whatever the clock says."""
        rings, expires_us = self._rings, expires_ms * 1000
        if expires_us > rings.last_progress_us:
            with self._lock:
                if expires_us > rings.last_progress_us:
                    rings.record_progress(ahead_us=_PROGRESS_AHEAD_US)

    def refused(self, volume: Volume, error: OSError) -> StoreIOError:
        """Count an append that failed, and let no start find its record."""
        self._rings.block_writes_of(volume)
        what = "write"
        if isinstance(error, SyncFailedError):
            what = "sync"
            # The record is there until META.txt says where the volume ends.
            with suppress(OSError):
                volume.erase_refused(sync=False)
            self.retire(volume, error)
        else:
            self._rings.stats.count_write_error(error)
        with suppress(OSError):  # The next append tries it again.
            self._rings.resolve_failed_writes()
        return refusal_of(error, what)

    def close_index_files(self) -> None:
        """Close the index files of all volumes as they are."""
        for volume in {*self._rings.volumes.values(), *self._unsynced}:
            self._rings.close_index_file(volume)
