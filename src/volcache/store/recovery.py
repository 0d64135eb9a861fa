"""
Open a mount point: find out what is there, mend what a crash left, build the index.

Lives are loaded from the oldest to the newest, so that later entries win. No damage ends
the start. The result is on the disk again before anything is served: META.txt names a new
session, and index files are completed.

Load one life into the index: its index file, then the records behind what that names.

What the scan of the volume finds is written behind what the index file already says, so
that the next start does not have to scan it again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from volcache.store.directory import refuse_newer
from volcache.store.format import VERSION
from volcache.store.index import OFFSET_SHIFT, VOLUME_MAX, Index
from volcache.store.index_file import IndexContents, IndexFile, remove_index_file
from volcache.store.inventory import Inventory, read_whole
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
    from volcache.store.index_format import Meta
    from volcache.store.volume import Volume


@dataclass(slots=True)
class Recovered:
    """A mount point as it was found, ready to be served."""

    meta: Meta
    descriptors: dict[int, int]  # of every volume, by its id
    volumes: dict[int, Volume]  # by their life
    active: Volume
    index: Index
    report: RecoveryStats
    stats: StoreStats  # in which what the disk refused meanwhile is counted


def recover(mount: StoreDirectory, *, volume_num: int, now_ms: int) -> Recovered:
    """
    Build the index of a mount point and make it ready for writing.

    Args:
        mount: Locked by us.
        volume_num: How many volumes there may be; the oldest beyond are given up.
        now_ms: The time, milliseconds since the epoch.

    Raises:
        OSError: The disk cannot be written; what was there is still there.
        FormatVersionError: A volume was written by a newer volcache.
        ForeignDirectoryError: `data` holds files that are not volumes.
    """
    descriptors = _open_volumes(mount, volume_num)
    try:
        return _recover(mount, descriptors, volume_num, now_ms)
    except BaseException:
        for fd in descriptors.values():
            mount.fs.close(fd)
        raise


def _open_volumes(mount: StoreDirectory, volume_num: int) -> dict[int, int]:
    """Open all volumes there are and may be, so that none can fail to open later."""
    ids = sorted({*mount.volume_ids(), *range(volume_num)})
    descriptors: dict[int, int] = {}
    try:
        for volume in ids:
            if volume <= VOLUME_MAX:
                path = mount.data_path(volume)
                descriptors[volume] = mount.fs.open(path, create=True)
        # fdatasync makes the bytes of a file safe and promises nothing for its name.
        mount.fs.sync_directory(mount.data)
    except BaseException:
        for fd in descriptors.values():
            mount.fs.close(fd)
        raise
    return descriptors


def _recover(
    mount: StoreDirectory, descriptors: dict[int, int], volume_num: int, now_ms: int
) -> Recovered:
    report = RecoveryStats()
    survey = Inventory(mount, descriptors, report)
    volumes = survey.seqs()
    active = volumes[max(volumes)]
    meta = survey.meta._replace(
        active=active.id,
        generation=active.generation,
        mount_count=survey.meta.mount_count + 1,
    )
    # Before anything else is written: all that follows carries the new session, even
    # if this start does not come to its end.
    mount.write_meta(meta)
    _drop_oldest(mount, volumes, volume_num, report)
    header = survey.headers.get(active.id)
    if header is None or header.generation != active.generation:
        active.write_header(mount.fs, meta, now_ms)
    index = Index()
    loader = Replay(mount, index, report)
    for seq in sorted(volumes):
        loader.load(volumes[seq], is_active=seq == active.seq)
    index.begin(active.seq)
    return Recovered(meta, descriptors, volumes, active, index, report, loader.stats)


def _drop_oldest(
    mount: StoreDirectory,
    volumes: dict[int, Volume],
    volume_num: int,
    report: RecoveryStats,
) -> None:
    """
    Give up the oldest volumes when there are more than there may be.

    Synced, or a power loss could bring one back when what had replaced its values is gone.
    """
    dropped = sorted(volumes)[: max(0, len(volumes) - volume_num)]
    for seq in dropped:
        volume = volumes.pop(seq)
        remove_index_file(mount.fs, mount.index_path(volume.id))
        mount.fs.truncate(volume.fd, 0)
        mount.fs.sync(volume.fd)
        if volume.id >= volume_num:
            mount.fs.unlink(mount.data_path(volume.id))
        report.count_dropped(volume.id, volume.generation)
    if dropped:
        mount.fs.sync_directory(mount.index)
        mount.fs.sync_directory(mount.data)


_logger = logging.getLogger("volcache.store")


def open_contents(mount: StoreDirectory, volume: Volume, data: bytes) -> IndexContents:
    """
    Return what counts of the index file of a life.

    Raises:
        FormatVersionError: It was written by a newer volcache.
    """
    contents = IndexContents(data, volume.index_name)
    if contents.version > VERSION:
        refuse_newer(mount.root, f"index/{volume.id}", contents.version)
    return contents


def tail_window(contents: IndexContents, *, is_active: bool) -> int:
    """Return how far behind the last indexed record others are looked for."""
    return TAIL_WINDOW_BYTES if is_active and contents.is_whole else WHOLE_VOLUME


class Replay:
    """Loads lives, which must come from the oldest to the newest."""

    def __init__(
        self, mount: StoreDirectory, index: Index, report: RecoveryStats
    ) -> None:
        """Load into `index`, count into `report`."""
        self._mount = mount
        self._fs = mount.fs
        self._index = index
        self._report = report
        self.stats = StoreStats()  # Of what is loaded; counting goes on in the store.

    def load(self, volume: Volume, *, is_active: bool) -> None:
        """
        Take the records of one life into the index and complete its index file.

        Raises:
            FormatVersionError: The index file was written by a newer volcache.
        """
        contents = self.read(volume, is_active=is_active)
        if volume.sealed:
            return
        if not contents.is_whole and volume.pending:
            self._report.count_rebuilt(volume.id, len(volume.pending))
        try:
            self._complete_index_file(volume, contents.file_end, is_active=is_active)
        except OSError as error:
            # The next start scans again; until then nothing is missing.
            self.stats.count_index_error(error, volume=volume.id)

    def read(self, volume: Volume, *, is_active: bool) -> IndexContents:
        """
        Take the records of one life into the index; nothing is written.

        Returns:
            What counts of its index file; records without a line are `pending`.

        Raises:
            FormatVersionError: The index file was written by a newer volcache.
        """
        self._index.begin(volume.seq)
        data = read_whole(self._mount, self._mount.index_path(volume.id))
        contents = open_contents(self._mount, volume, data)
        index, base = self._index, volume.base
        for entries in contents.read():
            for key, offset, size in entries:
                if size:
                    index.set(key, base | offset << OFFSET_SHIFT | size)
                else:
                    index.delete(key)
            self._report.entries += len(entries)
        volume.end = contents.volume_end
        volume.sealed = contents.sealed
        if not volume.sealed:
            self._load_tail(volume, tail_window(contents, is_active=is_active))
        return contents

    def _load_tail(self, volume: Volume, window: int) -> None:
        """Apply the records behind the last indexed one."""
        reader = VolumeReader(self._fs, volume)
        for event in scan_records(reader, volume.end, window):
            if isinstance(event, Found):
                self._apply(volume, event)
            elif isinstance(event, Gap):
                self._report.count_damage("gap", volume.id, event.start, event.end)
                volume.end = event.end
            else:
                self._report.count_torn(volume.id, event.start)
        if reader.unreadable_sectors:
            _logger.warning(
                "recovery.sectors_unreadable volume=%d sectors=%d",
                volume.id,
                reader.unreadable_sectors,
            )

    def _apply(self, volume: Volume, found: Found) -> None:
        header = found.header
        self._report.scanned += 1
        volume.end = header.offset + header.size
        if not found.intact:
            # Its key is known, and an older value must not come back in its place: the
            # entry stays, and who asks for the key gets a miss.
            self._report.count_damage("value", volume.id, header.offset, volume.end)
        if header.tombstone:
            self._index.delete(header.key)
            volume.pending.append((header.key, 0, 0))
            return
        position = volume.base | header.offset << OFFSET_SHIFT | header.size
        self._index.set(header.key, position)
        volume.pending.append((header.key, header.offset, header.size))

    def _complete_index_file(
        self, volume: Volume, file_end: int, *, is_active: bool
    ) -> None:
        """Write what the scan has found; leave the file open only for the head."""
        path = self._mount.index_path(volume.id)
        if file_end:
            volume.index_file = IndexFile.append_to(self._fs, path, file_end)
        else:
            volume.index_file = IndexFile.create(self._fs, path, volume.index_name)
        if is_active:
            volume.index()
            return
        index_file = volume.index_file
        try:
            volume.index(sealed=True)
        finally:
            volume.sealed = True
            volume.pending = []
            volume.index_file = None
            index_file.close()
