"""
The valid volumes, and the order in which META.txt, LOCK and PURGE.txt name them.

Volume ids are numbers from 0 to `volume_num - 1`; sequence numbers order all volumes by
age. Each volume is in a *ring*, main or probation, and each ring has an active volume,
which is written. `Rings` writes META.txt and LOCK, and binds volumes into the index;
`KeptPurges` has the list of purges. Which volume is started or dropped is decided in
`log.py` and `reclaim.py`.

Invariants:
    - `volumes` has every valid volume; the active one of a ring is the newest of it.
    - What an append that failed may have left is not found by a start, before anything
      else is appended, or a deletion answered that finds nothing; see
      `Rings.resolve_failed_writes`.
    - What was purged is in no volume that is newer than the purge; see `purges.py`.

Locking: the caller holds the lock of the store.
"""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import starmap
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.errors import (
    DiskFullError,
    OutOfMemoryError,
    ReadOnlyError,
    StoreError,
    StoreIOError,
    TooManyPurgesError,
)
from volcache.store.directory import META
from volcache.store.files import close_all, is_short
from volcache.store.format import Ring
from volcache.store.manifest import PURGE, Progress
from volcache.store.purges import (
    PURGE_BYTES_MAX,
    PURGES_MAX,
    Purge,
    encode_purge,
    encode_purges,
)
from volcache.store.stats import RecoveryStats, StoreStats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.eviction import Frequency
    from volcache.store.files import FileSystem
    from volcache.store.manifest import ListedPurges, Manifest
    from volcache.store.native import Index
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")
# PURGE.txt is replaced when it has grown by so many bytes, and by what it had.
_PURGE_GROWTH: Final = 1 << 20
RING_NAMES: Final = tuple(ring.name.lower() for ring in Ring)


SyncMode = Literal["none", "periodic", "always"]


class LogOptions(NamedTuple):
    """How the volumes are used."""

    volume_size: int  # bytes of a volume that is started from now on
    volume_num: int
    sync_mode: SyncMode
    policy: Frequency | None  # None: "fifo"
    is_sparse: bool = False  # disk space is allocated as volumes fill
    refusal: str = ""  # why nothing can be written, as a sentence; empty: it can


@dataclass(slots=True)
class Recovered:
    """A mount point, ready to be served."""

    manifest: Manifest  # as in META.txt now
    descriptors: dict[int, int]  # of all data files, by volume id
    volumes: list[Volume]  # oldest first
    newest_seq: int  # the highest sequence number, also of volumes that were dropped
    index: Index
    purges: tuple[Purge, ...]  # those that are needed, oldest first
    hot: str = ""  # if the last process has stopped: which HOT.txt is valid; else empty
    recovery: RecoveryStats = field(default_factory=RecoveryStats)
    # Of the store; counts what the disk has refused so far.
    stats: StoreStats = field(default_factory=StoreStats)

    def close(self, fs: FileSystem) -> None:
        """Close all files as they are: the store cannot be opened after all."""
        self.index.close()
        for volume in self.volumes:
            with suppress(OSError):
                volume.close_index_file()
        close_all(fs, self.descriptors.values())


