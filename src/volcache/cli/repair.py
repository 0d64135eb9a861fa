"""
`volcache repair`: make index files and META.txt anew from the volumes.

Good lines of an index file stay, for they know keys of records whose headers are damaged;
what is behind them is found as a start finds it. Lines are good if a check has nothing to
say of them. Volumes are only read.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from volcache.cli.progress import above, progress
from volcache.hot.versions import first_damage
from volcache.store.cross_check import (
    EntryWalk,
    Matching,
    Missing,
    Mistake,
    cross_check,
)
from volcache.store.directory import (
    DATA,
    HOT,
    INDEX,
    META,
    StoreDirectory,
    read_whole,
    unusable,
)
from volcache.store.files import replace_file
from volcache.store.index import Index
from volcache.store.index_format import encode_block, encode_index_header
from volcache.store.offline import IS_DIRECTORY, OfflineStore
from volcache.store.recovery import Replay
from volcache.store.scan import Gap, VolumeReader
from volcache.store.stats import RecoveryStats
from volcache.store.volume import NO_FILE
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tqdm import tqdm

    from volcache.store.files import FileSystem
    from volcache.store.index_file import IndexContents
    from volcache.store.volume import Volume

_LEFT_OVER: Final = ".new"


def repair(directory: str, fs: FileSystem, say: Callable[[str], None]) -> bool:
    """
    Complete or replace what is wrong with index files, META.txt and HOT.txt.

    Each file is replaced in one step, so that a repair that is cut short leaves nothing
    worse, and can be begun again.

    Args:
        directory: That nobody serves.
        fs: The disk.
        say: Takes one line for each file that was written or cannot be, and a last one.

    Returns:
        Whether every file could be written.

    Raises:
        StoreError: The directory cannot be written, is in use, or no store's.
    """
    # First without making anything: an empty directory is not to become a store.
    StoreDirectory.inspect(fs, directory).close()
    mount = StoreDirectory.open(fs, directory)
    try:
        store = OfflineStore(mount)
        try:
            with progress(store.length, "repair") as bar:
                work = _Repair(store, bar, above(bar, say))
                work.run()
        finally:
            store.close()
    except OSError as error:
        raise unusable(directory, error) from error
    failed = f", {work.failed} not" if work.failed else ""
    say(
        f"{directory}: {counted(len(store.volumes), 'volume')},"
        f" {counted(work.written, 'file')} written{failed}"
    )
    return not work.failed


class _Repair:
    """One repair of a mount point."""

    def __init__(
        self, store: OfflineStore, bar: tqdm[NoReturn], say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._bar = bar
        self._mount = store.directory
        self._say = say
        self._replay = Replay(store.directory, Index(), RecoveryStats())
        self.written = 0
        self.failed = 0

    def run(self) -> None:
        """Repair the files, one after the other."""
        mount, store = self._mount, self._store
        for name in mount.fs.names(mount.index):
            if name.endswith(_LEFT_OVER):
                with self._excused(f"{INDEX}/{name}"):
                    mount.fs.unlink(f"{mount.index}/{name}")
        folders = {f.file for f in store.problems if f.what == IS_DIRECTORY}
        for name in sorted(folders):
            self._fail(name, "is a directory; move it away and repair again")
        present = mount.volume_ids()
        for volume in store.volumes:
            name = f"{INDEX}/{volume.id}"
            if volume.fd == NO_FILE and volume.id in present:
                # Its last records may have no line yet: nobody must take it for whole.
                self._fail(
                    name, f"left as it is, for {DATA}/{volume.id} cannot be opened"
                )
            elif name not in folders:
                with self._excused(name):
                    self._repair_index(volume)
        self._repair_root()

    def _repair_root(self) -> None:
        """See to META.txt and HOT.txt."""
        mount, store = self._mount, self._store
        active = store.volumes[-1]
        if (
            store.inventory.is_manifest_lost
            or store.inventory.manifest.active_seq != active.seq
        ):
            manifest = store.inventory.manifest._replace(
                active=active.id, generation=active.generation
            )
            mount.write_manifest(manifest)
            self._note(f"{META}: written from the headers of the volumes")
        if first_damage(
            read_whole(mount, mount.hot), store.inventory.manifest.store_id
        ):
            mount.fs.unlink(mount.hot)
            mount.fs.sync_directory(mount.root)
            self._note(f"{HOT}: removed, copies in memcached are not believed any more")

    def _note(self, line: str) -> None:
        self.written += 1
        self._say(line)

    def _fail(self, name: str, why: str) -> None:
        self.failed += 1
        self._say(f"{name}: {why}")

    @contextmanager
    def _excused(self, name: str) -> Iterator[None]:
        """Let a file that cannot be written not keep us from the others."""
        try:
            yield
        except OSError as error:
            self._fail(name, f"cannot be written: {error.strerror or error}")

    def _repair_index(self, volume: Volume) -> None:
        """Write an index file if it lacks something, or says something wrong."""
        path = self._mount.index_path(volume.id)
        is_active = volume is self._store.volumes[-1]
        before = read_whole(self._mount, path)
        contents = self._replay.replay(volume, is_active=is_active)
        entries, kept = list(volume.pending), contents.file_end
        lines, mistakes = self._compare(volume, contents)
        if mistakes:
            entries, kept = lines + entries, 0
        data = before[:kept] or encode_index_header(volume.index_name)
        sealed = volume.is_sealed or not is_active
        if entries or mistakes or sealed > volume.is_sealed:
            data += encode_block(entries, volume.end, sealed=sealed)
        if data == before:
            return
        try:
            replace_file(self._mount.fs, path, data)
        except OSError:
            self._mount.fs.unlink(path + _LEFT_OVER)
            raise
        were = "was" if mistakes == 1 else "were"
        wrong = f", {counted(mistakes, 'line')} {were} wrong or missing"
        self._note(
            f"{INDEX}/{volume.id}: written, {counted(kept, 'byte')} of it as before,"
            f" {counted(len(entries), 'record')} found in the volume"
            f"{wrong if mistakes else ''}"
        )

    def _compare(
        self, volume: Volume, contents: IndexContents
    ) -> tuple[list[tuple[bytes, int, int]], int]:
        """Return the lines there should be, and how many are wrong or not there."""
        walk = EntryWalk(contents)
        reader = VolumeReader(self._mount.fs, volume, walk.end)
        lines: list[tuple[bytes, int, int]] = []
        mistakes = seen = 0
        for found in cross_check(walk, reader):
            if isinstance(found, Mistake):
                mistakes += 1
            elif isinstance(found, Matching):
                lines += found.entries
                self._bar.update(found.end - seen)
                seen = found.end
            elif not isinstance(found, Gap):
                # One that is damaged still has its line: its key must stay a miss.
                record = found if isinstance(found, Missing) else found.header
                place = (0, 0) if record.tombstone else (record.offset, record.size)
                lines.append((record.key, *place))
        self._bar.update(max(0, reader.file_length - seen))
        return lines, mistakes
