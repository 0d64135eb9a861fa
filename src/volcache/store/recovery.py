"""
Recovery: open a mount point at startup.

1. Open the data files and take an inventory (`inventory.py`): nothing is changed.
2. Replay the volumes into the index, ring probation and then ring main, each oldest first,
   so that later entries win (see `eviction.py`): the entries of the index file, then the
   records after the last entry, found by a scan.
3. Remove volumes beyond `volume_num`, and those that may have outdated records. Add what
   the scan found to the index files, so that the next start need not scan again.
4. Write META.txt, with a new mount count and what is known of each volume now. All that
   follows carries that mount count. Before, PURGE.txt is written again if it has purges
   that are not needed, or one that a crash may have left unacknowledged.

Damage never ends the start: it is counted, logged and skipped. But a record that might be
outdated is never served. If it is not known which keys a volume had, it and all older ones
of its ring are dropped. Where a file was replaced, or where the disk does not answer, the
start is refused instead, because the records may still be recovered.
"""

from __future__ import annotations

import errno
import gc
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import (
    MismatchedFilesError,
    MountPointError,
    UnreadableVolumeError,
)
from volcache.store.directory import DATA, INDEX, read_whole
from volcache.store.disk import SHORT_BYTES
from volcache.store.files import DISK_FULL
from volcache.store.format import VOLUME_HEADER_BYTES, VOLUME_ID_MAX, Ring, Segment
from volcache.store.index_file import (
    IndexContents,
    remove_index_file,
    replay_index_file,
)
from volcache.store.inventory import (
    Inventory,
    following_volume,
    outdated_bounds,
    take_inventory,
)
from volcache.store.native import make_index
from volcache.store.purges import PurgeList, encode_purges, next_file
from volcache.store.scan import (
    TAIL_WINDOW_BYTES,
    WHOLE_VOLUME,
    Found,
    Gap,
    Torn,
    Unreadable,
    VolumeReader,
    scan_records,
)
from volcache.store.spill import Spill
from volcache.store.stats import RecoveryStats, StoreStats
from volcache.store.volume import NO_FILE, Volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.files import FileSystem
    from volcache.store.format import RecordHeader, VolumeUse
    from volcache.store.manifest import ListedPurges, ListedVolume, Manifest
    from volcache.store.native import Index

_logger = logging.getLogger("volcache.store")

_SAMPLE_BYTES: Final = 2**16  # of each file
_CHUNK_BYTES: Final = 2**21
_HEADER_BYTES: Final = 4096  # read for the header of one record


class NothingStoredError(MountPointError):
    """A disk that cannot be written has no volume that could be read."""


@dataclass(slots=True)
class Recovered:
    """A mount point, ready to be served."""

    manifest: Manifest  # as in META.txt now
    hot: str  # if the last process has stopped: which HOT.txt is valid; else empty
    descriptors: dict[int, int]  # of all data files, by volume id
    volumes: list[Volume]  # oldest first
    newest_seq: int  # the highest sequence number, also of volumes that were dropped
    index: Index
    purges: PurgeList
    recovery: RecoveryStats
    stats: StoreStats  # of the store; counts what the disk has refused so far


def recover(
    directory: StoreDirectory,
    *,
    volume_size: int,
    volume_num: int,
    clock: Clock,
    writes_probation: bool,
    is_read_only: bool = False,
) -> Recovered:
    """
    Build the index of a mount point and make it ready for writing.

    Args:
        directory: Locked by this process.
        volume_size: The length of a volume that is started from now on.
        volume_num: The maximum number of volumes; the oldest ones beyond are removed.
        clock: Is advanced to the latest time that any file names.
        writes_probation: Ring probation is written, too.
        is_read_only: Change nothing; what is returned can be read only. META.txt keeps its
            mount count, and HOT.txt stays for the next start, but is not used.

    Raises:
        NothingStoredError: With `is_read_only`: there is nothing to be read.
        OSError: The disk cannot be written; what was stored is still there.
        FormatVersionError: A volume was written by another version of volcache.
        ForeignDirectoryError: `data` contains files that are not volumes.
        MismatchedFilesError: Files were replaced; nothing was changed.
        UnreadableVolumeError: The disk cannot be read where records may be; nothing was
            changed.
    """
    descriptors = _open_data_files(directory)
    # Millions of objects are created, and none is garbage: to look for it takes longer
    # than all the rest.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        lengths = (directory.fs.size(fd) for fd in descriptors.values())
        volume_bytes = max(volume_size, *lengths, 0)
        recovery = _Recovery(
            directory,
            descriptors,
            volume_bytes,
            max(volume_num, len(descriptors)) if is_read_only else volume_num,
            clock,
            rings=tuple(Ring) if writes_probation else (Ring.MAIN,),
        )
        return recovery.read() if is_read_only else recovery.run()
    except BaseException:
        _close_all(directory, descriptors)
        raise
    finally:
        if is_collecting:
            gc.enable()