class Rings:
    """
    The volumes of one mount point.

    Attributes (read-only for others):
        directory, index, stats, clock: Of the store.
        descriptors: Of all data files, by id.
        refusal: Why nothing can be written until the store is opened again, as a sentence;
            empty: it can.
        volumes: The valid volumes by sequence number. The dict object never changes.
        actives: The volumes that are written, by ring. None: the ring has none yet; ring
            main always has one. The list object never changes.
        newest: The newest volume of each ring, also when it was reclaimed.
        last_seq: The highest sequence number of all volumes there ever were.
        manifest: The contents of META.txt.
        unresolved: Volumes of which a start may find more than it should: an append or a
            sync has failed, or META.txt names one that was given up.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        recovered: Recovered,
        options: LogOptions,
        clock: Clock,
    ) -> None:
        """Continue with what recovery has found."""
        self.directory, self.clock = directory, clock
        self.index, self.stats = recovered.index, recovered.stats
        self.descriptors = recovered.descriptors
        self._syncs_each = options.sync_mode == "always"
        self.refusal = options.refusal
        self.manifest = recovered.manifest
        self.volumes = {volume.seq: volume for volume in recovered.volumes}
        self.actives: list[Volume | None] = [None, None]
        self.newest: list[Volume | None] = [None, None]
        # What `appended` does not count: from before, and free at the ends of volumes.
        self._uncounted = [0, 0]
        self.last_seq = recovered.newest_seq
        self.unresolved: set[Volume] = set()
        self.uncertain: set[str] = set()
        self._last_progress = (0, 0)  # time and end
        for volume in recovered.volumes:
            self.prepare(volume)
            self._begin(volume)
            # With "fifo", all of probation is reclaimed first: what is put from now on
            # replaces records there.
            is_main = volume.use.ring is Ring.MAIN
            if is_main or volume.seq > self.manifest.probation_first:
                self.actives[volume.use.ring] = volume
        self._uncounted = [v.appended if v else 0 for v in self.newest]

    # --- Which volumes there are ---------------------------------------------------

    @property
    def last_progress_us(self) -> int:
        """The time that was last written to LOCK."""
        return self._last_progress[0]

    @property
    def may_bring_back(self) -> bool:
        """Whether a power loss may bring back a volume that was given up."""
        return not all(map(self.has, self.unresolved))

    @property
    def written(self) -> list[Volume]:
        """The active volumes."""
        return list(filter(None, self.actives))

    @property
    def last_started(self) -> Volume:
        """The active volume that was started last."""
        return max(self.written, key=lambda volume: volume.seq)

    @property
    def open_volumes(self) -> list[Volume]:
        """The volumes to which records may be appended."""
        return [v for v in self.written if v.lacks_header or not v.is_retired]

    def has(self, volume: Volume) -> bool:
        """Return whether a volume is valid still; for any thread."""
        return self.volumes.get(volume.seq) is volume

    def of(self, ring: Ring) -> list[Volume]:
        """Return the valid volumes of a ring, oldest first."""
        return [v for _, v in sorted(self.volumes.items()) if v.use.ring is ring]

    def appended(self) -> list[int]:
        """Return the bytes of records appended to each ring since the store was opened."""
        pairs = zip(self.newest, self._uncounted, strict=True)
        return [v.appended - uncounted if v else 0 for v, uncounted in pairs]

    def prepare(self, volume: Volume) -> None:
        """
        Let the index have what it needs for a volume, which is not valid yet.

        Raises:
            MemoryError: It has not. Another volume may be prepared in its place.
        """
        self.index.add_volume(volume.seq)
        self.index.bind_volume(volume.seq, volume.fd, volume.id, volume.salts)

    def add(self, volume: Volume) -> None:
        """Add a prepared volume that META.txt names, as the active one of its ring."""
        self.volumes[volume.seq] = self.actives[volume.use.ring] = volume
        self._begin(volume)

    def _begin(self, volume: Volume) -> None:
        """Let a volume be the newest of its ring."""
        ring = volume.use.ring
        before = self.newest[ring]
        if before is not None:
            free = max(0, before.length - before.end)
            self._uncounted[ring] += free
            volume.born = before.appended + free
        self.newest[ring] = volume
        self.last_seq = max(self.last_seq, volume.seq)
        self.index.set_age(volume.seq, ring, volume.born, volume.end)

    def drop(self, volume: Volume) -> None:
        """Drop a volume from memory that META.txt no longer names."""
        del self.volumes[volume.seq]
        records, lost = self.index.reclaim(volume.seq)
        self.stats.evicted_records += records
        self.stats.evicted_bytes += lost
        _logger.info(
            "rotation.reclaimed volume=%d seq=%d ring=%s evicted=%d bytes=%d",
            volume.id,
            volume.seq,
            RING_NAMES[volume.use.ring],
            records,
            lost,
        )

    # --- META.txt and LOCK ---------------------------------------------------------

    def write_manifest(
        self,
        kept: Iterable[Volume] | None = None,
        written: Collection[Volume] | None = None,
        *,
        probation_first: int = 0,
        purges: ListedPurges | None = None,
    ) -> None:
        """
        Write META.txt.

        Args:
            kept: The volumes that stay valid; None: all.
            written: Those that are being written, none after a clean stop; None: those to
                which records may be appended.
            probation_first: Volumes of ring probation up to this one are reclaimed before
                any of ring main from now on; at least those named before are.
            purges: What it says of PURGE.txt from now on; None: the same as before, or
                nothing if no purge is needed with these volumes.

        Raises:
            OSError: The old one is still in place.
        """
        kept = self.volumes.values() if kept is None else kept
        volumes = sorted(kept, key=lambda volume: volume.seq)
        written = self.open_volumes if written is None else written
        before = self.manifest.purges
        is_needed = before is not None and before.seq >= volumes[0].seq
        if purges is None and (is_needed or PURGE in self.uncertain):
            purges = before
        last = max(probation_first, self.manifest.probation_first)
        probation = (v.seq for v in volumes if v.use.ring is Ring.PROBATION)
        first = (seq for seq in probation if seq <= last)
        manifest = self.manifest._replace(
            time_us=self.clock.now_us(),
            volumes=tuple(v.listed(is_open=v in written) for v in volumes),
            probation_first=max(first, default=0),
            purges=purges,
        )
        if volumes[-1].seq < self.manifest.volumes[-1].use.seq:
            # A start refuses volumes that are newer than all of META.txt: a power loss must
            # not bring back the header of one.
            for number in self.descriptors.keys() - {volume.id for volume in volumes}:
                self.directory.fs.sync(self.descriptors[number])
        self.uncertain.add(META)
        self.directory.write_manifest(manifest)
        self.uncertain.discard(META)
        self.manifest = manifest
        self.unresolved.intersection_update(written)
        self.index.block_writes(is_blocked=bool(self.unresolved))

    def bind_hot(self, identity: str) -> None:
        """Let META.txt say from now on which HOT.txt is valid."""
        self.manifest = self.manifest._replace(hot=identity)

    @contextmanager
    def completing(self, change: str) -> Iterator[None]:
        """
        Complete a change that a start finds on the disk already.

        No step inside may fail. If one raises all the same, memory and disk may differ:
        nothing is written again until the store is opened again.

        Args:
            change: What is completed.

        Raises:
            ReadOnlyError: A step has raised.
        """
        try:
            yield
        except BaseException as error:
            self.index.block_writes(is_blocked=True)
            self.refusal = (
                f"{change} could not be completed ({error!r}): files can be read, but not"
                " stored or deleted before the instance is started again"
            )
            if not isinstance(error, Exception):
                raise
            _logger.exception("store.refuses_writes change=%r", change)
            raise ReadOnlyError(self.refusal) from error

    def start(self, volume: Volume) -> None:
        """
        Write the header and the index file of a volume that META.txt names already.

        A header that the disk refuses has to be written before anything is appended. The
        volume must not be taken out of META.txt again, because that would be older than a
        header that is on the disk after all. A missing index file is only counted.
        """
        before = self.newest[volume.use.ring]
        try:
            volume.start(
                self.clock.now_ms(),
                mount_count=self.manifest.mount_count,
                oldest_seq=self.manifest.volumes[0].use.seq,
                previous_salt=0 if before is None else before.salt,
            )
        except OSError as error:
            self.stats.count_write_error(error)
            self.block_writes_of(volume)
        else:
            self._open_index_file(volume)

    @property
    def has_progress(self) -> bool:
        """Whether more was appended than LOCK says."""
        return sum(active.end for active in self.written) != self._last_progress[1]

    def record_progress(self, *, ahead_us: int = 0) -> None:
        """
        Write to LOCK how far the active volumes were written, and the time.

        Args:
            ahead_us: Added to the time, so that the next calls need not write it.
        """
        if self.refusal or self.unresolved:
            return  # A start takes a volume that LOCK names without its header for another.
        time_us = self.clock.now_us() + ahead_us
        store_id, boot = self.manifest.store_id, self.manifest.boot
        lines = [
            Progress(store_id, active.seq, active.salt, active.end, time_us, boot)
            for active in filter(None, self.actives)
        ]
        # It only helps a start to notice replaced files: the next one may succeed.
        with suppress(OSError):
            self.directory.write_progress(lines[0], lines[-1])
            self._last_progress = time_us, sum(line.end for line in lines)

    # --- Index files ---------------------------------------------------------------

    def write_index(self, volume: Volume) -> None:
        """Write pending entries; if that fails, a start finds the records by a scan."""
        self._attempt(volume, volume.write_index)
        self.record_progress()

    def seal(self, volume: Volume) -> None:
        """Seal a volume; without a complete index file the next start scans it."""
        self._attempt(volume, volume.seal)

    def close_index_file(self, volume: Volume) -> None:
        """Close an index file; if it is not complete then, the next start scans."""
        self._attempt(volume, volume.close_index_file)

    def _open_index_file(self, volume: Volume) -> None:
        """Create the index file of a volume; without it, the volume still works."""
        path = self.directory.index_path(volume.id)
        self._attempt(volume, lambda: volume.open_index_file(path, 0))

    def _attempt(self, volume: Volume, write: Callable[[], None]) -> None:
        """Write an index file; count what the disk refuses, and continue without it."""
        try:
            write()
        except OSError as error:
            if not self._is_full(error):
                self.stats.count_index_error(error, volume=volume.id)

    # --- What the disk refuses -----------------------------------------------------

    def _is_full(self, error: Exception) -> bool:
        """
        Return whether work that can wait was refused for want of space.

        That is no error. A reclaim is begun when room is needed; lines of an index file
        are written with the next ones, or a start scans the volume.
        """
        fs, path = self.directory.fs, self.directory.data
        if isinstance(error, OSError):
            return is_short(fs, path, error)
        return isinstance(error, DiskFullError)

    def count_postponed(self, error: OSError | MemoryError | StoreError) -> None:
        """Count that work that can wait was refused."""
        if not self._is_full(error):
            self.stats.count_rotation_error(error)

    @contextmanager
    def refusals_counted(self, what: str) -> Iterator[None]:
        """Count what the disk refuses, and raise it as an error of the store."""
        if self.refusal:
            raise ReadOnlyError(self.refusal)
        try:
            yield
        except (DiskFullError, OSError, MemoryError) as error:
            self.stats.count_rotation_error(error)
            if isinstance(error, DiskFullError):
                raise
            raise refusal_of(error, what) from error

    def block_writes_of(self, volume: Volume) -> None:
        """Append nothing to any volume before this one is settled."""
        self.unresolved.add(volume)
        self.index.block_writes(is_blocked=True)

    def resolve_failed_writes(self) -> None:
        """
        Let no start find what was refused.

        Erase what is behind the end of a volume, or write to META.txt where it ends. Only
        the second helps after a failed sync, because a later one proves nothing, and if a
        volume was given up.

        Raises:
            OSError: The disk still refuses; what is not settled stays so.
        """
        for volume in self.unresolved.copy():
            if volume.lacks_header:
                volume.write_header()
                self._open_index_file(volume)
            if volume in self.open_volumes:
                with suppress(OSError):
                    volume.erase_refused(sync=self._syncs_each)
                    self.unresolved.discard(volume)
        closed = self.unresolved.copy()
        if closed:
            self.write_manifest(written=set(self.open_volumes) - closed)
            for volume in closed:
                self.seal(volume)
        self.index.block_writes(is_blocked=bool(self.unresolved))


def refusal_of(error: OSError | MemoryError, what: str) -> StoreIOError:
    """Return the error for something that could not be done."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError(f"no memory to {what}")
    if error.errno == errno.EROFS:
        return ReadOnlyError(
            f"disk refused to {what}: it is read-only; files can be read, and stored again"
            " when it is writable"
        )
    return StoreIOError(f"disk refused to {what}: {error.strerror or error}")


