"""
Load one life into the index: its index file, then the records behind what that names.

What the scan of the volume finds is written behind what the index file already says, so
that the next start does not have to scan it again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from volcache.store.format import VERSION
from volcache.store.index_file import IndexContents, IndexFile
from volcache.store.mount_point import refuse_newer
from volcache.store.position import OFFSET_SHIFT
from volcache.store.scan import (
    TAIL_WINDOW_BYTES,
    WHOLE_VOLUME,
    Found,
    Gap,
    VolumeReader,
    scan_records,
)
from volcache.store.stats import StoreStats
from volcache.store.survey import read_whole

if TYPE_CHECKING:
    from volcache.store.index import Index
    from volcache.store.mount_point import MountPoint
    from volcache.store.report import RecoveryReport
    from volcache.store.volume import Volume

_log = logging.getLogger("volcache.store")


def open_contents(mount: MountPoint, volume: Volume, data: bytes) -> IndexContents:
    """
    Return what counts of the index file of a life.

    Raises:
        FormatVersionError: It was written by a newer volcache.
    """
    contents = IndexContents(data, volume.index_name)
    if contents.version > VERSION:
        refuse_newer(mount.root, f"index/{volume.id}", contents.version)
    return contents


def tail_window(contents: IndexContents, *, is_head: bool) -> int:
    """Return how far behind the last indexed record others are looked for."""
    return TAIL_WINDOW_BYTES if is_head and contents.is_whole else WHOLE_VOLUME


class Loader:
    """Loads lives, which must come from the oldest to the newest."""

    def __init__(self, mount: MountPoint, index: Index, report: RecoveryReport) -> None:
        """Load into `index`, count into `report`."""
        self._mount = mount
        self._fs = mount.fs
        self._index = index
        self._report = report
        self.stats = StoreStats()  # Of what is loaded; counting goes on in the store.

    def load(self, volume: Volume, *, is_head: bool) -> None:
        """
        Take the records of one life into the index and complete its index file.

        Raises:
            FormatVersionError: The index file was written by a newer volcache.
        """
        contents = self.read(volume, is_head=is_head)
        if volume.sealed:
            return
        if not contents.is_whole and volume.pending:
            self._report.note_rebuilt(volume.id, len(volume.pending))
        try:
            self._complete_index_file(volume, contents.file_end, is_head=is_head)
        except OSError as error:
            # The next start scans again; until then nothing is missing.
            self.stats.note_index_error(error, volume=volume.id)

    def read(self, volume: Volume, *, is_head: bool) -> IndexContents:
        """
        Take the records of one life into the index; nothing is written.

        Returns:
            What counts of its index file; records without a line are `pending`.

        Raises:
            FormatVersionError: The index file was written by a newer volcache.
        """
        self._index.begin(volume.life)
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
            self._load_tail(volume, tail_window(contents, is_head=is_head))
        return contents

    def _load_tail(self, volume: Volume, window: int) -> None:
        """Apply the records behind the last indexed one."""
        reader = VolumeReader(self._fs, volume)
        for event in scan_records(reader, volume.end, window):
            if isinstance(event, Found):
                self._apply(volume, event)
            elif isinstance(event, Gap):
                self._report.note_damage("gap", volume.id, event.start, event.end)
                volume.end = event.end
            else:
                self._report.note_torn(volume.id, event.start)
        if reader.unreadable_sectors:
            _log.warning(
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
            self._report.note_damage("value", volume.id, header.offset, volume.end)
        if header.tombstone:
            self._index.delete(header.key)
            volume.pending.append((header.key, 0, 0))
            return
        position = volume.base | header.offset << OFFSET_SHIFT | header.size
        self._index.set(header.key, position)
        volume.pending.append((header.key, header.offset, header.size))

    def _complete_index_file(
        self, volume: Volume, file_end: int, *, is_head: bool
    ) -> None:
        """Write what the scan has found; leave the file open only for the head."""
        path = self._mount.index_path(volume.id)
        if file_end:
            volume.index_file = IndexFile.append_to(self._fs, path, file_end)
        else:
            volume.index_file = IndexFile.create(self._fs, path, volume.index_name)
        if is_head:
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
