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
from typing import TYPE_CHECKING

from volcache.errors import MountPointError
from volcache.store.disk import SHORT_BYTES
from volcache.store.files import DISK_FULL
from volcache.store.format import VOLUME_HEADER_BYTES, VOLUME_ID_MAX, Ring, Segment
from volcache.store.index_file import remove_index_file
from volcache.store.inventory import following_volume, take_inventory
from volcache.store.native import make_index
from volcache.store.purges import PurgeList, encode_purges, next_file
from volcache.store.replay import Replay, expected_keys
from volcache.store.spill import Spill
from volcache.store.stats import RecoveryStats, StoreStats
from volcache.store.volume import NO_FILE, Volume

if TYPE_CHECKING:
    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.inventory import StoreInventory
    from volcache.store.manifest import ListedPurges, Manifest
    from volcache.store.native import Index

_logger = logging.getLogger("volcache.store")


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
        self._found = self._inventory.open_volumes(descriptors)
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
        self._replay = Replay(self._inventory, self._index, self._report, self._spill)
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
    inventory: StoreInventory, kept: set[int], recovery: RecoveryStats
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
