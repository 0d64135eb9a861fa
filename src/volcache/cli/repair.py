"""
`volcache repair`: rewrite index files and META.txt from the volumes.

Files that do not belong to the mount point are left out, and with them all volumes whose
records may be outdated. Lines of an index file that pass a check are kept: they list the
keys of records whose headers are damaged. Records that follow are found as at the start of
a server. Volumes that are kept are only read.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from volcache.cli.command import Line, offline_command
from volcache.cli.progress import above, progress
from volcache.hot.versions import is_damaged
from volcache.store.directory import (
    DATA,
    HOT,
    INDEX,
    META,
    StoreDirectory,
    unusable,
)
from volcache.store.files import OsFileSystem, replace_file
from volcache.store.format import VOLUME_ID_MAX, Ring
from volcache.store.index import Found
from volcache.store.index_format import (
    close_block,
    encode_entries,
    encode_index_header,
    encode_segments,
)
from volcache.store.manifest import PURGE
from volcache.store.mount_point import new_volume
from volcache.store.offline import IS_DIRECTORY, OfflineStore
from volcache.store.recovery import drop_volumes
from volcache.store.stats import RecoveryStats
from volcache.store.volume import NO_FILE
from volcache.store.volume_check import Anomaly, Counts, Missing
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tqdm import tqdm

    from volcache.store.files import FileSystem
    from volcache.store.index_format import Entry
    from volcache.store.manifest import ListedVolume
    from volcache.store.volume import IndexContents, Volume

_TEMPORARY: Final = ".new"  # The suffix of a file that replaces another one.


def repair(directory: str, fs: FileSystem, report: Callable[[str], None]) -> bool:
    """
    Correct index files, META.txt, PURGE.txt and HOT.txt.

    Each file is replaced atomically: an interrupted repair leaves the directory no worse
    than before, and can be run again.

    Args:
        directory: The mount point.
        fs: The disk.
        report: Called with one line for each file that was or could not be written, and
            with a summary at the end.

    Returns:
        Whether every file could be written.

    Raises:
        StoreError: The directory cannot be written, is in use, or is not a store.
    """
    # An empty directory is refused before it is changed.
    StoreDirectory.open(fs, directory, is_written=False).close()
    opened = StoreDirectory.open(fs, directory)
    try:
        with (
            OfflineStore(opened, lenient=True) as store,
            progress(store.length, "repair") as bar,
        ):
            work = _Repair(store, bar, above(bar, report))
            work.run()
    except OSError as error:
        raise unusable(directory, error) from error
    numbers = {"volumes": work.volumes, "written": work.written, "failed": work.failed}
    failed = f", {work.failed} failed" if work.failed else ""
    text = (
        f"{directory}: {counted(work.volumes, 'volume')},"
        f" {counted(work.written, 'file')} written{failed}"
    )
    report(Line(text, summary={"directory": directory, **numbers}))
    return not work.failed


class _Repair:
    """One repair of a mount point."""

    def __init__(
        self, store: OfflineStore, bar: tqdm[NoReturn], report: Callable[[str], None]
    ) -> None:
        self._store = store
        self._bar = bar
        self._directory = store.directory
        self._report = report
        self._counts = Counts()
        self._checksums: dict[int, int | None] = {}  # of the index files, by seq
        self.volumes = 0  # that stay
        self.written = 0
        self.failed = 0

    def run(self) -> None:
        """Repair the files, one after the other."""
        directory, store = self._directory, self._store
        store.replay()
        for name in sorted(directory.fs.names(directory.index)):
            if name.endswith(_TEMPORARY):
                with self._excused(f"{INDEX}/{name}"):
                    directory.fs.unlink(f"{directory.index}/{name}")
        folders = {found.file for found in store.unusable if found.what == IS_DIRECTORY}
        for name in sorted(folders):
            self._fail(name, "is a directory; move it away and run repair again")
        for volume in store.volumes:
            if f"{INDEX}/{volume.id}" not in folders:
                self._repair_volume(volume)
        drop_volumes(directory, store.outdated, VOLUME_ID_MAX, RecoveryStats())
        kept = [volume for volume in store.volumes if volume not in store.outdated]
        self.volumes = len(kept)
        self._repair_manifest(kept)
        self._repair_purges()
        if is_damaged(directory.read(HOT) or b""):
            directory.remove_hot()
            self._done(HOT, "removed; all copies in memcached are discarded")

    def _repair_volume(self, volume: Volume) -> None:
        """Correct an index file; make room for a volume that has not been started."""
        name, directory = f"{INDEX}/{volume.id}", self._directory
        header = self._store.found.headers.get(volume.id)
        contents = self._store.contents[volume.seq]
        if volume.fd == NO_FILE and volume.id in directory.volume_ids():
            # Its last records may have no line yet, so the file must not be sealed.
            self._fail(name, f"not changed: {DATA}/{volume.id} cannot be opened")
        elif volume.id not in self._store.plan.rejected:
            with self._excused(name):
                if header is not None and header.use != volume.use:
                    # What is in its place belongs elsewhere.
                    directory.fs.unlink(directory.index_path(volume.id))
                    directory.fs.truncate(volume.fd, 0)
                elif header is not None or contents.is_ours or volume.pending:
                    self._repair_index(volume, contents)

    def _repair_index(self, volume: Volume, contents: IndexContents) -> None:
        """Rewrite an index file that is incomplete or has wrong lines."""
        path = self._directory.index_path(volume.id)
        before = self._directory.read_index_file(volume.id)
        wrong = self._count_wrong_lines(volume)
        added, lines, kept = volume.pending, volume.lines, contents.found.file_end
        data, checksum = before[:kept], contents.found.checksum
        if wrong:
            entries, data = self._entries(volume), b""
            added, lines = len(entries) + added, encode_entries(entries) + lines
        if not data or checksum is None:
            data, checksum = encode_index_header(volume.index_name)
            kept = 0
        is_sealed = volume.is_sealed or not self._store.is_active(volume)
        if added or wrong or is_sealed > volume.is_sealed:
            unnamed = volume.segments[contents.found.named if kept else 0 :]
            segments = [one for one in unnamed if one.start < volume.end]
            lines = encode_segments(segments) + lines
            block, checksum = close_block(
                lines, volume.end, sealed=is_sealed, previous=checksum
            )
            data += block
        self._checksums[volume.seq] = checksum
        if data != before:
            replace_file(self._directory.fs, path, data)
            more = f", {counted(wrong, 'line')} wrong or missing" if wrong else ""
            self._done(
                f"{INDEX}/{volume.id}",
                f"rewritten, {counted(kept, 'byte')} kept,"
                f" {counted(added, 'record')} added from the volume{more}",
            )

    def _count_wrong_lines(self, volume: Volume) -> int:
        """Return how many lines of an index file are wrong or missing."""
        wrong = 0
        for found in self._store.check_of(volume, counts=self._counts).indexed():
            self._bar.update(self._counts.bytes - self._bar.n)
            if isinstance(found, Anomaly):
                wrong += found.file.startswith(INDEX)
        return wrong

    def _entries(self, volume: Volume) -> list[Entry]:
        """Return the right entries of the indexed part of a volume."""
        entries: list[Entry] = []
        for found in self._store.check_of(volume, each=True).indexed():
            if isinstance(found, Found | Missing):
                # A damaged record keeps its line, so that its key stays a miss.
                record = found if isinstance(found, Missing) else found.header
                place = (0, 0) if record.tombstone else (record.offset, record.size)
                entries.append((record.key, *place))
        return entries

    def _repair_manifest(self, volumes: list[Volume]) -> None:
        """Write META.txt again if it is not that of the volumes that stay."""
        directory, plan = self._directory, self._store.plan
        listed = [self._listed(volume) for volume in volumes]
        listed.sort(key=lambda one: one.use.seq)
        if not any(one.use.ring is Ring.MAIN for one in listed):  # It was dropped.
            # Not in the place of a volume of ring probation that stays.
            place = max(self._store.outdated, key=lambda volume: volume.seq).id
            listed.append(new_volume(place, plan.manifest.active.seq + 1))
        found = self._store.found.manifest or plan.manifest._replace(volumes=())
        before = {one.use for one in found.volumes}
        kept = {one.use for one in listed}
        if (
            plan.is_manifest_lost
            or self.written
            or kept != before
            or (found.purges is None) != (plan.manifest.purges is None)
        ):
            manifest = plan.manifest._replace(
                mount_count=plan.manifest.next_mount_count,
                boot=directory.boot,
                volumes=tuple(listed),
            )
            directory.write_manifest(manifest)
            # What it says of a volume that is left out would refuse the next start.
            directory.clear_progress()
            left_out = len(before - kept)
            what = f", {counted(left_out, 'volume')} left out" if left_out else ""
            self._done(META, f"written for {counted(len(kept), 'volume')}{what}")

    def _listed(self, volume: Volume) -> ListedVolume:
        """Return the line of a volume for META.txt."""
        if volume.id in self._store.plan.rejected:
            return self._store.listed[volume.use]  # A start compares the index file.
        line = volume.listed(is_open=self._store.is_active(volume))
        if line.is_open:
            return line
        checksum = self._checksums.get(volume.seq)
        return line._replace(state="sealed", index_checksum=checksum)

    def _repair_purges(self) -> None:
        """Remove a PURGE.txt that cannot be used; META.txt no longer names it."""
        found = self._store.plan.purges
        if found.mismatch is None:
            return
        self._directory.remove(PURGE)
        what = "META.txt says that no purge was needed"
        if found.doubtful_seq:
            what = "all volumes that may have purged values were left out"
        self._done(PURGE, f"not used ({found.mismatch}); {what}")

    def _done(self, name: str, what: str, *, written: bool = True) -> None:
        self.written += written
        self.failed += not written
        self._report(Line(f"{name}: {what}", file=name, written=written, what=what))

    def _fail(self, name: str, why: str) -> None:
        self._done(name, why, written=False)

    @contextmanager
    def _excused(self, name: str) -> Iterator[None]:
        """Count a file that cannot be written, and continue with the others."""
        try:
            yield
        except OSError as error:
            self._directory.fs.unlink(f"{self._directory.root}/{name}{_TEMPORARY}")
            self._fail(name, f"cannot be written: {error.strerror or error}")


COMMAND: Final = offline_command(
    "repair",
    lambda arguments, report: repair(arguments.directory, OsFileSystem(), report),
)
