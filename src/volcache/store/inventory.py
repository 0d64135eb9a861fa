"""
The inventory of a mount point: which volumes it holds, before any record is read.

META.txt, the headers of the volumes and the index files each name generations, and each
may be missing, damaged or, after a crash during a rotation, older than the others. The
newest generation is right: a rotation that came at least that far has written it.

Taking an inventory changes nothing and returns a value; `recovery.py` replays it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import ForeignDirectoryError
from volcache.store.directory import read_beginning, read_whole, refuse_newer
from volcache.store.format import (
    RECORD_PREFIX_BYTES_MAX,
    VERSION,
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    decode_volume_header,
    generation_of,
    identified_generation,
    make_seq,
    volume_of,
    volume_version,
)
from volcache.store.index_format import decode_index_header, has_block
from volcache.store.manifest import Manifest
from volcache.store.volume import NO_FILE, Volume

if TYPE_CHECKING:
    from collections.abc import Mapping

    from volcache.store.directory import StoreDirectory

# If META.txt is lost, the mount count is not known, only those at which volumes were
# started. At most this many mounts followed, and none of their records may be taken for
# a record of the next mount.
_LOST_MOUNT_COUNTS_MAX: Final = 2**16


class FoundVolume(NamedTuple):
    """One use of one volume."""

    volume: int
    generation: int
    started_ms: int  # from the header; 0 if it is missing or of an earlier use

    @property
    def seq(self) -> int:
        """The sequence number."""
        return make_seq(self.generation, self.volume)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """
    What a mount point holds.

    Attributes:
        manifest: META.txt, or what the volumes say if it is lost. Its `oldest_seq` is
            the highest that META.txt or any header names.
        is_manifest_lost: META.txt is missing or damaged although there are volumes.
        headers: The intact volume headers, by volume id.
        volumes: The valid volumes, oldest first; at least one, the last is the active
            one. A volume whose data file is lost is here if its index file is intact.
        stale: Volumes (id, generation) whose header shows an earlier, reclaimed use.
        damaged: Ids of volumes whose header is damaged or missing.
        foreign: Ids of volumes of another store, and the id of that store.
    """

    manifest: Manifest
    is_manifest_lost: bool
    headers: Mapping[int, VolumeHeader]
    volumes: tuple[FoundVolume, ...]
    stale: tuple[tuple[int, int], ...]
    damaged: tuple[int, ...]
    foreign: tuple[tuple[int, int], ...]

    def open_volumes(
        self, directory: StoreDirectory, descriptors: Mapping[int, int]
    ) -> list[Volume]:
        """Return the valid volumes as objects, oldest first; nothing is read."""
        return [
            self._open_volume(found, directory, descriptors) for found in self.volumes
        ]

    def _open_volume(
        self,
        found: FoundVolume,
        directory: StoreDirectory,
        descriptors: Mapping[int, int],
    ) -> Volume:
        return Volume(
            directory.fs,
            descriptors.get(found.volume, NO_FILE),
            volume=found.volume,
            generation=found.generation,
            store_id=self.manifest.store_id,
            started_ms=found.started_ms,
        )


def take_inventory(
    directory: StoreDirectory, descriptors: Mapping[int, int]
) -> Inventory:
    """
    Read META.txt, all volume headers and, where a header is lost, the index file.

    Args:
        directory: Locked.
        descriptors: Of the data files, by volume id; `NO_FILE` for one that cannot be
            opened.

    Raises:
        FormatVersionError: A volume was written by a newer volcache.
        ForeignDirectoryError: `data` contains files that are not volumes.
        OSError: META.txt cannot be read.
    """
    return _Builder(directory, descriptors).build()


class _Builder:
    """Collects the parts of an inventory."""

    def __init__(
        self, directory: StoreDirectory, descriptors: Mapping[int, int]
    ) -> None:
        self._directory = directory
        self._descriptors = descriptors
        manifest, exists = directory.read_manifest()
        self._headers = self._read_headers(manifest_exists=exists)
        self._is_manifest_lost = manifest is None and (exists or bool(self._headers))
        self._manifest = self._with_flushes(
            manifest or _manifest_from_headers(self._headers)
        )
        self._damaged: list[int] = []
        self._foreign: list[tuple[int, int]] = []

    def build(self) -> Inventory:
        volumes = self._find_volumes()
        stale = _stale_seqs(volumes)
        return Inventory(
            manifest=self._manifest,
            is_manifest_lost=self._is_manifest_lost,
            headers=self._headers,
            volumes=tuple(volumes[seq] for seq in sorted(volumes) if seq not in stale),
            stale=tuple((volume_of(seq), generation_of(seq)) for seq in stale),
            damaged=tuple(self._damaged),
            foreign=tuple(self._foreign),
        )

    def _read_headers(self, *, manifest_exists: bool) -> dict[int, VolumeHeader]:
        """Return the intact headers of all volumes."""
        headers: dict[int, VolumeHeader] = {}
        unknown = 0
        for volume, fd in self._descriptors.items():
            data = read_beginning(self._directory, fd, VOLUME_HEADER_BYTES)
            version = volume_version(data)
            if version is not None and version > VERSION:
                refuse_newer(self._directory.root, f"data/{volume}", version)
            header = decode_volume_header(data)
            if header is not None and header.volume == volume:
                headers[volume] = header
            elif any(data):
                unknown += 1
        if unknown and not headers and not manifest_exists:
            message = (
                f"mount point {self._directory.root!r} is not a volcache directory: the"
                " files in data/ are not volumes and there is no META.txt; give an"
                " empty or a new directory as mount_point"
            )
            raise ForeignDirectoryError(message)
        return headers

    def _with_flushes(self, manifest: Manifest) -> Manifest:
        """Take over the newest flush: META.txt and every later header record it."""
        flushed = [
            header.oldest_seq
            for header in self._headers.values()
            if header.store_id == manifest.store_id
        ]
        return manifest._replace(oldest_seq=max([manifest.oldest_seq, *flushed]))

    def _find_volumes(self) -> dict[int, FoundVolume]:
        """Return all volumes that were not flushed, by sequence number; at least one."""
        volumes: dict[int, FoundVolume] = {}
        for volume in self._descriptors:
            generation = self._generation(volume)
            if generation is None:
                continue
            if make_seq(generation, volume) >= self._manifest.oldest_seq:
                found = self._found(volume, generation)
                volumes[found.seq] = found
        if not volumes:
            # The data file of the active volume was removed, and its id is not below
            # volume_num; or this is a new store.
            found = self._found(0, self._manifest.generation + 1)
            volumes[found.seq] = found
        return volumes

    def _found(self, volume: int, generation: int) -> FoundVolume:
        header = self._headers.get(volume)
        is_of_this_use = header is not None and (
            header.generation,
            header.store_id,
        ) == (generation, self._manifest.store_id)
        started_ms = header.started_ms if header is not None and is_of_this_use else 0
        return FoundVolume(volume, generation, started_ms)

    def _generation(self, volume: int) -> int | None:
        """Return the generation of a volume; None: it holds nothing."""
        generation = self._generation_on_disk(volume)
        if volume != self._manifest.active:
            return generation
        # META.txt is replaced before the header is written: if the header is older, the
        # earlier use of the volume has ended.
        return max(self._manifest.generation, generation or 0)

    def _generation_on_disk(self, volume: int) -> int | None:
        """Return the generation in the header, else the index file or first record."""
        header = self._headers.get(volume)
        store_id = self._manifest.store_id
        if header is not None:
            if header.store_id == store_id:
                return header.generation
            self._foreign.append((volume, header.store_id))
            return None
        beginning = read_beginning(
            self._directory,
            self._descriptors[volume],
            VOLUME_HEADER_BYTES + RECORD_PREFIX_BYTES_MAX,
        )
        generation = self._generation_of_index_file(volume)
        if generation is None:
            generation = identified_generation(
                beginning[VOLUME_HEADER_BYTES:], store_id=store_id, volume=volume
            )
        if volume == self._manifest.active:
            # The crash came while it was started; recovery writes the header again.
            return generation
        if generation is not None or any(beginning):
            self._damaged.append(volume)
        return generation

    def _generation_of_index_file(self, volume: int) -> int | None:
        """
        Return the generation in the index file, if that is intact and of this volume.

        It is used even if the data file is lost: the entries show which records of
        older volumes are superseded.
        """
        data = read_whole(self._directory, self._directory.index_path(volume))
        named = decode_index_header(data)
        if named is None or not has_block(data):
            return None
        _, name = named
        is_ours = name.volume == volume and name.store_id == self._manifest.store_id
        return name.generation if is_ours else None


def _manifest_from_headers(headers: Mapping[int, VolumeHeader]) -> Manifest:
    """Return what the volumes say about a lost META.txt; a new id for a new store."""
    if not headers:
        return Manifest(0, 0, secrets.randbits(64), 0)
    counted = Counter(header.store_id for header in headers.values())
    store_id = counted.most_common(1)[0][0]
    ours = [header for header in headers.values() if header.store_id == store_id]
    newest = max(ours, key=lambda header: (header.generation, header.volume))
    mount_count = max(header.mount_count for header in ours) + _LOST_MOUNT_COUNTS_MAX
    return Manifest(newest.volume, newest.generation, store_id, mount_count)


def _stale_seqs(volumes: Mapping[int, FoundVolume]) -> list[int]:
    """
    Return the sequence numbers of volumes that a rotation has reclaimed.

    After a power loss META.txt, which is always synced, can be one or more rotations
    ahead of a header that was not synced: the volume then shows its earlier use, some of
    its records still intact, and the records that superseded them may be gone. All
    volumes up to the earlier use of the active volume have been reclaimed.
    """
    newest = max(volumes)
    reclaimed = make_seq(generation_of(newest) - 1, volume_of(newest))
    return [seq for seq in sorted(volumes) if seq <= reclaimed]
