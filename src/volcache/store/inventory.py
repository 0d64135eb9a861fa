"""
Find out which lives a mount point holds, before any record is read.

META.txt, the headers of the volumes and the index files each name generations, and each
may be missing, damaged or, after a crash in the middle of a rotation, behind the others.
The newest name counts: it was written by a rotation that had come at least that far.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Final

from volcache.errors import ForeignDirectoryError
from volcache.store.directory import refuse_newer
from volcache.store.files import read_file
from volcache.store.format import (
    RECORD_PREFIX_BYTES_MAX,
    VERSION,
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    decode_volume_header,
    identified_generation,
    volume_version,
)
from volcache.store.index import generation_of, make_seq, volume_of
from volcache.store.index_format import Meta, decode_index_header, has_block
from volcache.store.volume import Volume

if TYPE_CHECKING:
    from volcache.store.directory import StoreDirectory
    from volcache.store.stats import RecoveryStats

_logger = logging.getLogger("volcache.store")

# When META.txt is lost, the last session is not known, only those in which volumes were
# begun. This many may have come after, and no record of theirs must be taken for ours.
_LOST_MOUNT_COUNTS_MAX: Final = 2**16


class Inventory:
    """The lives of a mount point."""

    def __init__(
        self, mount: StoreDirectory, descriptors: dict[int, int], report: RecoveryStats
    ) -> None:
        """
        Read META.txt and all headers.

        Raises:
            FormatVersionError: A volume was written by a newer volcache.
            ForeignDirectoryError: `data` holds files that are not volumes.
        """
        self._mount = mount
        self._descriptors = descriptors
        self._report = report
        meta, meta_there = mount.read_meta()
        self.headers = self._read_headers(meta_there=meta_there)
        if meta is None and (meta_there or self.headers):
            report.count_meta_lost()
        self.meta = meta or self._meta_from_headers()
        # A flush is in both, so that losing one of them brings nothing back.
        flushed = [
            header.oldest_seq
            for header in self.headers.values()
            if header.store_id == self.meta.store_id
        ]
        oldest_seq = max([self.meta.oldest_seq, *flushed])
        self.meta = self.meta._replace(oldest_seq=oldest_seq)

    def seqs(self) -> dict[int, Volume]:
        """Return every life there is, by its number; one at least."""
        seqs: dict[int, Volume] = {}
        for volume in self._descriptors:
            generation = self._generation(volume)
            if generation is None:
                continue
            if make_seq(generation, volume) >= self.meta.oldest_seq:
                self._add_volume(seqs, volume, generation)
        if not seqs:
            # Somebody removed the file of the head, and its id is beyond volume_num.
            self._add_volume(seqs, 0, self.meta.generation + 1)
        self._drop_stale(seqs)
        return seqs

    def _drop_stale(self, seqs: dict[int, Volume]) -> None:
        """
        Take out lives that a rotation has reclaimed, whatever their headers say.

        After a power loss META.txt, which is always synced, can be a rotation or more
        ahead of a header that was not: the slot then shows the life before, some of
        its records still whole, and what had replaced them may be gone since. All
        lives up to the one the head's slot held before are over.
        """
        newest = max(seqs)
        over = make_seq(generation_of(newest) - 1, volume_of(newest))
        for seq in [seq for seq in seqs if seq <= over]:
            volume = seqs.pop(seq)
            self._report.count_stale(volume.id, volume.generation)

    def _add_volume(
        self, seqs: dict[int, Volume], volume: int, generation: int
    ) -> None:
        found = Volume(
            fd=self._descriptors[volume],
            volume=volume,
            generation=generation,
            store_id=self.meta.store_id,
        )
        header = self.headers.get(volume)
        if header is not None and (header.generation, header.store_id) == (
            generation,
            self.meta.store_id,
        ):
            found.started_ms = header.started_ms
        seqs[found.seq] = found

    def _read_headers(self, *, meta_there: bool) -> dict[int, VolumeHeader]:
        """Return the headers of all volumes that have an undamaged one."""
        headers: dict[int, VolumeHeader] = {}
        strange = 0
        for volume, fd in self._descriptors.items():
            data = read_beginning(self._mount, fd, VOLUME_HEADER_BYTES)
            version = volume_version(data)
            if version is not None and version > VERSION:
                refuse_newer(self._mount.root, f"data/{volume}", version)
            header = decode_volume_header(data)
            if header is not None and header.volume == volume:
                headers[volume] = header
            elif any(data):
                strange += 1
        if strange and not headers and not meta_there:
            message = (
                f"mount point {self._mount.root!r} is not a volcache directory: the"
                " files in data/ are not volumes and there is no META.txt; give an"
                " empty or a new directory as mount_point"
            )
            raise ForeignDirectoryError(message)
        return headers

    def _meta_from_headers(self) -> Meta:
        """Return what the volumes tell of a lost META.txt; new ids for a new store."""
        if not self.headers:
            return Meta(0, 0, secrets.randbits(64), 0)
        found = self.headers.values()
        counted = Counter(header.store_id for header in found)
        store_id = counted.most_common(1)[0][0]
        ours = [header for header in found if header.store_id == store_id]
        newest = max(ours, key=lambda header: (header.generation, header.volume))
        mount_count = (
            max(header.mount_count for header in ours) + _LOST_MOUNT_COUNTS_MAX
        )
        return Meta(newest.volume, newest.generation, store_id, mount_count)

    def _generation(self, volume: int) -> int | None:
        """Return the generation of a volume; None: there is nothing in it."""
        generation = self._generation_on_disk(volume)
        if volume != self.meta.active:
            return generation
        # META.txt is replaced before the header is written: when the header lags
        # behind, what the volume held before is already gone.
        return max(self.meta.generation, generation or 0)

    def _generation_on_disk(self, volume: int) -> int | None:
        """Return what the header says, or else the index file, or the first record."""
        header = self.headers.get(volume)
        store_id = self.meta.store_id
        if header is not None:
            if header.store_id == store_id:
                return header.generation
            _logger.warning(
                "recovery.foreign_volume volume=%d store=%016x expected=%016x",
                volume,
                header.store_id,
                store_id,
            )
            return None
        beginning = read_beginning(
            self._mount,
            self._descriptors[volume],
            VOLUME_HEADER_BYTES + RECORD_PREFIX_BYTES_MAX,
        )
        generation = self._generation_of_index_file(volume)
        if generation is None:
            generation = identified_generation(
                beginning[VOLUME_HEADER_BYTES:], store_id=store_id, volume=volume
            )
        if volume == self.meta.active:
            # The crash came while it was begun; its header is written again.
            return generation
        if generation is not None or any(beginning):
            self._report.count_damage("header", volume, 0, VOLUME_HEADER_BYTES)
        return generation

    def _generation_of_index_file(self, volume: int) -> int | None:
        """
        Return the generation the index file names, if it is ours and undamaged.

        It counts even when the volume is gone: its entries say which values of other
        volumes are no longer the last ones.
        """
        data = read_whole(self._mount, self._mount.index_path(volume))
        named = decode_index_header(data)
        if named is None or not has_block(data):
            return None
        _, name = named
        is_ours = name.volume == volume and name.store_id == self.meta.store_id
        return name.generation if is_ours else None


def read_beginning(mount: StoreDirectory, fd: int, length: int) -> bytes:
    """Read the beginning of a file; an unreadable one is as good as empty."""
    try:
        return mount.fs.pread(fd, length, 0)
    except OSError as error:
        _logger.warning("recovery.header_unreadable error=%r", str(error))
        return b""


def read_whole(mount: StoreDirectory, path: str) -> bytes:
    """Return a file, empty when it is missing or cannot be read."""
    try:
        return read_file(mount.fs, path) or b""
    except OSError as error:
        _logger.warning("recovery.file_unreadable path=%r error=%r", path, str(error))
        return b""
