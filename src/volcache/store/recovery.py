"""
Recovery: open a mount point at startup.

1. Open the data files and take an inventory (`inventory.py`): nothing is changed.
2. Write META.txt with a new mount count, so that all that follows carries it, even if this
   start does not complete. Remove volumes beyond `volume_num`.
3. Replay the volumes into the index, oldest first, so that later entries win: the entries
   of the index file, then the records after the last entry, found by a scan.
4. Add what the scan found to the index files, so that the next start need not scan again.

Damage never ends the start: it is counted, logged and skipped.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from volcache.store.directory import read_whole, refuse_newer
from volcache.store.format import VERSION, VOLUME_HEADER_BYTES, VOLUME_ID_MAX
from volcache.store.index import Index
from volcache.store.index_file import IndexContents, remove_index_file
from volcache.store.inventory import Inventory, take_inventory
from volcache.store.scan import (
    TAIL_WINDOW_BYTES,
    WHOLE_VOLUME,
    Found,
    Gap,
    VolumeReader,
    scan_records,
)
from volcache.store.stats import RecoveryStats, StoreStats

if TYPE_CHECKING:
    from volcache.store.directory import StoreDirectory
    from volcache.store.index_format import Entry
    from volcache.store.manifest import Manifest
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")


@dataclass(slots=True)
class Recovered:
    """A mount point, ready to be served."""

    manifest: Manifest
    descriptors: dict[int, int]  # of all data files, by volume id
    volumes: list[Volume]  # oldest first; the last one is the active volume
    index: Index
    recovery: RecoveryStats
    stats: StoreStats  # of the store; counts what the disk has refused so far


def recover(directory: StoreDirectory, *, volume_num: int, now_ms: int) -> Recovered:
    """
    Build the index of a mount point and make it ready for writing.

    Args:
        directory: Locked by this process.
        volume_num: The maximum number of volumes; the oldest ones beyond are removed.
        now_ms: The time, milliseconds since the epoch.

    Raises:
        OSError: The disk cannot be written; what was stored is still there.
        FormatVersionError: A volume was written by a newer volcache.
        ForeignDirectoryError: `data` contains files that are not volumes.
    """
    descriptors = _open_data_files(directory, volume_num)
    try:
        return _recover(directory, descriptors, volume_num, now_ms)
    except BaseException:
        _close_all(directory, descriptors)
        raise


def _open_data_files(directory: StoreDirectory, volume_num: int) -> dict[int, int]:
    """Open the data files of all volumes there may be, so that none can fail later."""
    ids = sorted({*directory.volume_ids(), *range(volume_num)})
    descriptors: dict[int, int] = {}
    try:
        for volume in ids:
            if volume <= VOLUME_ID_MAX:
                path = directory.data_path(volume)
                descriptors[volume] = directory.fs.open(path, create=True)
        # fdatasync makes the bytes of a file safe, but not its name.
        directory.fs.sync_directory(directory.data)
    except BaseException:
        _close_all(directory, descriptors)
        raise
    return descriptors


def _close_all(directory: StoreDirectory, descriptors: dict[int, int]) -> None:
    for fd in descriptors.values():
        directory.fs.close(fd)


def _recover(
    directory: StoreDirectory,
    descriptors: dict[int, int],
    volume_num: int,
    now_ms: int,
) -> Recovered:
    inventory = take_inventory(directory, descriptors)
    recovery = RecoveryStats()
    _count_findings(inventory, recovery)
    volumes = inventory.open_volumes(directory, descriptors)
    active = volumes[-1]
    manifest = inventory.manifest._replace(
        active=active.id,
        generation=active.generation,
        mount_count=inventory.manifest.mount_count + 1,
    )
    directory.write_manifest(manifest)
    volumes = _drop_oldest(directory, volumes, volume_num, recovery)
    header = inventory.headers.get(active.id)
    if header is None or header.generation != active.generation:
        active.start(manifest, now_ms)
    stats, index = StoreStats(), Index()
    replay = Replay(directory, index, recovery)
    for volume in volumes:
        is_active = volume is active
        contents = replay.replay(volume, is_active=is_active)
        if not volume.is_sealed:
            if volume.pending and not contents.is_whole:
                recovery.count_rebuilt(volume.id, len(volume.pending))
            _complete_index_file(directory, volume, contents, stats, seal=not is_active)
    return Recovered(manifest, descriptors, volumes, index, recovery, stats)


def _count_findings(inventory: Inventory, recovery: RecoveryStats) -> None:
    """Count and log what the inventory has found wrong."""
    if inventory.is_manifest_lost:
        recovery.count_meta_lost()
    for volume, store_id in inventory.foreign:
        _logger.warning(
            "recovery.foreign_volume volume=%d store=%016x expected=%016x",
            volume,
            store_id,
            inventory.manifest.store_id,
        )
    for volume in inventory.damaged:
        recovery.count_damage("header", volume, 0, VOLUME_HEADER_BYTES)
    for volume, generation in inventory.stale:
        recovery.count_stale(volume, generation)


def _drop_oldest(
    directory: StoreDirectory,
    volumes: list[Volume],
    volume_num: int,
    recovery: RecoveryStats,
) -> list[Volume]:
    """
    Remove the oldest volumes if there are more than `volume_num`; return the others.

    Synced, because a power loss could bring one back after the records that superseded
    its own are gone.
    """
    kept = volumes[-volume_num:]
    dropped = volumes[: len(volumes) - len(kept)]
    for volume in dropped:
        remove_index_file(directory.fs, directory.index_path(volume.id))
        directory.fs.truncate(volume.fd, 0)
        directory.fs.sync(volume.fd)
        if volume.id >= volume_num:
            directory.fs.unlink(directory.data_path(volume.id))
        recovery.count_dropped(volume.id, volume.generation)
    if dropped:
        directory.fs.sync_directory(directory.index)
        directory.fs.sync_directory(directory.data)
    return kept


# --- Replay ------------------------------------------------------------------------


def open_contents(
    directory: StoreDirectory, volume: Volume, data: bytes
) -> IndexContents:
    """
    Return the valid part of the index file of a volume.

    Raises:
        FormatVersionError: It was written by a newer volcache.
    """
    contents = IndexContents(data, volume.index_name)
    if contents.version > VERSION:
        refuse_newer(directory.root, f"index/{volume.id}", contents.version)
    return contents


def tail_window(contents: IndexContents, *, is_active: bool) -> int:
    """Return how far behind the last indexed record a scan looks for others."""
    return TAIL_WINDOW_BYTES if is_active and contents.is_whole else WHOLE_VOLUME


class Replay:
    """Replays volumes into an index, oldest first. Writes nothing."""

    def __init__(
        self, directory: StoreDirectory, index: Index, recovery: RecoveryStats
    ) -> None:
        self._directory = directory
        self._index = index
        self._recovery = recovery

    def replay(self, volume: Volume, *, is_active: bool) -> IndexContents:
        """
        Set the positions of all records of a volume in the index.

        The volume resumes where its last record ends; records that were found by the
        scan are its pending entries.

        Returns:
            The valid part of its index file, read to the end.

        Raises:
            FormatVersionError: The index file was written by a newer volcache.
        """
        self._index.add_volume(volume.seq)
        data = read_whole(self._directory, self._directory.index_path(volume.id))
        contents = open_contents(self._directory, volume, data)
        index_set, index_delete, seq = self._index.set, self._index.delete, volume.seq
        for entries in contents.read():
            for key, offset, size in entries:
                if size:
                    index_set(key, seq, offset, size)
                else:
                    index_delete(key)
            self._recovery.entries += len(entries)
        end = contents.volume_end
        scanned: list[Entry] = []
        if not contents.sealed:
            window = tail_window(contents, is_active=is_active)
            end, scanned = self._replay_tail(volume, end, window)
        volume.resume(end=end, pending=scanned, sealed=contents.sealed)
        return contents

    def _replay_tail(
        self, volume: Volume, end: int, window: int
    ) -> tuple[int, list[Entry]]:
        """Replay the records after the last entry; return their end and entries."""
        entries: list[Entry] = []
        reader = VolumeReader(self._directory.fs, volume)
        for event in scan_records(reader, end, window):
            if isinstance(event, Found):
                end = event.header.offset + event.header.size
                entries.append(self._replay_record(volume, event))
            elif isinstance(event, Gap):
                self._recovery.count_damage("gap", volume.id, event.start, event.end)
                end = event.end
            else:
                self._recovery.count_torn(volume.id, event.start)
        if reader.unreadable_sectors:
            _logger.warning(
                "recovery.sectors_unreadable volume=%d sectors=%d",
                volume.id,
                reader.unreadable_sectors,
            )
        return end, entries

    def _replay_record(self, volume: Volume, found: Found) -> Entry:
        """Replay one record that was found by the scan; return its index entry."""
        header = found.header
        self._recovery.scanned += 1
        if not found.intact:
            # Its key is known, and an older value must not take its place: the index
            # gets the position, and a get of the key is a miss.
            end = header.offset + header.size
            self._recovery.count_damage("value", volume.id, header.offset, end)
        if header.tombstone:
            self._index.delete(header.key)
            return header.key, 0, 0
        self._index.set(header.key, volume.seq, header.offset, header.size)
        return header.key, header.offset, header.size


def _complete_index_file(
    directory: StoreDirectory,
    volume: Volume,
    contents: IndexContents,
    stats: StoreStats,
    *,
    seal: bool,
) -> None:
    """Add the scanned records to the index file; leave it open unless sealed."""
    try:
        volume.open_index_file(directory.index_path(volume.id), contents.file_end)
        if seal:
            volume.seal()
        else:
            volume.write_index()
    except OSError as error:
        # The next start scans again; until then nothing is missing.
        stats.count_index_error(error, volume=volume.id)
    finally:
        if seal:
            volume.close_index_file()
