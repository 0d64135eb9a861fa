"""
Replay: build the index from the index files and the records of volumes; nothing is written.

A start does this, and so do the offline tools. What is not in an index file is found by a
scan of its volume. Damage is counted, logged and skipped, but a record that might be
outdated is never served: if it is not known which keys a volume had, it and all older ones
of its ring are left out. Files that were replaced, and parts of the disk that cannot be
read, are a reason to refuse a start.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from volcache.errors import MismatchedFilesError, UnreadableVolumeError
from volcache.store.directory import INDEX
from volcache.store.files import read_range, reading
from volcache.store.format import (
    CLOCK_END,
    RECORD_PREFIX_BYTES_MAX,
    VOLUME_HEADER_BYTES,
    Ring,
)
from volcache.store.index import Found, Gap, Run, Unreadable
from volcache.store.native import Records, decode_header
from volcache.store.volume import HEAD_BYTES, NO_FILE, IndexContents

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.format import RecordHeader, VolumeUse
    from volcache.store.index import Loaded
    from volcache.store.manifest import ListedVolume
    from volcache.store.mount_point import MountPoint, StartPlan
    from volcache.store.native import Index
    from volcache.store.spill import Spill
    from volcache.store.stats import RecoveryStats
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

# A start looks this far behind the end of the active volume for records that a power loss
# has cut off by a hole. Costs one read of that much at every start. Old records behind a
# wider hole are never valid again: the next mount writes with another salt.
_TAIL_WINDOW_BYTES: Final = 64 * 2**20
WHOLE_VOLUME: Final = 2**62
_SAMPLE_BYTES: Final = 2**16  # of a volume
_STEP_BYTES: Final = 2**19  # of records, whose entries are in memory at once


def expected_keys(found: MountPoint, volumes: list[Volume]) -> int:
    """Return about how many keys the volumes have; one put again counts again."""
    expected = 0
    for volume in volumes:
        if volume.id in found.values:
            expected += found.values[volume.id]
        elif volume.fd != NO_FILE:
            with suppress(OSError):
                expected += _expected_records(found.directory.fs, volume)
    return expected


def _expected_records(fs: FileSystem, volume: Volume) -> int:
    """Return about how many values a volume has, by the size of the first records."""
    end = VOLUME_HEADER_BYTES
    records = Records(fs, volume, end, _SAMPLE_BYTES, has_values=False)
    found = [event.header for event in records if isinstance(event, Found)]
    values = sum(not header.tombstone for header in found)
    length = end + sum(header.size for header in found)
    return fs.stat(volume.fd).st_size * values // length


def is_whole(found: Loaded, listed: ListedVolume) -> bool:
    """
    Return whether an index file has all entries of its volume.

    Args:
        found: In the file, read to the end.
        listed: The line of the volume in META.txt.
    """
    if found.is_sealed:
        return found.volume_end >= listed.end
    ends = (found.volume_end, found.checksum)
    return ends == (listed.end, listed.index_checksum) and found.checksum is not None


def tail_of(
    listed: ListedVolume,
    contents: IndexContents,
    *,
    is_active: bool,
    is_same_boot: bool,
) -> tuple[int, int, int, bool]:
    """
    Return where records without an entry are: what `Records` takes after the volume.

    That is behind the last entry, up to the end in META.txt, if it is known.
    """
    is_short = is_active and contents.is_whole
    return (
        contents.found.volume_end,
        listed.end or WHOLE_VOLUME,
        _TAIL_WINDOW_BYTES if is_short else WHOLE_VOLUME,
        listed.may_have_lost(is_same_boot=is_same_boot),
    )


class Replay:
    """
    Replays volumes into an index.

    Attributes:
        contents: The valid part of each index file, read to the end, by sequence number.
        unclean: Active volumes that the last process has not closed, or whose files are
            not as it left them.
        latest_us: The latest time found from which the clock may continue, microseconds
            since the epoch.
    """

    def __init__(
        self,
        found: MountPoint,
        plan: StartPlan,
        index: Index,
        recovery: RecoveryStats,
        spill: Spill | None = None,
    ) -> None:
        """
        Begin with nothing.

        Args:
            found: The mount point.
            plan: Of the start.
            index: Is filled.
            recovery: Counts what is found.
            spill: Gets the entries of scanned records when they are many.
        """
        self._directory = found.directory
        self._plan = plan
        self._index = index
        self._recovery = recovery
        self._spill = spill
        manifest = plan.manifest
        self._listed = {listed.use.seq: listed for listed in manifest.volumes}
        self.contents: dict[int, IndexContents] = {}
        self._volumes: dict[int, Volume] = {}  # replayed, by sequence number
        self._actives = frozenset(manifest.actives)
        self.unclean = set(self._actives)
        self._unreadable: list[UnreadableVolumeError] = []
        self._unknown: list[VolumeUse] = []  # volumes of which not all keys are known
        self._mismatches: list[str] = []  # files, found by reading the volumes
        lines = self._directory.progress
        times = [line.time_us for line in lines if line.store_id == manifest.store_id]
        self.latest_us = 0
        for time_us in (manifest.time_us, plan.purges.newest_us, *times):
            self._see(time_us)

    def run(self, volumes: list[Volume], *, is_lenient: bool = False) -> list[Volume]:
        """
        Set the positions of all records of volumes in the index.

        A volume resumes where its last record ends; records that were found by the scan
        are its pending entries.

        Args:
            volumes: In the order of `StartPlan.open_volumes`.
            is_lenient: Leave out volumes that do not fit, and all that may be older.

        Returns:
            Those that may have outdated records; they are not in the index.

        Raises:
            MismatchedFilesError: Files were replaced, so a start must not use the volumes.
            UnreadableVolumeError: The disk cannot be read where records may be.
        """
        for volume in volumes:
            self._replay_volume(volume)
        self._index.end_load()
        mismatches = self._plan.mismatches + ([] if is_lenient else self._mismatches)
        if mismatches:
            raise MismatchedFilesError(self._directory.root, mismatches)
        if self._unreadable:
            raise self._unreadable[0]
        bounds = self._plan.manifest.outdated_bounds(self._unknown)
        unknown = [v for v in volumes if v.seq < bounds[v.use.ring]]
        for volume in unknown:
            self._index.reclaim(volume.seq)
        return unknown

    def _replay_volume(self, volume: Volume) -> None:
        self._index.add_volume(volume.seq)
        if volume.use.ring is Ring.PROBATION:
            self._index.set_age(volume.seq, volume.use.ring, 0, 0)
        self._volumes[volume.seq] = volume
        listed = self._listed[volume.seq]
        contents = self.contents[volume.seq] = self._replay_entries(volume)
        found = contents.found
        if found.is_of_clone:
            self._mismatches.append(f"{INDEX}/{volume.id}")
            self._unknown.append(volume.use)
        end, scanned = found.volume_end, self._recovery.scanned
        if not is_whole(found, listed):
            end, has_gap = self._replay_tail(volume, contents)
            self._check_known(volume, contents, end, has_gap=has_gap)
        elif listed.state == "synced":
            self.unclean.discard(volume.use)
        is_scanned = self._recovery.scanned > scanned
        if found.last_offset and not is_scanned and listed.is_open:
            # META.txt is not older than the records of the others.
            self._see_times_of(volume, end, found.last_offset)
        volume.resume(end, found)
        if listed.state == "synced":
            volume.synced_end = volume.end

    def _replay_entries(self, volume: Volume) -> IndexContents:
        """Replay the index file; one that cannot be read counts as missing."""
        fs, path = self._directory.fs, self._directory.index_path(volume.id)
        name, segments = volume.index_name, volume.segments
        try:
            with reading(fs, path) as fd:
                head = read_range(fs, fd, 0, HEAD_BYTES)
                contents = IndexContents(head, name, segments)
                contents.replay(self._index, fs, fd)
        except FileNotFoundError:
            return IndexContents(b"", name, segments)
        except OSError as error:
            _logger.warning(
                "recovery.file_unreadable path=%r error=%r", path, str(error)
            )
            return IndexContents(b"", name, segments)
        self._recovery.entries += contents.found.entries
        return contents

    def _check_known(
        self, volume: Volume, contents: IndexContents, end: int, *, has_gap: bool
    ) -> None:
        """Find out whether all keys of a volume are known, now that it was scanned."""
        if rejected := self._plan.rejected.get(volume.id):
            self._mismatches += rejected
        elif self._is_known(volume, contents, end, has_gap=has_gap):
            return
        else:
            self._recovery.count_unknown(volume.id, end)
        self._unknown.append(volume.use)  # Its other records may be outdated, too.

    def _is_known(
        self, volume: Volume, contents: IndexContents, end: int, *, has_gap: bool
    ) -> bool:
        listed = self._listed[volume.seq]
        if listed.may_have_lost(is_same_boot=self._plan.is_same_boot):
            return True
        if has_gap:
            return False
        if listed.is_open:
            lines = self._directory.progress
            return all(end >= one.end for one in lines if one.salt == volume.salt)
        if not listed.end:
            # META.txt is lost. The index file was sealed: if it is intact, but not sealed,
            # then it is an earlier one.
            return not (contents.is_ours and contents.is_whole)
        return end >= listed.end

    def _tail_of(
        self, volume: Volume, contents: IndexContents
    ) -> tuple[int, int, int, bool]:
        is_same_boot, is_active = self._plan.is_same_boot, volume.use in self._actives
        listed = self._listed[volume.seq]
        return tail_of(listed, contents, is_active=is_active, is_same_boot=is_same_boot)

    def _replay_tail(self, volume: Volume, contents: IndexContents) -> tuple[int, bool]:
        """
        Replay the records after the last entry, and keep their entries.

        Returns:
            The end of the last record, and whether there is a gap before it.
        """
        records = Records(
            self._directory.fs,
            volume,
            *self._tail_of(volume, contents),
            step=_STEP_BYTES,
            index=self._index,
            adds_entries=True,
        )
        end, has_gap = records.at, False
        for event in records:
            if isinstance(event, Run):
                end = event.end
                self._recovery.scanned += event.records
                self._see(event.latest_us)
                if self._spill is not None:
                    self._spill.take(volume, end)
            elif isinstance(event, Found) and not (
                # It is the last one, and older than that of the other ring: refused.
                self._is_outdated(volume, event.header)
                and not records.has_more(records.at)
            ):
                end = records.at
                self._replay_record(volume, event)
            elif isinstance(event, Gap):
                self._recovery.count_damage("gap", volume.id, event.start, event.end)
                end, has_gap = event.end, True
            elif isinstance(event, Unreadable):
                root = self._directory.root
                self._unreadable.append(UnreadableVolumeError(root, volume.id, *event))
                break
            else:
                self._recovery.count_torn(volume.id, end)
                break
        sectors, _ = records.unreadable
        if sectors:
            _logger.warning(
                "recovery.sectors_unreadable volume=%d sectors=%d", volume.id, sectors
            )
        return end, has_gap

    def _replay_record(self, volume: Volume, found: Found) -> None:
        """Replay one record that was found by the scan, and keep its entry."""
        header = found.header
        self._recovery.scanned += 1
        self._see(header.stored_us)
        if not found.intact:
            # Its key is known, and an older value must not take its place: the index
            # gets the position, and a get of the key is a miss.
            end = header.offset + header.size
            self._recovery.count_damage("value", volume.id, header.offset, end)
            if self._has_original(header):
                return  # It is a copy, and what it was copied from is still there.
        place, tombstone = (header.offset, header.size), header.tombstone
        self._index.set(header.key, volume.seq, *place, tombstone=tombstone)
        volume.add_entry(header.key, *((0, 0) if tombstone else place))

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
        return other is not None and other.stored_us > header.stored_us

    def _indexed_header(self, key: bytes) -> RecordHeader | None:
        """Return the header of the record that the index has for a key, if it is intact."""
        found = self._index.find(key)
        if found is None:
            return None
        header = self._header_at(self._volumes[found[0]], found[1])
        return header if header is not None and header.key == key else None

    def _header_at(self, volume: Volume, offset: int) -> RecordHeader | None:
        if volume.fd == NO_FILE:
            return None
        try:
            data = self._directory.fs.pread(volume.fd, RECORD_PREFIX_BYTES_MAX, offset)
        except OSError:
            return None
        return decode_header(data, *volume.place_at(offset))

    def _has_original(self, header: RecordHeader) -> bool:
        """Return whether the index has the record that this one is a copy of."""
        other = self._indexed_header(header.key)
        return other is not None and header.is_relocated_from(other)

    def _see_times_of(self, volume: Volume, end: int, last: int) -> None:
        """
        Read when the indexed records were stored that are newer than LOCK.

        A touch and a copy keep the time of their record, so the last one need not be the
        latest. Behind damage only the last one is read.
        """
        fs, salts = self._directory.fs, self._listed[volume.seq].salts
        known = [line.end for line in self._directory.progress if line.salt in salts]
        at = max(known, default=VOLUME_HEADER_BYTES)
        for event in Records(fs, volume, at, end, step=WHOLE_VOLUME):
            if isinstance(event, Run):
                self._see(event.latest_us)
            elif isinstance(event, Found) and event.intact:
                self._see(event.header.stored_us)
            else:
                break
        header = self._header_at(volume, last)
        if header is not None:
            self._see(header.stored_us)

    def _see(self, us: int) -> None:
        if us < CLOCK_END:
            self.latest_us = max(self.latest_us, us)
