"""
A mount point that no process serves, as the offline tools see it: its files and volumes.

Reads what is there and changes nothing. Contains nothing about what the tools do with
what is found.
"""

from __future__ import annotations

import os
import re
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

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
from volcache.store.files import close_all
from volcache.store.format import VOLUME_HEADER_BYTES, VOLUME_ID_MAX
from volcache.store.index import Found
from volcache.store.manifest import PURGE
from volcache.store.mount_point import MountPoint, plan_start
from volcache.store.native import make_index
from volcache.store.replay import Replay, expected_keys
from volcache.store.stats import RecoveryStats
from volcache.store.volume import NO_FILE
from volcache.store.volume_check import Anomaly, Counts, Missing, VolumeCheck

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.files import FileSystem
    from volcache.store.native import Index
    from volcache.store.volume import Volume
    from volcache.store.volume_check import Event

IS_DIRECTORY: Final = "is a directory in the place of a file"
_ID: Final = re.compile(r"0|[1-9][0-9]{0,4}")


class OfflineStore:
    """
    A mount point opened for reading; a context manager that closes it.

    Attributes:
        directory: The locked directory.
        found: What its files say, see `mount_point.py`.
        plan: What a start does with it, see `plan_start`.
        volumes: The valid volumes, in the order of a replay.
        listed: Their lines in META.txt, by use.
        unusable: Files that cannot be used.
        contents: The valid part of each index file, by sequence number; after `replay`.
        outdated: Volumes that a start would drop; likewise.
    """

    def __init__(self, directory: StoreDirectory, *, lenient: bool = False) -> None:
        """
        StartPlan a start.

        Args:
            directory: Locked; closed with this.
            lenient: Leave out the volumes that do not match.

        Raises:
            FormatVersionError: A volume was written by another version of volcache.
            ForeignDirectoryError: `data` contains files that are not volumes.
            OSError: META.txt cannot be read.
        """
        self.directory = directory
        self._is_lenient = lenient
        self.unusable: list[Anomaly] = []
        self._descriptors: dict[int, int] = {}
        try:
            self._check_root()
            for volume in sorted(self._ids(INDEX) | self._ids(DATA)):
                self._descriptors[volume] = self._open(volume)
            # Without any volume, the plan has volume 0 as the active one.
            self._descriptors.setdefault(0, NO_FILE)
            self.found = MountPoint(directory, self._descriptors)
            self.plan = plan_start(self.found, is_lenient=lenient)
        except BaseException:
            self.close()
            raise
        what = f"header check failed, up to {VOLUME_HEADER_BYTES}"
        for volume in self.plan.damaged:
            self._add(f"{DATA}/{volume}", what)
        self.volumes: list[Volume] = self.plan.open_volumes(self.found)
        self._oldest = {one.use.ring: one for one in reversed(self.volumes)}
        manifest = self.plan.manifest
        self.listed = {listed.use: listed for listed in manifest.volumes}

    @classmethod
    def inspect(cls, fs: FileSystem, path: str) -> Self:
        """
        Open a directory for reading; see `StoreDirectory.open` for the errors.

        Args:
            fs: A read-only one.
            path: Of the mount point.
        """
        directory = StoreDirectory.open(fs, path, is_written=False)
        try:
            return cls(directory)
        except OSError as error:
            raise unreadable(path, error) from error

    def is_active(self, volume: Volume) -> bool:
        """Return whether a volume is one that would be written next."""
        return volume.use in self.plan.manifest.actives

    @property
    def length(self) -> int:
        """The length of all data files together, in bytes."""
        return sum(self._lengths())

    def _lengths(self) -> Iterator[int]:
        found = self._descriptors.values()
        return (self.directory.fs.stat(fd).st_size for fd in found if fd != NO_FILE)

    def make_index(self) -> Index:
        """Return an empty index for these volumes."""
        return make_index(
            self.directory.fs,
            self.plan.manifest.store_id,
            volumes=len(self.volumes),
            volume_bytes=max(self._lengths(), default=0),
            expected=expected_keys(self.found, self.volumes),
        )

    def replay(self) -> Index:
        """
        Return the index that a start would build; nothing is written.

        Raises:
            MismatchedFilesError: Files were replaced.
            UnreadableVolumeError: The disk cannot be read where records may be.
        """
        index = self.make_index()
        replay = Replay(self.found, self.plan, index, RecoveryStats())
        self.outdated = replay.run(self.volumes, is_lenient=self._is_lenient)
        self.contents = replay.contents
        index.load_purges(self.plan.purges.purges)
        return index

    def check_of(
        self,
        volume: Volume,
        *,
        index: Index | None = None,
        counts: Counts | None = None,
        each: bool = False,
    ) -> VolumeCheck:
        """Return a check over a volume."""
        return VolumeCheck(
            self.directory,
            volume,
            self.listed[volume.use],
            is_active=self.is_active(volume),
            is_oldest=self._oldest[volume.use.ring] is volume,
            index=index,
            counts=counts,
            each=each,
        )

    def check(self, counts: Counts) -> Iterator[Event]:
        """
        Compare everything with docs/FORMAT.md; yield what is there and what is wrong.

        Args:
            counts: Is filled; complete when the iterator has ended.
        """
        yield from self.unusable
        yield from self._compare_files()
        # What follows from one of these is not reported.
        unusable = {
            found.file for found in self.unusable if found.file.startswith(INDEX)
        }
        keys = self.make_index()  # Of records that can be read.
        for volume in self.volumes:
            keys.add_volume(volume.seq)
            counts.volumes += volume.fd != NO_FILE
            if volume.id in self.plan.rejected:
                continue  # None of its records belongs here.
            check = self.check_of(volume, index=keys, counts=counts)
            for event in check.run(is_same_boot=self.plan.is_same_boot):
                if not (isinstance(event, Anomaly) and event.file in unusable):
                    yield event
        counts.keys = keys.count

    def records(self, index: Index) -> Iterator[tuple[Volume, Found | Missing, bool]]:
        """
        Yield every record in the order of a replay, and whether its key has it.

        Args:
            index: From `replay`.
        """
        for volume in self.volumes:
            if volume in self.outdated:
                continue
            check = self.check_of(volume, each=True)
            for event in check.run(is_same_boot=self.plan.is_same_boot):
                if isinstance(event, Found | Missing):
                    record = event.header if isinstance(event, Found) else event
                    place = index.find(record.key)
                    at = (volume.seq, record.offset)
                    yield volume, event, place is not None and place[:2] == at

    def _compare_files(self) -> Iterator[Anomaly]:
        found, plan = self.found, self.plan
        if plan.is_manifest_lost:
            yield Anomaly("file", META, 0, "is missing or its checksum is wrong")
        for volume_id in plan.stale:
            what = (
                "the header is that of an earlier use; the present one was not written"
            )
            yield Anomaly("note", f"{DATA}/{volume_id}", 0, what)
        for file in dict.fromkeys(chain(*plan.rejected.values(), plan.mismatches)):
            yield Anomaly("file", file, 0, str(plan.explain(found, file)))
        for volume_id in plan.foreign:
            other = found.headers[volume_id].store_id
            what = f"belongs to another store, {other:016x}"
            yield Anomaly("file", f"{DATA}/{volume_id}", 12, what)
        if plan.mismatches:
            yield Anomaly("file", META, 0, "a server refuses to start with these files")

    def _check_root(self) -> None:
        for name in sorted(self.directory.fs.names(self.directory.root)):
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
        ids = set()
        for name in sorted(names):
            if folder == INDEX and name.endswith(".new"):
                continue  # Left by an interrupted repair.
            if not _ID.fullmatch(name) or int(name) > VOLUME_ID_MAX:
                self._add(f"{folder}/{name}", "is not named after a volume id")
                continue
            ids.add(int(name))
            if folder == INDEX and os.path.isdir(self.directory.index_path(int(name))):
                self._add(f"{folder}/{name}", IS_DIRECTORY)
        return ids

    def _open(self, volume: int) -> int:
        path = self.directory.data_path(volume)
        try:
            return self.directory.fs.open(path, create=False)
        except OSError as error:
            self._add(f"{DATA}/{volume}", f"cannot be opened: {error.strerror}")
            return NO_FILE

    def _add(self, name: str, what: str) -> None:
        self.unusable.append(Anomaly("file", ascii(name)[1:-1], 0, what))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock and close all files."""
        descriptors, self._descriptors = self._descriptors, {}
        close_all(self.directory.fs, set(descriptors.values()) - {NO_FILE})
        self.directory.close()
