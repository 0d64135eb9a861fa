"""
The store: keys and values on one mount point.

It is composed of a `RecordReader` and a `RecordWriter`: read `reading.py` and `writing.py`
first. This module opens and closes a store, and says how it is. The other modules of this
package are the parts. The store contains no HTTP, no settings and no other tier; it gets
numbers, a file system and a clock.

Threads: any thread may call any method; `close` only when no other one does. There is one
lock. Every method that changes the index, the log or a volume holds it; a thread that holds
it may call them, so that it can decide on what it has read. `get`, `stat`, `read_raw` and
`validate` hold nothing while they read: a lookup waits for no other thread, a data file
stays open as long as the store, and a record that another thread moves or reclaims while it
is read fails its checks: then it is looked up again. They take the lock only to let a
damaged record leave the index, and, once a second, to note that a record has expired.
`sync` waits for the disk without the lock.
Counters may miss a count when several threads count at the same time.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Self

from volcache.background import Background
from volcache.errors import ForeignDirectoryError, MountPointError, StoreIOError
from volcache.geometry import refuse_too_many
from volcache.store.directory import HOT, StoreDirectory, unusable
from volcache.store.disk import (
    VOLUMES_MIN,
    Holding,
    holding_of,
    refuse_few_descriptors,
    refuse_too_small,
)
from volcache.store.eviction import make_policy
from volcache.store.files import OsFileSystem, is_short
from volcache.store.key_scan import KeyScan
from volcache.store.log import CircularLog
from volcache.store.native import make_clock
from volcache.store.reading import RecordReader
from volcache.store.recovery import NothingStoredError, recover
from volcache.store.rings import LogOptions
from volcache.store.scrub import Scrub
from volcache.store.stats import READ_ERRORS_IN_ROW_MAX
from volcache.store.usage import purge_stay_of, usage_of
from volcache.store.writing import RecordWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.clock import Clock
    from volcache.store.eviction import Eviction, Frequency
    from volcache.store.files import FileSystem
    from volcache.store.purges import PurgeStay
    from volcache.store.rings import Recovered, SyncMode
    from volcache.store.stats import StoreUsage

_logger = logging.getLogger("volcache.store")


class Store:
    """
    A mount point that is open.

    Attributes (read-only for others):
        get, peek, stat, read_raw, validate, is_current, is_moved: Of the `RecordReader`.
        put, touch, delete, flush, purge, run_deferred: Of the `RecordWriter`.
        recovery: What the start found.
        stats: What was counted since.
        index: For the front, as `run_deferred`.
        clock: Never goes back; the time at which records are stored and expire.
        holding: What the disk could hold when the store was opened.
        lock: Held by whatever changes the store; see the module.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        recovered: Recovered,
        options: LogOptions,
        holding: Holding,
        clock: Clock,
    ) -> None:
        """Use `Store.open`."""
        self._log = log = CircularLog(directory, recovered, options, clock)
        self.index, self.stats, self.clock = log.rings.index, log.rings.stats, clock
        self.lock = self.index.lock
        self._reader = reader = RecordReader(log.rings, log.kept_purges, log.syncs)
        self.get, self.peek, self.stat = reader.get, reader.peek, reader.stat
        self.read_raw, self.validate = reader.read_raw, reader.validate
        self.is_current, self.is_moved = reader.is_current, reader.is_moved
        self._writer = writer = RecordWriter(log)
        self.put, self.touch, self.delete = writer.put, writer.touch, writer.delete
        self.put_record, self.run_deferred = writer.put_record, writer.run_deferred
        self.flush, self.purge = writer.flush, writer.purge
        self.holding = holding
        self.recovery = recovered.recovery
        self._directory = directory
        self._valid_hot = recovered.hot
        self._mount_count = recovered.manifest.mount_count
        self._is_closed = False

    @classmethod
    def open(  # noqa: PLR0913 - By keyword.
        cls,
        directory: str,
        *,
        volume_size: int,
        volume_num: int | None,
        volume_size_least: int = 0,
        sync_mode: SyncMode = "periodic",
        eviction: Eviction = "frequency",
        reinsert_reads: float = 0.1,
        is_sparse: bool = False,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """
        Open a mount point; create one where there is none.

        If the disk does not accept writes, because it is read-only, or full and no volume
        can be given up, what is stored is served, and nothing can be stored until the
        store is opened again.

        Args:
            directory: Path of the mount point.
            volume_size: Bytes of a volume, header included. If it differs from last
                time, each volume gets the new size when its id is used again.
            volume_num: Number of volumes, at least 2. If it is lower than last time, the
                oldest volumes are removed at once. None: as many as the disk holds, less
                a reserve; those of a new mount point have another size if there would be
                too few or too many, and it is kept, see `disk.py`.
            volume_size_least: With None: they are not made smaller than this; 0: they are
                not made smaller.
            sync_mode: When writes reach the disk: "always" before a put or delete
                returns, "periodic" when the caller calls `sync`, "none" when the kernel
                decides. `close` always syncs.
            eviction: "frequency" keeps what is read again, see `eviction.py`; with fewer
                than 4 volumes, it is the same as "fifo", which reclaims the oldest volume
                as a whole. May differ from last time.
            reinsert_reads: For "frequency": bytes that may be copied for each byte that is
                read, 0 to 1.
            is_sparse: The disk space of a volume is allocated as it fills, not when it is
                started. Then a disk that others fill is noticed before each step: the
                next volume is started early, in the space of the oldest one; if nothing
                but the active volumes is there, the put is refused. May differ from last
                time.
            fs: The file system.
            clock: Not used by another store.

        Raises:
            ForeignDirectoryError: The directory contains something else.
            StoreLockedError: Another process has it open.
            FormatVersionError: It was written by another version of volcache.
            MismatchedFilesError: Its files do not belong together.
            UnreadableVolumeError: The disk cannot be read where records may be.
            DiskTooSmallError: There are no volumes yet, and the disk does not hold two.
            GeometryError: There would be too many volumes for their size.
            TooFewDescriptorsError: This process may not have so many open files.
            MountPointError: It cannot be read or written.
        """
        wanted = LogOptions(volume_size, volume_num or 0, sync_mode, None, is_sparse)
        least = volume_size_least or volume_size
        make = partial(make_policy, eviction, reinsert_reads)
        refuse_too_many(volume_size, volume_num or VOLUMES_MIN)
        fs, clock = fs or OsFileSystem(), clock or make_clock()
        try:
            opened = StoreDirectory.open(fs, directory)
            found = _recover(opened, wanted, least, make, clock)
            return cls._recovered(opened, found, clock)
        except MountPointError as error:
            refused = _lasting_refusal(fs, directory, error)
            if refused is None:
                raise
            try:
                opened = StoreDirectory.open(fs, directory, is_written=False)
                found = _recover(opened, wanted, least, make, clock, refused)
                return cls._recovered(opened, found, clock)
            except (ForeignDirectoryError, NothingStoredError):
                raise error from refused

    @classmethod
    def _recovered(
        cls,
        directory: StoreDirectory,
        parts: tuple[Recovered, LogOptions, Holding],
        clock: Clock,
    ) -> Self:
        """Return the store; without memory for it, all files are closed again."""
        try:
            return cls(directory, *parts, clock)
        except BaseException:
            parts[0].close(directory.fs)
            directory.close()
            raise

    # --- State ---------------------------------------------------------------------

    def __contains__(self, key: bytes) -> bool:
        """See `RecordReader`."""
        return key in self._reader

    def key_scan(self, cursor: str = "") -> KeyScan:
        """
        Return a scan of the keys, from the beginning or from where another one stopped.

        Between two reads of it nothing is held. See `key_scan.py` for what a change
        meanwhile does. The store must not be closed during a read.

        Raises:
            ValueError: The cursor is not one.
        """
        return KeyScan(self._log.rings, self._reader.is_over, cursor)

    @property
    def refusal(self) -> str:
        """Why nothing can be stored until the store is opened again; empty: it can."""
        return self._log.rings.refusal

    @property
    def count(self) -> int:
        """The number of keys, expired and purged ones included."""
        with self.lock:
            return self.index.count

    def take_hot_snapshot(self) -> tuple[bytes, str]:
        """
        Return HOT.txt and what it must be bound to; empty bytes: there is none to use.

        The binding is right only for the last process, in this directory, since this
        boot. HOT.txt is removed; META.txt has a new mount count already, so that it would
        not be used again if it came back.
        """
        valid, self._valid_hot = self._valid_hot, ""
        if not valid:
            return b"", ""
        try:
            is_valid = self._directory.identify_hot() == valid
            data = self._directory.read(HOT) if is_valid else b""
            self._directory.remove_hot()
        except OSError as error:
            _logger.warning("hot.snapshot_failed error=%r", str(error))
            return b"", ""
        return data or b"", self._binding(self._mount_count - 1)

    def write_hot_snapshot(self, make: Callable[[str], bytes]) -> None:
        """
        Write HOT.txt, after the last put and before `close`.

        Args:
            make: Returns the contents for a binding.
        """
        binding = self._binding(self._mount_count)
        # The next process would not know that copies of purged records are not valid.
        if not binding or self._log.kept_purges.dropped_us >= 0 or self.refusal:
            return
        try:
            self._directory.replace(HOT, make(binding))
            self._log.rings.bind_hot(self._directory.identify_hot())
        except OSError as error:
            _logger.warning("hot.snapshot_failed error=%r", str(error))

    def _binding(self, mount_count: int) -> str:
        """Return what identifies a mount of this directory; empty: not known."""
        boot = self._directory.boot
        if not boot:
            return ""
        root = self._directory.fs.stat(self._directory.root)
        return (
            f"store {self._log.rings.manifest.store_id:016x} mount {mount_count}"
            f" directory {root.st_dev}:{root.st_ino} boot {boot:08x}"
        )

    def held_bytes(self) -> int:
        """
        Return how many bytes of the disk the volumes and index files take.

        Raises:
            StoreIOError: The disk does not answer.
        """
        try:
            return holding_of(self._directory).held
        except OSError as error:
            raise StoreIOError(f"the disk cannot be read: {error.strerror}") from error

    def is_ready(self) -> bool:
        """
        Return whether this store should get requests: false after several read errors.

        While it is false, each call reads from the disk: there may be no requests whose
        reads would show that the disk works again.
        """
        if self.stats.is_disk_good:
            return True
        if not self._log.probe(READ_ERRORS_IN_ROW_MAX):
            return False
        self.stats.count_disk_recovery()
        return True

    def usage(self, *, volumes: bool = True) -> StoreUsage:
        """
        Return how full the store is.

        Args:
            volumes: List the volumes: ten times as expensive, some microseconds for each.
        """
        with self.lock:
            return usage_of(self._log, volumes=volumes)

    def purge_stay(self) -> PurgeStay:
        """Return how long a purge that is made now would stay in the list."""
        with self.lock:
            return purge_stay_of(self._log)

    # --- Syncing and closing -------------------------------------------------------

    def sync(self) -> None:
        """
        Return when everything written up to now survives a power loss.

        For any one thread. A refusal is logged and counted, and the volume concerned is
        not written again: what the kernel has dropped of it is found damaged.
        """
        self._log.syncs.sync()

    def wait_to_sync(self, seconds: float) -> None:
        """Return after a time, or as soon as `sync` should be called."""
        if self._log.syncs.wanted.wait(seconds):
            self._log.syncs.wanted.clear()

    def want_sync(self) -> None:
        """Let `wait_to_sync` return."""
        self._log.syncs.wanted.set()

    def scrub(self, rate: int, *, period: float = 3600.0) -> Scrub:
        """
        Verify the volumes in the background, see `scrub.py`, until it is stopped.

        To be stopped before `close`.

        Args:
            rate: Bytes per second, above 0.
            period: Seconds from the beginning of a pass to that of the next, at least:
                to verify the same bytes more often is of no use.
        """
        return Scrub(self._log.rings, rate, period)

    def close(self) -> None:
        """Write and sync what is buffered, and release the mount point."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._log.close()
        finally:
            self._directory.close()

    def drop(self) -> None:
        """
        Close all files as they are, as the death of the process would; nothing is written.

        For a store that an exception of a signal handler has left in the middle of a
        change: what is in memory may not be what is on the disk. The next opening recovers.
        No thread may be in a method. May be called again.
        """
        self._is_closed = True
        try:
            self._log.drop()
        finally:
            self._directory.close()

    def abandon(self) -> None:
        """
        Give up the locks that a forked child has inherited; nothing is written.

        In the parent, the store stays open and locked. In the child, no other method may
        be called from now on: a lock of a thread that the child does not have may be held.
        """
        self._is_closed = True
        self._directory.close()


class PeriodicSync:
    """
    A thread that calls `Store.sync` at an interval, for the sync mode "periodic".

    The system calls that it waits in release the interpreter, so that requests continue.
    """

    def __init__(self, store: Store, interval: float) -> None:
        """Start at once; `interval` in seconds."""
        self._store = store
        self._interval = interval
        self._stopped = threading.Event()
        self._began: float | None = None  # the sync that is running
        self._thread = Background("sync", self._sync, self._stopped.is_set)
        self._thread.start()

    def _sync(self) -> None:
        """Wait, then sync unless the thread is to stop."""
        self._store.wait_to_sync(self._interval)
        if self._stopped.is_set():
            return
        self._began = time.monotonic()
        try:
            self._store.sync()
        finally:
            self._began = None

    @property
    def is_failing(self) -> bool:
        """Whether the last sync raised, because of a bug."""
        return self._thread.failing_since > 0

    def stalled_seconds(self) -> float:
        """Return for how long a sync has been running, or all have raised; else 0."""
        began = self._began or self._thread.failing_since
        return time.monotonic() - began if began else 0.0

    def stop(self) -> None:
        """Return when the thread has ended and will not use the store again."""
        self._stopped.set()
        self._store.want_sync()
        self._thread.join()


def _recover(
    opened: StoreDirectory,
    wanted: LogOptions,
    least: int,
    make: Callable[[int, int], Frequency | None],
    clock: Clock,
    refused: OSError | None = None,
) -> tuple[Recovered, LogOptions, Holding]:
    """
    Recover a directory, which is closed if that fails.

    Args:
        opened: The directory.
        wanted: How it is used, without a policy; `volume_num` 0: as many as it holds.
        least: Of the size of volumes that is chosen then.
        make: Makes the policy for a size and a number of volumes.
        clock: Of the store.
        refused: Why it can only be read; None: it can be written.
    """
    try:
        holding, size = holding_of(opened), wanted.volume_size
        if not wanted.volume_num:
            size = holding.auto_size(size, least)
        if refused is None:
            refuse_too_small(opened.root, holding, size)
        number = wanted.volume_num or holding.auto_volumes(size)
        refuse_few_descriptors(opened.root, number)
        # With fewer volumes than the settings have, there is less to divide.
        policy = make(size, min(number, holding.volumes_of(size)))
        refusal = "" if refused is None else _refusal_text(refused)
        options = wanted._replace(
            volume_size=size, volume_num=number, policy=policy, refusal=refusal
        )
        recovered = recover(opened, options, clock)
    except OSError as error:
        opened.close()
        raise unusable(opened.root, error) from error
    except BaseException:
        opened.close()
        raise
    if refused is not None:
        recovered.stats.count_write_error(refused)
    return recovered, options, holding


def _lasting_refusal(
    fs: FileSystem, directory: str, error: MountPointError
) -> OSError | None:
    """Return why a disk does not accept writes; None if the next start may succeed."""
    cause = error.__cause__
    if not isinstance(cause, OSError):
        return None
    try:
        is_read_only = cause.errno == errno.EROFS and fs.space(directory).is_read_only
        is_lasting = is_read_only or is_short(fs, directory, cause)
    except OSError:
        return None
    return cause if is_lasting else None


def _refusal_text(error: OSError) -> str:
    """Say why a store is only read."""
    what = "read-only" if error.errno == errno.EROFS else "full"
    return (
        f"the disk was {what} when the instance was started: files can be read, but not"
        " stored or deleted before it is started again on a disk that can be written"
    )
