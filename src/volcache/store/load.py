"""
Load one life into the index: its index file, then the records behind what that names.

What the scan of the volume finds is written behind what the index file already says, so
that the next start does not have to scan it again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from volcache.store.format import VERSION, VOLUME_HEADER_BYTES
from volcache.store.index_file import IndexFile
from volcache.store.lines import (
    decode_blocks,
    decode_entries,
    decode_index_header,
    has_block,
)
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
from volcache.store.survey import read_whole

if TYPE_CHECKING:
    from volcache.store.index import Index
    from volcache.store.mount_point import MountPoint
    from volcache.store.report import RecoveryReport
    from volcache.store.volume import Volume

_log = logging.getLogger("volcache.store")


class Loader:
    """Loads lives, which must come from the oldest to the newest."""

    def __init__(self, mount: MountPoint, index: Index, report: RecoveryReport) -> None:
        """Load into `index`, count into `report`."""
        self._mount = mount
        self._fs = mount.fs
        self._index = index
        self._report = report

    def load(self, volume: Volume, *, is_head: bool) -> None:
        """
        Take the records of one life into the index and complete its index file.

        Raises:
            FormatVersionError: The index file was written by a newer volcache.
        """
        self._index.begin(volume.life)
        file_end, is_whole = self._load_index_file(volume)
        if volume.sealed:
            return
        window = TAIL_WINDOW_BYTES if is_head and is_whole else WHOLE_VOLUME
        self._load_tail(volume, window)
        if not is_whole and volume.pending:
            self._report.note_rebuilt(volume.id, len(volume.pending))
        try:
            self._complete_index_file(volume, file_end, is_head=is_head)
        except OSError as error:
            # The next start scans again; until then nothing is missing.
            _log.error("index.rebuild_failed volume=%d error=%r", volume.id, str(error))

    def _load_index_file(self, volume: Volume) -> tuple[int, bool]:
        """
        Load entries from the index file, as far as it can be trusted.

        Returns:
            How many bytes of it count, and whether that is all but a torn block.
        """
        data = read_whole(self._mount, self._mount.index_path(volume.id))
        named = decode_index_header(data)
        if named is None or named[1] != volume.index_name or not has_block(data):
            return 0, False
        if named[0] > VERSION:
            refuse_newer(self._mount.root, f"index/{volume.id}", named[0])
        file_end = 0
        for block in decode_blocks(data):
            if not self._load_entries(volume, block.lines, block.volume_end):
                break
            volume.end = block.volume_end
            volume.sealed = block.sealed
            file_end = block.file_end
        return file_end, b"\n# checkpoint " not in data[file_end:]

    def _load_entries(self, volume: Volume, lines: bytes, volume_end: int) -> bool:
        """Apply the entries of one block; false when they cannot be right."""
        try:
            entries = decode_entries(lines)
        except (ValueError, IndexError):
            return False
        index, base = self._index, volume.base
        for key, offset, size in entries:
            if not size:
                index.delete(key)
            elif VOLUME_HEADER_BYTES <= offset <= volume_end - size:
                index.set(key, base | offset << OFFSET_SHIFT | size)
            else:
                return False
        self._report.entries += len(entries)
        return True

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
