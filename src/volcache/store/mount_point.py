"""
What the files of a mount point say, before any record is read.

Reads META.txt, PURGE.txt, the headers of all volumes and the beginnings of all index files;
`StoreDirectory` has read LOCK. Decides nothing and changes nothing: `plan.py` derives what
follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.store.directory import DATA, INDEX, META
from volcache.store.files import reading
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    decode_volume_header,
    volume_version,
)
from volcache.store.index_format import (
    IndexName,
    decode_index_header,
    decode_segments,
)
from volcache.store.manifest import PURGE, ListedVolume, decode_manifest
from volcache.store.native import read_lines
from volcache.store.purges import decode_purges
from volcache.store.volume import NO_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from volcache.store.directory import StoreDirectory
    from volcache.store.format import VolumeHeader

_SAMPLE_BYTES: Final = 2**16  # of each index file


class MountPoint:
    """
    What the files of a mount point say.

    Attributes:
        directory: Of the store.
        descriptors: Of the data files, by volume id.
        manifest: META.txt; None: it is missing or damaged.
        has_manifest: There is a META.txt.
        purges: PURGE.txt; None: it is missing or damaged.
        has_purges: There is a PURGE.txt.
        headers: The intact volume headers, by volume id.
        unreadable: Ids of volumes whose header cannot be read.
        has_other_data: A data file has bytes in the place of a header.
        values: About how many values the index files list, by volume id.
        names: What data and index files say they are: by their paths, as `data/3`.
    """

    def __init__(
        self, directory: StoreDirectory, descriptors: Mapping[int, int]
    ) -> None:
        """
        Read the files.

        Args:
            directory: Locked.
            descriptors: Of the data files, by volume id; `NO_FILE` for one that cannot be
                opened.

        Raises:
            FormatVersionError: A file was written by another version of volcache.
            OSError: META.txt or PURGE.txt cannot be read.
        """
        self.directory, self.descriptors = directory, descriptors
        data, purges = directory.read(META), directory.read(PURGE)
        self.manifest = decode_manifest(data or b"")
        self.has_manifest, self.has_purges = data is not None, purges is not None
        self.purges = decode_purges(purges or b"")
        self.headers: dict[int, VolumeHeader] = {}
        self.unreadable: list[int] = []
        self.has_other_data = False
        self.names: dict[str, IndexName] = {}
        for volume, fd in descriptors.items():
            if fd != NO_FILE:
                self._read_header(volume, fd)
        self.values: dict[int, int] = {}
        for volume in directory.index_ids():
            self._read_index_file(volume)

    def _read_header(self, volume: int, fd: int) -> None:
        try:
            data = self.directory.fs.pread(fd, VOLUME_HEADER_BYTES, 0)
        except OSError:
            self.unreadable.append(volume)
            return
        if not any(data):
            return
        header = decode_volume_header(data)
        if header is not None and header.use.volume == volume:
            self.headers[volume] = header
            self.names[f"{DATA}/{volume}"] = IndexName(header.use, header.store_id)
        else:
            self.directory.refuse_version(f"{DATA}/{volume}", volume_version(data))
            self.has_other_data = True

    def _read_index_file(self, volume: int) -> None:
        fs = self.directory.fs
        try:
            with reading(fs, self.directory.index_path(volume)) as fd:
                length, data = fs.stat(fd).st_size, fs.pread(fd, _SAMPLE_BYTES, 0)
        except OSError:
            return  # It counts as missing.
        version, name = decode_index_header(data) or (None, None)
        self.directory.refuse_version(f"{INDEX}/{volume}", version)
        # Without comments; and a deleted key keeps the entry that its value had.
        values = data.count(b"\n") - data.count(b"\n#") - data.count(b" 0 0\n")
        self.values[volume] = length * max(0, values) // max(1, len(data))
        if name is not None and name.use.volume == volume:
            self.names[f"{INDEX}/{volume}"] = name

    def read_listed(self, name: IndexName) -> ListedVolume:
        """Return what an index file, whose name is this one, says of its volume."""
        data = self.directory.read_index_file(name.use.volume)
        segments = decode_segments(data)
        found, _ = read_lines(data, segments)
        named = tuple(segments[: found.named])
        return ListedVolume(name.use, "sealed", found.volume_end, segments=named)
