"""
A mount point that no process serves, as the offline tools see it: its files and volumes.

Reads what is there and changes nothing; files that cannot be used are listed in
`problems`. Contains nothing about what the tools do with the records.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from volcache.store.directory import (
    DATA,
    HOT,
    INDEX,
    LOCK,
    META,
    NAMES,
    StoreDirectory,
    unreadable,
)
from volcache.store.format import VOLUME_HEADER_BYTES, VOLUME_ID_MAX
from volcache.store.inventory import take_inventory
from volcache.store.native import make_index
from volcache.store.purges import PURGE
from volcache.store.replay import Replay, expected_keys
from volcache.store.scan import WHOLE_VOLUME, Found, VolumeReader, scan_records
from volcache.store.stats import RecoveryStats
from volcache.store.volume import NO_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.files import FileSystem
    from volcache.store.native import Index
    from volcache.store.volume import Volume

IS_DIRECTORY: Final = "is a directory in the place of a file"
_ID: Final = re.compile(r"0|[1-9][0-9]{0,4}")


class Problem(NamedTuple):
    """What is wrong with a file as a whole, or with its bytes at an offset."""

    file: str
    offset: int
    what: str


class OfflineStore:
    """
    A mount point opened for reading.

    Attributes:
        directory: The locked directory.
        inventory: What it holds, see `inventory.py`.
        volumes: The valid volumes, in the order of a replay.
        index_ids: The ids of all index files.
        problems: Files that cannot be used.
    """

    def __init__(self, directory: StoreDirectory, *, lenient: bool = False) -> None:
        """
        Take the inventory.

        Args:
            directory: Locked; closed with this.
            lenient: Leave out the volumes that do not match.

        Raises:
            FormatVersionError: A volume was written by another version of volcache.
            ForeignDirectoryError: `data` contains files that are not volumes.
            OSError: META.txt cannot be read.
        """
        self.directory = directory
        self.problems: list[Problem] = []
        self._descriptors: dict[int, int] = {}
        try:
            self._check_root()
            self.index_ids = self._ids(INDEX)
            for volume in sorted(self._ids(DATA) | self.index_ids):
                self._descriptors[volume] = self._open(volume)
            # Without any volume, the inventory has volume 0 as the active one.
            self._descriptors.setdefault(0, NO_FILE)
            self.inventory = take_inventory(
                directory, self._descriptors, lenient=lenient
            )
        except BaseException:
            self.close()
            raise
        what = f"header check failed, up to {VOLUME_HEADER_BYTES}"
        for volume in self.inventory.damaged:
            self.problems.append(Problem(f"{DATA}/{volume}", 0, what))
        self.volumes: list[Volume] = self.inventory.open_volumes(self._descriptors)

    @classmethod
    def inspect(cls, fs: FileSystem, path: str) -> Self:
        """
        Open a directory for reading; see `StoreDirectory.inspect` for the errors.

        Args:
            fs: A read-only one.
            path: Of the mount point.
        """
        directory = StoreDirectory.inspect(fs, path)
        try:
            return cls(directory)
        except OSError as error:
            raise unreadable(path, error) from error

    def is_active(self, volume: Volume) -> bool:
        """Return whether a volume is one that would be written next."""
        return volume.use in self.inventory.manifest.actives

    def descriptor(self, volume: int) -> int:
        """Return the descriptor of a data file; `NO_FILE`: it cannot be opened."""
        return self._descriptors[volume]

    @property
    def length(self) -> int:
        """The length of all data files together, in bytes."""
        found = self._descriptors.values()
        return sum(self.directory.fs.size(fd) for fd in found if fd != NO_FILE)

    def make_index(self) -> Index:
        """Return an empty index for these volumes."""
        fs, manifest = self.directory.fs, self.inventory.manifest
        fds = [fd for fd in self._descriptors.values() if fd != NO_FILE]
        return make_index(
            fs,
            manifest.store_id,
            volumes=len(self.volumes),
            volume_bytes=max([0, *map(fs.size, fds)]),
            expected=expected_keys(self.directory, self.volumes),
        )

    def replay(self) -> Index:
        """
        Return the index that a start would build; nothing is written.

        Volumes that a start would drop are left out from now on.

        Raises:
            MismatchedFilesError: Files were replaced.
            UnreadableVolumeError: The disk cannot be read where records may be.
        """
        index = self.make_index()
        replay = Replay(self.inventory, index, RecoveryStats())
        for volume in self.volumes:
            replay.replay(volume)
        replay.refuse()
        dropped = replay.drop_unknown(self.volumes)
        self.volumes = [volume for volume in self.volumes if volume not in dropped]
        return index

    def records(self) -> Iterator[tuple[Volume, Found]]:
        """Yield every record in the order of a replay."""
        for volume in self.volumes:
            reader = VolumeReader(self.directory.fs, volume, volume.end)
            for event in scan_records(reader, VOLUME_HEADER_BYTES, WHOLE_VOLUME):
                if isinstance(event, Found):
                    yield volume, event

    def _check_root(self) -> None:
        for name in self.directory.fs.names(self.directory.root):
            if name not in NAMES:
                self._add(name, "is not a file of a store; a server refuses to start")
        for name in (LOCK, META, HOT, PURGE):
            if os.path.isdir(os.path.join(self.directory.root, name)):
                self._add(name, IS_DIRECTORY)

    def _ids(self, folder: str) -> set[int]:
        """Return the volume ids that the files of a folder are named after."""
        try:
            names = self.directory.fs.names(os.path.join(self.directory.root, folder))
        except OSError as error:
            self._add(folder, f"cannot be read: {error.strerror or error}")
            return set()
        ids = {int(name) for name in names if _ID.fullmatch(name)}
        for name in names:
            if folder == INDEX and name.endswith(".new"):
                continue  # Left by an interrupted repair.
            if not _ID.fullmatch(name) or int(name) > VOLUME_ID_MAX:
                self._add(f"{folder}/{name}", "is not named after a volume id")
            elif folder == INDEX and os.path.isdir(
                self.directory.index_path(int(name))
            ):
                self._add(f"{folder}/{name}", IS_DIRECTORY)
        return {volume for volume in ids if volume <= VOLUME_ID_MAX}

    def _open(self, volume: int) -> int:
        try:
            return self.directory.fs.open(
                self.directory.data_path(volume), create=False
            )
        except OSError as error:
            self._add(f"{DATA}/{volume}", f"cannot be opened: {error.strerror}")
            return NO_FILE

    def _add(self, name: str, what: str) -> None:
        self.problems.append(Problem(ascii(name)[1:-1], 0, what))

    def close(self) -> None:
        """Release the lock and close all files."""
        for fd in self._descriptors.values():
            if fd != NO_FILE:
                self.directory.fs.close(fd)
        self._descriptors = {}
        self.directory.close()