def _open_data_files(directory: StoreDirectory) -> dict[int, int]:
    """Open the data files that exist."""
    descriptors: dict[int, int] = {}
    try:
        for volume in directory.volume_ids():
            if volume <= VOLUME_ID_MAX:
                path = directory.data_path(volume)
                descriptors[volume] = directory.fs.open(path, create=False)
    except BaseException:
        _close_all(directory, descriptors)
        raise
    return descriptors


def _create_data_files(
    directory: StoreDirectory, descriptors: dict[int, int], ids: set[int]
) -> None:
    """
    Create the other data files there may be, so that none can fail later.

    Those that a full disk refuses are not used before the next start.
    """
    for volume in sorted(ids - set(descriptors)):
        path = directory.data_path(volume)
        try:
            descriptors[volume] = directory.fs.open(path, create=True)
        except OSError as error:
            if error.errno not in DISK_FULL or not descriptors:
                raise
            break
    # fdatasync makes the bytes of a file safe, but not its name.
    directory.fs.sync_directory(directory.data)


def _close_all(directory: StoreDirectory, descriptors: dict[int, int]) -> None:
    for fd in descriptors.values():
        directory.fs.close(fd)


class _Recovery:
    """One start; the steps are those in the docstring of the module."""

    def __init__(
        self,
        directory: StoreDirectory,
        descriptors: dict[int, int],
        volume_bytes: int,
        volume_num: int,
        clock: Clock,
        *,
        rings: tuple[Ring, ...],
    ) -> None:
        """
        Take the inventory.

        Args:
            directory: Of the store.
            descriptors: Of the data files.
            volume_bytes: The length of the longest volume.
            volume_num: The maximum number of volumes.
            clock: Of the store.
            rings: Those that are written.
        """
        self._rings = rings
        self._directory = directory
        self._descriptors = descriptors
        self._volume_num = volume_num
        self._clock = clock
        self._inventory = take_inventory(directory, descriptors)
        self._stats, self._report = StoreStats(), RecoveryStats()
        self._found = self._inventory.open_volumes(directory, descriptors)
        self._excess = self._oldest(len(self._found) - volume_num)
        self._kept = [v for v in self._found if v not in self._excess]
        self._index = make_index(
            directory.fs,
            self._inventory.manifest.store_id,
            volumes=volume_num,
            volume_bytes=volume_bytes,
            expected=expected_keys(directory, self._kept),
        )
        self._spill = Spill(directory.index)
        self._replay = Replay(
            directory, self._inventory, self._index, self._report, spill=self._spill
        )
        # Of each index file, by sequence number: the end of its valid part, and whether
        # nothing but a torn block follows.
        self._index_files: dict[int, tuple[int, bool]] = {}
        self._purges = self._inventory.purges.purges  # those that are needed

    def run(self) -> Recovered:
        """Replay, then write what the next start needs."""
        try:
            volumes = self._replay_volumes()
            manifest = self._write_files(volumes)
        finally:
            self._spill.close()
        if self._inventory.purges.exists and manifest.purges is None:
            with suppress(OSError):  # META.txt does not name it.
                self._directory.remove_purges()
        # A copy in memcached of what was purged has lost the record it was compared with.
        is_hot_valid = self._replay.is_clean and len(self._purges) == len(
            self._inventory.purges.purges
        )
        return Recovered(
            manifest,
            self._inventory.manifest.hot if is_hot_valid else "",
            self._descriptors,
            volumes,
            max(volumes[-1].seq, self._inventory.manifest.active.seq),
            self._index,
            self._purges,
            self._report,
            self._stats,
        )

    def read(self) -> Recovered:
        """Replay, and write nothing."""
        self._spill.drops = True
        manifest = self._inventory.manifest
        volumes: list[Volume] = []
        if manifest.mount_count:  # It is no new store.
            self._replay_files()
            unknown = self._replay.drop_unknown(self._kept)
            volumes = [volume for volume in self._kept if volume not in unknown]
        if not any(volume.use.ring is Ring.MAIN for volume in volumes):
            message = f"mount point {self._directory.root!r}: nothing is stored there"
            raise NothingStoredError(message)
        return Recovered(
            manifest,
            "",
            self._descriptors,
            sorted(volumes, key=lambda volume: volume.seq),
            manifest.active.seq,
            self._index,
            self._purges,
            self._report,
            self._stats,
        )

    def _replay_files(self) -> None:
        """Build the index."""
        kept = {volume.id for volume in self._kept}
        _count_findings(self._inventory, kept, self._report)
        for volume in self._kept:
            contents = self._replay.replay(volume)
            self._index_files[volume.seq] = (contents.file_end, contents.is_whole)
        self._index.end_load()
        self._replay.refuse()
        self._clock.advance_to(self._replay.latest_us)

    def _replay_volumes(self) -> list[Volume]:
        """Build the index; return the volumes that stay, with all files created."""
        directory, inventory, found = self._directory, self._inventory, self._found
        excess, kept = self._excess, self._kept
        self._replay_files()
        # From here on, files are changed.
        if not inventory.manifest.mount_count:  # A new store: before its files.
            directory.write_manifest(inventory.manifest)
        ids = {*range(self._volume_num), *(volume.id for volume in found)}
        _create_data_files(directory, self._descriptors, ids)
        for volume in found:
            volume.fd = self._descriptors[volume.id]
        self._invalidate_dropped({volume.id for volume in found})
        unknown = self._replay.drop_unknown(kept)
        drop_volumes(directory, excess + unknown, self._volume_num, self._report)
        volumes = [volume for volume in kept if volume not in unknown]
        if not any(volume.use.ring is Ring.MAIN for volume in volumes):
            volumes.append(self._following([*excess, *unknown]))
        return sorted(volumes, key=lambda volume: volume.seq)

    def _oldest(self, count: int) -> list[Volume]:
        """Return the volumes that have to be dropped first; one of ring main stays."""
        actives = self._newest(self._found)
        order = sorted(
            self._found,
            key=lambda volume: (
                volume in actives,
                not self._may_be_outdated(volume),
                volume in actives and volume.use.ring is Ring.MAIN,
                volume.seq,
            ),
        )
        return order[: max(0, count)]

    def _may_be_outdated(self, volume: Volume) -> bool:
        """Return whether ring main may have newer records of the keys of a volume."""
        first = self._inventory.manifest.probation_first
        return volume.use.ring is Ring.PROBATION and volume.seq <= first

    def _newest(self, volumes: list[Volume]) -> list[Volume]:
        """Return the volume of each ring that is written, or would be."""
        newest = {v.use.ring: v for v in volumes if not self._may_be_outdated(v)}
        return list(newest.values())

    def _invalidate_dropped(self, listed: set[int]) -> None:
        """
        Make volumes unusable that META.txt does not name.

        The last process has dropped them, and may have died before it did this. Should
        META.txt be lost, they must not be taken for valid ones. Those whose id is above the
        limit give back their space.
        """
        directory, inventory = self._directory, self._inventory
        foreign = set(inventory.foreign)
        for volume in sorted(set(self._descriptors) - listed - foreign):
            fd = self._descriptors[volume]
            try:
                remove_index_file(directory.fs, directory.index_path(volume))
                if volume >= self._volume_num:
                    directory.fs.truncate(fd, 0)
                elif volume in inventory.headers:
                    directory.fs.pwritev(fd, [bytes(VOLUME_HEADER_BYTES)], 0)
            except OSError as error:
                self._stats.count_write_error(error)

    def _following(self, dropped: list[Volume]) -> Volume:
        """Return a new volume of ring main in the place of one that was dropped."""
        place = max(dropped, key=lambda volume: volume.seq)
        newest = place.use._replace(seq=self._inventory.manifest.active.seq)
        use = following_volume(newest).use
        self._index.add_volume(use.seq)
        return Volume(self._directory.fs, place.fd, use=use, store_id=place.store_id)

    def _write_files(self, volumes: list[Volume]) -> Manifest:
        """Write header, index files and META.txt; return the manifest."""
        before = self._inventory.manifest
        actives = [v for v in self._newest(volumes) if v.use.ring in self._rings]
        self._write_headers(volumes)
        try:
            for volume in volumes:
                if not volume.is_sealed:
                    # Nothing is appended to one that is rejected. Unless its index file
                    # is sealed, a start after a kill would not know that it is complete.
                    is_rejected = volume.id in self._inventory.rejected_ids
                    seal = is_rejected or volume not in actives
                    self._complete_index_file(volume, seal=seal)
            for active in actives:
                # No other process can have written a volume that did not exist before.
                if before.mount_count and not active.is_sealed:
                    active.add_segment(Segment(active.end, secrets.randbits(64)))
            manifest = self._replace_manifest(volumes, actives)
        except BaseException:
            for active in actives:
                active.close_index_file()
            raise
        return manifest

    def _new_manifest(self, volumes: list[Volume], actives: list[Volume]) -> Manifest:
        before = self._inventory.manifest
        manifest = before._replace(
            mount_count=before.mount_count + 1,
            time_us=self._clock.now_us(),
            boot=self._directory.boot(),
            volumes=tuple(
                v.listed(is_open=v in actives and not v.is_sealed) for v in volumes
            ),
            hot="",
            purges=self._write_purges(volumes),
        )
        probation = [v.seq for v in volumes if v.use.ring is Ring.PROBATION]
        if Ring.PROBATION in self._rings or not probation:
            return manifest
        # What is put from now on replaces records there, too.
        return manifest._replace(probation_first=probation[-1])

    def _write_purges(self, volumes: list[Volume]) -> ListedPurges | None:
        """
        Write PURGE.txt again if that is necessary; return what META.txt says of it.

        If META.txt does not name it, the last purge was not acknowledged, and what it
        covers may have been copied to newer volumes since: it is needed longer.
        """
        found, before = self._inventory.purges, self._inventory.manifest.purges
        needed = found.purges.since(volumes[0].seq)
        self._purges = needed
        if found.file is None or not needed:
            return None
        if found.file.listed == before and needed is found.purges:
            return before
        *others, last = needed
        if found.file.listed != before:
            last = last._replace(seq=volumes[-1].seq)
        self._purges = PurgeList([*others, last])
        file = next_file(found.file.store_id, before, self._purges)
        self._directory.write_purges(encode_purges(file))
        return file.listed

    def _replace_manifest(
        self, volumes: list[Volume], actives: list[Volume]
    ) -> Manifest:
        """Write META.txt; on a full disk, give up the oldest volumes for it."""
        while True:
            try:
                manifest = self._new_manifest(volumes, actives)
                self._write_manifest(manifest)
            except OSError as error:
                if not self._give_up_oldest(volumes, actives, error):
                    raise
            else:
                return manifest

    def _give_up_oldest(
        self, volumes: list[Volume], actives: list[Volume], error: OSError
    ) -> bool:
        """Free the space of the oldest volume; return whether that may help."""
        fs, root = self._directory.fs, self._directory.root
        order = self._oldest(len(self._found))
        sealed = [v for v in order if v in volumes and v not in actives]
        free = fs.space(root).free
        is_short = error.errno == errno.ENOSPC and free < SHORT_BYTES
        if not (is_short or error.errno == errno.EDQUOT):
            return False
        used = {volume.id for volume in volumes}
        for volume in sorted(set(self._descriptors) - used):
            fd = self._descriptors[volume]
            if fs.held_bytes(fd):  # A volume was there that was dropped.
                fs.truncate(fd, 0)
                return True
        if not sealed:
            return False
        oldest = sealed[0]
        _logger.warning(
            "disk.volume_given_up volume=%d seq=%d free=%d error=%r",
            oldest.id,
            oldest.seq,
            free,
            str(error),
        )
        self._stats.given_up_volumes += 1
        self._index.reclaim(oldest.seq)
        drop_volumes(self._directory, [oldest], self._volume_num, self._report)
        volumes.remove(oldest)
        return fs.space(root).free > free

    def _write_manifest(self, manifest: Manifest) -> None:
        if manifest.active.seq < self._inventory.manifest.active.seq:
            # The newest volume was dropped. What LOCK says of it would refuse a start, and
            # so would a header that was overwritten and comes back by a power loss.
            self._directory.clear_progress()
            for fd in self._descriptors.values():
                self._directory.fs.sync(fd)
        self._directory.write_manifest(manifest)

    def _write_headers(self, volumes: list[Volume]) -> None:
        """
        Write the header of the newest volume of each ring if it has none.

        A power loss may also leave a volume that is sealed with the header of an earlier
        use. It is written again: otherwise the next start would take it for a replaced one.
        """
        newest = {volume.use.ring: volume for volume in volumes}
        for at, volume in enumerate(volumes):
            if volume in newest.values() or volume.id in self._inventory.stale:
                ring = [v for v in volumes[:at] if v.use.ring is volume.use.ring]
                self._write_header(volume, volumes[0], ring)

    def _write_header(
        self, volume: Volume, oldest: Volume, before: list[Volume]
    ) -> None:
        inventory = self._inventory
        header = inventory.headers.get(volume.id)
        if volume.id in inventory.rejected_ids:
            volume.retire()
        elif header is None or header.use != volume.use:
            volume.start(
                self._clock.now_ms(),
                mount_count=inventory.manifest.mount_count + 1,
                oldest_seq=oldest.seq,
                previous_salt=before[-1].last_salt if before else 0,
            )

    def _complete_index_file(self, volume: Volume, *, seal: bool) -> None:
        """Add the scanned records to the index file; leave it open unless sealed."""
        valid_end, is_whole = self._index_files.get(volume.seq, (0, True))
        pending = volume.writer.pending + self._spill.records(volume.seq)
        if pending and not is_whole:
            self._report.count_rebuilt(volume.id, pending)
        try:
            volume.open_index_file(self._directory.index_path(volume.id), valid_end)
            volume.write_spilled(self._spill.blocks(volume.seq))
            if seal:
                volume.seal()
            else:
                volume.write_index()
        except OSError as error:
            # The next start scans again; until then nothing is missing.
            self._stats.count_index_error(error, volume=volume.id)
        finally:
            if seal:
                volume.close_index_file()