class KeptPurges:
    """
    The purges that are needed, in memory and in PURGE.txt.

    Attributes (read-only for others):
        dropped_us: The time of the newest purge that was dropped because all records that
            it covered were reclaimed; -1: there was none.
        opened_us: The time at which the store was opened.
    """

    def __init__(self, rings: Rings, purges: Iterable[Purge]) -> None:
        """Begin with what recovery has found."""
        self._rings, self._index = rings, rings.index
        self._index.load_purges(purges)
        self._index.sweep_purges()
        self.dropped_us = -1
        self.opened_us = rings.clock.now_us()
        # Where the next line of PURGE.txt begins; 0: it has to be replaced. And the end
        # above which it is.
        self._end = self._end_max = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self._index.purge_count

    def add(self, prefix: bytes) -> None:
        """
        Let every record stored so far whose key begins with a prefix be a miss.

        Raises:
            TooManyPurgesError: The list is full.
            OutOfMemoryError: There is no memory for it.
            StoreIOError: The disk refused. In all cases nothing has changed; but after
                the last, the purge may take effect at the next start.
        """
        self._refuse_too_many(prefix)
        rings = self._rings
        with rings.refusals_counted("record a purge"):
            self._index.reserve_purge(prefix)
            purge = Purge(rings.clock.next_us(), rings.last_seq, prefix)
            if META in rings.uncertain:
                rings.write_manifest()
            # Not before: META.txt may name no file now.
            rings.uncertain.add(PURGE)
            end, self._end = self._end, 0
            end, listed = self._write(purge, end)
            rings.write_manifest(purges=listed)
        self._end = end
        rings.uncertain.discard(PURGE)
        self._index.add_purge(purge.time_us, purge.seq)

    def _refuse_too_many(self, prefix: bytes) -> None:
        limits = PURGES_MAX, PURGE_BYTES_MAX
        if self._index.has_room_for_purge(prefix, *limits):
            return
        self._index.sweep_purges()
        if not self._index.has_room_for_purge(prefix, *limits):
            raise TooManyPurgesError(*limits)

    def _write(self, purge: Purge, end: int) -> tuple[int, ListedPurges]:
        """
        Add a purge to PURGE.txt.

        Returns:
            Where the next line begins, and what META.txt has to say.
        """
        rings, before = self._rings, self._rings.manifest.purges
        if before is not None and 0 < end <= self._end_max:
            data, listed = encode_purge(before, purge)
            rings.directory.append(PURGE, data, end)
            return end + len(data), listed
        self._index.sweep_purges()
        purges = [*starmap(Purge, self._index.purges()), purge]
        data, listed = encode_purges(rings.manifest.store_id, before, purges)
        rings.directory.replace(PURGE, data)
        self._end_max = 2 * len(data) + _PURGE_GROWTH
        return len(data), listed

    def drop(self) -> None:
        """Drop the purges that META.txt no longer needs."""
        oldest = min(self._rings.volumes, default=self._rings.last_seq + 1)
        last_us = self._index.last_purge_below(oldest)
        if not last_us:
            return
        before = self.count
        # First: a reader that finds no purge finds out that one was dropped.
        self.dropped_us = last_us
        self._index.drop_purges(oldest)
        left = self.count
        _logger.info("purge.dropped dropped=%d left=%d", before - left, left)
        # If a volume is given up, META.txt names the file until it is replaced.
        if self._rings.manifest.purges is None:
            with suppress(OSError):  # The next start removes it.
                self._rings.directory.remove(PURGE)
