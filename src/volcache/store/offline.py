"""
A mount point that nobody serves, as tools look at it: its files and its lives.

Takes what is there, without making or mending anything; what keeps a file from being
looked at is collected in `problems`. Knows nothing of what tools do with the records.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
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
from volcache.store.index import VOLUME_MAX
from volcache.store.inventory import Inventory
from volcache.store.scan import NO_FILE
from volcache.store.stats import RecoveryStats

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.volume import Volume

IS_DIRECTORY: Final = "is a directory in the place of a file"
_ID: Final = re.compile(r"0|[1-9][0-9]{0,4}")


class Problem(NamedTuple):
    """What is wrong with a file as a whole, or with the bytes at an offset."""

    file: str
    offset: int
    what: str


@dataclass(slots=True)
class _Collected(RecoveryStats):
    """What a survey finds, as problems instead of lines in a log."""

    problems: list[Problem] = field(default_factory=list)
    stale_volumes: list[tuple[int, int]] = field(default_factory=list)

    def count_damage(self, what: str, volume: int, start: int, end: int) -> None:
        """Remember a header; a survey looks at nothing else."""
        text = f"{what} does not check out, up to {end}"
        self.problems.append(Problem(f"{DATA}/{volume}", start, text))

    def count_stale(self, volume: int, generation: int) -> None:
        """Remember a volume whose life was reclaimed."""
        self.stale_volumes.append((volume, generation))

    def count_meta_lost(self) -> None:
        """Remember that META.txt says nothing."""
        self.meta_lost = True


class OfflineStore:
    """The lives of a mount point, from the oldest to the newest."""

    def __init__(self, mount: StoreDirectory) -> None:
        """
        Look at META.txt and at the headers of all volumes.

        Args:
            mount: Locked; closed with this.

        Raises:
            FormatVersionError: A volume was written by a newer volcache.
            ForeignDirectoryError: `data` holds files that are not volumes.
            OSError: META.txt cannot be read.
        """
        self.mount = mount
        self.problems: list[Problem] = []
        self._descriptors: dict[int, int] = {}
        try:
            self._list_root()
            self.index_ids = self._ids(INDEX)
            for volume in sorted(self._ids(DATA) | self.index_ids):
                self._descriptors[volume] = self._open(volume)
            # A survey of nothing makes a life of volume 0.
            self._descriptors.setdefault(0, NO_FILE)
            found = _Collected()
            survey = Inventory(mount, self._descriptors, found)
            self.headers = survey.headers
            self.meta = survey.meta
            seqs = survey.seqs()
        except BaseException:
            self.close()
            raise
        self.problems += found.problems
        self.meta_lost = found.meta_lost
        self.stale_volumes = found.stale_volumes
        self.volumes: list[Volume] = [seqs[seq] for seq in sorted(seqs)]

    @classmethod
    def inspect(cls, fs: FileSystem, directory: str) -> Self:
        """
        Open a directory only to look at it; see `StoreDirectory.inspect` for the errors.

        Args:
            fs: One that reads only.
            directory: Of the mount point.
        """
        mount = StoreDirectory.inspect(fs, directory)
        try:
            return cls(mount)
        except OSError as error:
            raise unreadable(directory, error) from error

    def descriptor(self, volume: int) -> int:
        """Return the descriptor of a volume; `NO_FILE`: it cannot be opened."""
        return self._descriptors[volume]

    @property
    def length(self) -> int:
        """The length of all volumes together, in bytes."""
        found = self._descriptors.values()
        return sum(self.mount.fs.size(fd) for fd in found if fd != NO_FILE)

    def _list_root(self) -> None:
        for name in self.mount.fs.names(self.mount.root):
            if name not in NAMES:
                self._note(name, "is no file of a store; a server refuses to start")
        for name in (LOCK, META, HOT):
            if os.path.isdir(os.path.join(self.mount.root, name)):
                self._note(name, IS_DIRECTORY)

    def _ids(self, folder: str) -> set[int]:
        """Return the ids that files of a folder are named by."""
        try:
            names = self.mount.fs.names(os.path.join(self.mount.root, folder))
        except OSError as error:
            self._note(folder, f"cannot be read: {error.strerror or error}")
            return set()
        ids = {int(name) for name in names if _ID.fullmatch(name)}
        for name in names:
            if folder == INDEX and name.endswith(".new"):
                continue  # What a repair that was cut short had not yet put in place.
            if not _ID.fullmatch(name) or int(name) > VOLUME_MAX:
                self._note(f"{folder}/{name}", "is not named by the id of a volume")
            elif folder == INDEX and os.path.isdir(self.mount.index_path(int(name))):
                self._note(f"{folder}/{name}", IS_DIRECTORY)
        return {volume for volume in ids if volume <= VOLUME_MAX}

    def _open(self, volume: int) -> int:
        try:
            return self.mount.fs.open(self.mount.data_path(volume), create=False)
        except OSError as error:
            self._note(f"{DATA}/{volume}", f"cannot be opened: {error.strerror}")
            return NO_FILE

    def _note(self, name: str, what: str) -> None:
        self.problems.append(Problem(ascii(name)[1:-1], 0, what))

    def close(self) -> None:
        """Give back the lock and what is open."""
        for fd in self._descriptors.values():
            if fd != NO_FILE:
                self.mount.fs.close(fd)
        self._descriptors = {}
        self.mount.close()