def _count_findings(
    inventory: Inventory, kept: set[int], recovery: RecoveryStats
) -> None:
    """Count and log what the inventory has found wrong in the volumes that are kept."""
    if inventory.is_manifest_lost:
        recovery.count_meta_lost()
    for volume in inventory.foreign:
        _logger.warning(
            "recovery.foreign_volume volume=%d store=%016x expected=%016x",
            volume,
            inventory.headers[volume].store_id,
            inventory.manifest.store_id,
        )
    for rejected in inventory.rejected:
        recovery.count_rejected(*rejected)
    for volume in kept.intersection(inventory.damaged):
        recovery.count_damage("header", volume, 0, VOLUME_HEADER_BYTES)
    for volume in kept.intersection(inventory.stale):
        recovery.count_stale(volume, inventory.headers[volume].use.seq)


def drop_volumes(
    directory: StoreDirectory,
    volumes: list[Volume],
    volume_num: int,
    recovery: RecoveryStats,
) -> None:
    """
    Remove volumes, the oldest ones.

    Synced, because a power loss could bring one back after the records that superseded
    its own are gone.
    """
    for volume in volumes:
        remove_index_file(directory.fs, directory.index_path(volume.id))
        if volume.fd != NO_FILE:
            directory.fs.truncate(volume.fd, 0)
            directory.fs.sync(volume.fd)
        if volume.id >= volume_num:
            directory.fs.unlink(directory.data_path(volume.id))
        recovery.count_dropped(volume.id, volume.seq)
    if volumes:
        directory.fs.sync_directory(directory.index)
        directory.fs.sync_directory(directory.data)


# --- Replay ------------------------------------------------------------------------


def expected_keys(directory: StoreDirectory, volumes: list[Volume]) -> int:
    """Return about how many entries the volumes have, from samples of their files."""
    estimate = sampled = lines = length = 0
    for volume in volumes:
        try:
            size, sample = _sample(directory, volume.id)
        except OSError:
            estimate += _expected_records(directory, volume)
            continue
        length += size
        lines += sample.count(b"\n")
        sampled += len(sample)
    return estimate + (length * lines // sampled if sampled else 0)


def _sample(directory: StoreDirectory, volume: int) -> tuple[int, bytes]:
    """
    Return the length of an index file and its first bytes.

    Raises:
        OSError: It is missing or cannot be read.
    """
    fs = directory.fs
    fd = fs.open(directory.index_path(volume), create=False)
    try:
        return fs.size(fd), fs.pread(fd, _SAMPLE_BYTES, 0)
    finally:
        fs.close(fd)


def _expected_records(directory: StoreDirectory, volume: Volume) -> int:
    """Return about how many records a volume has, by the size of the first ones."""
    try:
        reader = VolumeReader(directory.fs, volume, _SAMPLE_BYTES)
    except OSError:
        return 0
    records, end = 0, VOLUME_HEADER_BYTES
    while (header := reader.header_at(end)) is not None:
        records, end = records + 1, end + header.size
    return reader.file_length * records // end


def open_contents(directory: StoreDirectory, volume: Volume) -> IndexContents:
    """Return the valid part of the index file of a volume; empty if it has none."""
    data = read_whole(directory, directory.index_path(volume.id))
    return IndexContents(data, volume.index_name, volume.segments)


def is_whole(contents: IndexContents, listed: ListedVolume) -> bool:
    """
    Return whether an index file has all entries of its volume.

    Args:
        contents: Read to the end.
        listed: The line of the volume in META.txt.
    """
    if contents.sealed:
        return contents.volume_end >= listed.end
    return listed.index_checksum is not None and (
        contents.volume_end,
        contents.checksum,
    ) == (listed.end, listed.index_checksum)


def tail_reader(fs: FileSystem, volume: Volume, listed: ListedVolume) -> VolumeReader:
    """Return a reader of a volume up to its end in META.txt, if that is known."""
    return VolumeReader(fs, volume, listed.end or WHOLE_VOLUME)


def tail_window(contents: IndexContents, *, is_active: bool) -> int:
    """Return how far behind the last indexed record a scan looks for others."""
    return TAIL_WINDOW_BYTES if is_active and contents.is_whole else WHOLE_VOLUME


class Tail(NamedTuple):
    """What a scan found behind the last indexed record."""

    end: int
    records: int
    has_gap: bool


class Replay:
    """
    Replays volumes into an index, in the order of `Inventory.open_volumes`.

    Writes nothing.

    Attributes:
        newest_seq: The highest sequence number that any file names.
        latest_us: The latest time found, microseconds since the epoch.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        inventory: Inventory,
        index: Index,
        recovery: RecoveryStats,
        *,
        lenient: bool = False,
        spill: Spill | None = None,
    ) -> None:
        """
        Begin with nothing.

        Args:
            directory: Of the store.
            inventory: Of the directory.
            index: Is filled.
            recovery: Counts what is found.
            lenient: Where files were replaced, drop volumes instead of a refusal.
            spill: Gets the entries of scanned records when they are many.
        """
        self._spill = spill
        self._lenient = lenient
        manifest, progress = inventory.manifest, directory.progress
        self._directory = directory
        self._inventory = inventory
        self._index = index
        self._recovery = recovery
        self._listed = {listed.use.seq: listed for listed in manifest.volumes}
        self._volumes: dict[int, Volume] = {}  # replayed, by sequence number
        self._active = manifest.active
        self._actives = manifest.actives
        self._progress = [
            line for line in progress if line.store_id == manifest.store_id
        ]
        self._mismatched: list[str] = []
        self._unreadable: list[UnreadableVolumeError] = []
        self.newest_seq = manifest.active.seq
        self._unknown: list[VolumeUse] = []  # volumes of which not all keys are known
        self.latest_us = max(
            [
                manifest.time_us,
                inventory.purges.purges.newest_us,
                *(line.time_us for line in self._progress),
            ]
        )
        self._unclean = set(self._actives)  # those that were not stopped

    def refuse(self) -> None:
        """
        Raise the error if a start must not use the volumes replayed.

        Raises:
            MismatchedFilesError: Files were replaced.
            UnreadableVolumeError: The disk cannot be read where records may be.
        """
        why = self._inventory.refusal
        if not self._lenient:
            why = why or "; ".join(self._mismatched)
        if why:
            root = self._directory.root
            message = (
                f"mount point {root!r}: {why}. Nothing was changed. Or run"
                f' "volcache repair {root}" to go on without what does not match'
            )
            raise MismatchedFilesError(message)
        if self._unreadable:
            raise self._unreadable[0]

    @property
    def is_clean(self) -> bool:
        """Whether the last process has stopped, and its last files are there."""
        return not self._unclean

    def _mismatch(self, uses: Iterable[VolumeUse], why: str) -> None:
        """Refuse the start, or else drop volumes and all that may be older."""
        self._mismatched.append(why)
        self._unknown += uses

    def drop_unknown(self, volumes: list[Volume]) -> list[Volume]:
        """Drop the volumes that may have outdated records; return them."""
        bounds = outdated_bounds(self._unknown, self._inventory.manifest)
        unknown = [v for v in volumes if v.seq < bounds[v.use.ring]]
        for volume in unknown:
            self._index.reclaim(volume.seq)
        return unknown

    def replay(self, volume: Volume) -> IndexContents:
        """
        Set the positions of all records of a volume in the index.

        The volume resumes where its last record ends; records that were found by the
        scan are its pending entries.

        Returns:
            The valid part of its index file, read to the end.
        """
        self._index.add_volume(volume.seq)
        if volume.use.ring is Ring.PROBATION:
            self._index.set_age(volume.seq, volume.use.ring, 0, 0)
        self._volumes[volume.seq] = volume
        listed = self._listed[volume.seq]
        contents = self._replay_entries(volume)
        other = contents.other_use
        if other is not None and other.seq > self._active.seq:
            self.newest_seq = max(self.newest_seq, other.seq)
            self._mismatch(
                self._actives,
                f"{INDEX}/{volume.id} is newer (seq {other.seq}) than META.txt (seq"
                f" {self._active.seq}); put back the right files",
            )
        if contents.is_of_copy:
            self._mismatch(
                [volume.use],
                f"{INDEX}/{volume.id} and META.txt do not belong together: one of them is"
                " that of a copy of this mount point; put back the right file",
            )
        tail = Tail(contents.volume_end, 0, has_gap=False)
        if is_whole(contents, listed):
            if listed.state == "synced":
                self._unclean.discard(volume.use)
        else:
            tail = self._replay_tail(volume, contents)
            self._check_known(volume, contents, tail)
        if contents.last_offset and not tail.records and listed.is_open:
            # META.txt is not older than the records of the others.
            self._see_time_of(volume, contents.last_offset)
        volume.resume(
            end=tail.end,
            sealed=contents.sealed,
            index_checksum=contents.checksum,
            named=contents.segments,
        )
        if listed.state == "synced":
            volume.trust_synced()
        return contents

    def _replay_entries(self, volume: Volume) -> IndexContents:
        """Replay the index file; one that cannot be read counts as missing."""
        directory, name = self._directory, volume.index_name
        path = directory.index_path(volume.id)
        try:
            contents = replay_index_file(
                directory.fs, path, name, volume.segments, self._index
            )
        except OSError as error:
            _logger.warning(
                "recovery.file_unreadable path=%r error=%r", path, str(error)
            )
            contents = IndexContents(b"", name, volume.segments)
        self._recovery.entries += contents.entries
        return contents

    def _check_known(self, volume: Volume, contents: IndexContents, tail: Tail) -> None:
        """Find out whether all keys of a volume are known, now that it was scanned."""
        if volume.id in self._inventory.rejected_ids:
            replaced = "; ".join(map(str, self._inventory.rejected))
            self._mismatch(
                [volume.use],
                f"{DATA}/{volume.id} was replaced and its index file is not complete, so"
                f" that it is unknown which older values it replaced: {replaced}; put back"
                " the right file",
            )
        elif not self._is_known(volume, contents, tail):
            # Its other records may be outdated, too.
            self._unknown.append(volume.use)
            self._recovery.count_unknown(volume.id, tail.end)

    def _is_known(self, volume: Volume, contents: IndexContents, tail: Tail) -> bool:
        listed = self._listed[volume.seq]
        if listed.state != "synced" and not self._inventory.is_same_boot:
            return True  # A power loss may take what was not synced.
        if tail.has_gap:
            return False
        if listed.is_open:
            own = (line for line in self._progress if line.salt == volume.last_salt)
            return all(tail.end >= line.end for line in own)
        if not listed.end:
            # META.txt is lost. The index file was sealed: if it is intact, but not sealed,
            # then it is an earlier one.
            return not (contents.is_ours and contents.is_whole)
        return tail.end >= listed.end

    def _replay_tail(self, volume: Volume, contents: IndexContents) -> Tail:
        """Replay the records after the last entry, and keep their entries."""
        before, end, has_gap = self._recovery.scanned, contents.volume_end, False
        is_active = volume.use in self._actives
        reader = tail_reader(self._directory.fs, volume, self._listed[volume.seq])
        window = tail_window(contents, is_active=is_active)
        end = self._replay_intact(volume, reader, end)
        events = self._scan(volume, reader, end, window)
        while (event := next(events, None)) is not None:
            if isinstance(event, Found):
                end = event.header.offset + event.header.size
                self._replay_record(volume, event)
            elif isinstance(event, Gap):
                self._recovery.count_damage("gap", volume.id, event.start, event.end)
                end, has_gap = event.end, True
            elif isinstance(event, Torn):
                self._recovery.count_torn(volume.id, event.start)
                break
            else:
                self._unreadable.append(
                    UnreadableVolumeError(self._directory.root, volume.id, *event)
                )
                break
            end = self._replay_intact(volume, reader, end)
            events = self._scan(volume, reader, end, window)
        if reader.unreadable:
            _logger.warning(
                "recovery.sectors_unreadable volume=%d sectors=%d",
                volume.id,
                len(reader.unreadable),
            )
        return Tail(end, self._recovery.scanned - before, has_gap)

    def _scan(
        self, volume: Volume, reader: VolumeReader, start: int, window: int
    ) -> Iterator[Found | Gap | Torn | Unreadable]:
        """Yield what a scan does, and the last record as a torn one if it was refused."""
        for event in scan_records(reader, start, window):
            if isinstance(event, Found) and self._is_outdated(volume, event.header):
                end = event.header.offset + event.header.size
                if reader.find_header(end, window) is None:
                    yield Torn(event.header.offset)
                    return
            yield event

    def _replay_intact(self, volume: Volume, reader: VolumeReader, start: int) -> int:
        """Replay intact records at once; return where something else begins."""
        for salt, limit in reader.salts_from(start):
            while start < limit:
                data = reader.read(start, _CHUNK_BYTES)
                end, records, latest_us = self._index.replay(
                    volume.seq, data, salt, volume.id, start, limit, volume.writer
                )
                del data  # Before more is read.
                self._recovery.scanned += records
                self.latest_us = max(self.latest_us, latest_us)
                if end == start:
                    return start
                start = end
                if self._spill is not None:
                    self._spill.take(volume, end)
        return start

    def _replay_record(self, volume: Volume, found: Found) -> None:
        """Replay one record that was found by the scan, and keep its entry."""
        header = found.header
        self._recovery.scanned += 1
        self.latest_us = max(self.latest_us, header.stored_us)
        if not found.intact:
            # Its key is known, and an older value must not take its place: the index
            # gets the position, and a get of the key is a miss.
            end = header.offset + header.size
            self._recovery.count_damage("value", volume.id, header.offset, end)
            if self._has_original(header):
                return  # It is a copy, and what it was copied from is still there.
        if header.tombstone:
            self._index.set_tombstone(
                header.key, volume.seq, header.offset, header.size
            )
            volume.writer.add_entry(header.key, 0, 0)
        else:
            self._index.set(header.key, volume.seq, header.offset, header.size)
            volume.writer.add_entry(header.key, header.offset, header.size)

    def _is_outdated(self, volume: Volume, header: RecordHeader) -> bool:
        """
        Return whether a record was stored before one that was replayed before it.

        In one ring the order of the volumes tells, but a record that was refused may be in
        ring main although those put later are in ring probation. One with the same time is
        a copy, or has another expiry: the later position is right.
        """
        if volume.use.ring is Ring.PROBATION:
            return False
        other = self._indexed_header(header.key)
        return (
            other is not None
            and other.key == header.key
            and other.stored_us > header.stored_us
        )

    def _indexed_header(self, key: bytes) -> RecordHeader | None:
        """Return the header of the record that the index has for a key, if it is intact."""
        found = self._index.find(key)
        volume = None if found is None else self._volumes.get(found[0])
        if found is None or volume is None:
            return None
        reader = VolumeReader(self._directory.fs, volume, piece=_HEADER_BYTES)
        return reader.header_at(found[1])

    def _has_original(self, header: RecordHeader) -> bool:
        """Return whether the index has the record that this one is a copy of."""
        other = self._indexed_header(header.key)
        # The same version with another expiry is what `Store.touch` has replaced.
        return other is not None and (
            other.key,
            other.stored_us,
            other.expires_ms,
            other.checksum,
        ) == (header.key, header.stored_us, header.expires_ms, header.checksum)

    def _see_time_of(self, volume: Volume, offset: int) -> None:
        """Read when the last indexed record was stored; nothing if it is damaged."""
        reader = VolumeReader(self._directory.fs, volume, piece=_HEADER_BYTES)
        header = reader.header_at(offset)
        if header is not None:
            self.latest_us = max(self.latest_us, header.stored_us)
