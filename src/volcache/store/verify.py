"""
Integrity check: compare everything in a mount point with docs/FORMAT.md.

Changes nothing. Records are found by the same scan as at startup. The entries of the index
file are compared with them, so that each damaged record is named even if several are
adjacent. What a killed process leaves is not damage: it is reported as a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.store.cross_check import EntryWalk, Matching, Missing, cross_check
from volcache.store.directory import DATA, INDEX, META
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.index_format import encode_key
from volcache.store.recovery import is_whole, open_contents, tail_window
from volcache.store.scan import Found, Gap, Torn, VolumeReader, scan_records
from volcache.store.volume import NO_FILE
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.index import Index
    from volcache.store.index_file import IndexContents
    from volcache.store.manifest import ListedVolume
    from volcache.store.offline import OfflineStore
    from volcache.store.volume import Volume

# record: a stored record is lost. file: metadata about records is wrong. torn: a record
# that was not acknowledged is cut off. note: something else that a kill leaves.
Kind = Literal["record", "file", "torn", "note"]
_STEP_BYTES: Final = 8 * 2**20  # between two reports of progress


class Finding(NamedTuple):
    """One deviation from the format, or a note."""

    kind: Kind
    file: str
    offset: int
    what: str


@dataclass(slots=True)
class Counts:
    """What was checked."""

    volumes: int = 0
    records: int = 0  # intact ones, tombstones included
    keys: int = 0  # that can be read, expired and purged ones included
    bytes: int = 0


def verify(
    store: OfflineStore,
    counts: Counts,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Finding]:
    """
    Check a mount point and yield what is wrong.

    Args:
        store: To be checked.
        counts: Is filled; complete when the iterator has ended.
        advance: Called with the number of bytes read since the last call.
    """
    inventory = store.inventory
    for problem in store.problems:
        yield Finding("file", *problem)
    yield from _check_manifest(store)
    for volume_id in inventory.stale:
        what = "the header is that of an earlier use; the present one was not written"
        yield Finding("note", f"{DATA}/{volume_id}", 0, what)
    for file, expected, found in inventory.rejected:
        yield Finding("file", file, 0, f"is {found}, expected was {expected}")
    for volume_id in inventory.foreign:
        other = inventory.headers[volume_id].store_id
        what = f"belongs to another store, {other:016x}"
        yield Finding("file", f"{DATA}/{volume_id}", 12, what)
    if inventory.refusal:
        what = f"a server refuses to start: {inventory.refusal}"
        yield Finding("file", META, 0, what)
    keys = store.make_index()  # Of records that can be read.
    for volume in store.volumes:
        keys.add_volume(volume.seq)
        yield from _VolumeCheck(store, volume, counts, keys, advance).run()
    counts.keys = keys.count


def _check_manifest(store: OfflineStore) -> Iterator[Finding]:
    if store.inventory.is_manifest_lost:
        yield Finding("file", META, 0, "is missing or its checksum is wrong")


class _VolumeCheck:
    """One volume, compared with its index file."""

    def __init__(
        self,
        store: OfflineStore,
        volume: Volume,
        counts: Counts,
        keys: Index,
        advance: Callable[[int], object],
    ) -> None:
        self._store = store
        self._fs = store.directory.fs
        self._volume = volume
        self._is_active = store.is_active(volume)
        self._listed: ListedVolume = next(
            listed
            for listed in store.inventory.manifest.volumes
            if listed.use == volume.use
        )
        self._counts = counts
        self._keys = keys
        self._advance = advance
        self._data_file = f"{DATA}/{volume.id}"
        self._index_file = f"{INDEX}/{volume.id}"
        self._contents = open_contents(store.directory, volume)
        self._walk = EntryWalk(self._fs, volume, self._contents, keys)
        self._without_entry = 0
        self._reported = VOLUME_HEADER_BYTES

    def run(self) -> Iterator[Finding]:
        """Yield what is wrong with the volume, then with its index file."""
        volume, contents = self._volume, self._contents
        self._counts.volumes += volume.fd != NO_FILE
        if volume.id in self._store.inventory.rejected_ids:
            return  # None of its records belongs here; reported already.
        yield from self._indexed()
        if not is_whole(contents, self._listed) and volume.fd != NO_FILE:
            yield from self._tail()
        yield from self._file(contents)

    def _data(self, kind: Kind, offset: int, what: str) -> Finding:
        return Finding(kind, self._data_file, offset, what)

    def _index(self, kind: Kind, offset: int, what: str) -> Finding:
        return Finding(kind, self._index_file, offset, what)

    def _progress(self, offset: int, *, force: bool = False) -> None:
        step = offset - self._reported
        if step >= _STEP_BYTES or (force and step > 0):
            self._counts.bytes += step
            self._advance(step)
            self._reported = offset

    # --- The part that is indexed --------------------------------------------------

    def _indexed(self) -> Iterator[Finding]:
        """Check the records up to where the volume is indexed."""
        reader = self._walk.reader
        for event in cross_check(self._walk):
            if isinstance(event, Matching):
                self._counts.records += event.records
                self._progress(event.end)
            elif isinstance(event, Found):
                yield from self._record(event)
            elif isinstance(event, Missing):
                self._forget(event.key)
                yield self._lost(event.offset, event.size, event.key, "is not intact")
            elif isinstance(event, Gap):
                yield self._gap(event.start, event.end)
            else:
                yield self._index("file", 0, event.what)
        self._progress(reader.length, force=True)
        yield from self._unreadable(reader)

    def _record(self, found: Found) -> Iterator[Finding]:
        header = found.header
        if not found.intact:
            self._forget(header.key)
            yield self._lost(
                header.offset, header.size, header.key, "value checksum mismatch"
            )
            return
        self._counts.records += 1
        if header.tombstone:
            self._forget(header.key)
        else:
            self._keys.set(header.key, self._volume.seq, header.offset, header.size)

    def _forget(self, key: bytes) -> None:
        """Let a key have no value, whatever is in older volumes."""
        self._keys.set_tombstone(key, self._volume.seq, VOLUME_HEADER_BYTES, 1)

    def _lost(self, offset: int, size: int, key: bytes, why: str) -> Finding:
        what = f"{encode_key(key)}, {size} bytes: {why}"
        return self._data("record", offset, what)

    def _gap(self, start: int, end: int) -> Finding:
        what = f"{end - start} bytes up to {end} are not a record"
        return self._data("record", start, what)

    def _unreadable(self, reader: VolumeReader) -> Iterator[Finding]:
        if reader.unreadable:
            what = f"{counted(len(reader.unreadable), 'sector')} cannot be read"
            yield self._data("file", 0, what)

    # --- The part after it ---------------------------------------------------------

    def _tail(self) -> Iterator[Finding]:
        """Check what follows the last entry, as a start does."""
        reader = VolumeReader(self._fs, self._volume)
        window = tail_window(self._contents, is_active=self._is_active)
        for event in scan_records(reader, self._contents.volume_end, window):
            if isinstance(event, Found):
                self._without_entry += 1
                yield from self._record(event)
                self._progress(event.header.offset)
            elif isinstance(event, Gap):
                yield self._gap(event.start, event.end)
            elif isinstance(event, Torn):
                yield self._data("torn", event.start, "a record was being written")
        self._progress(reader.length, force=True)
        yield from self._unreadable(reader)

    # --- The index file itself -----------------------------------------------------

    def _file(self, contents: IndexContents) -> Iterator[Finding]:
        if any(problem.file == self._index_file for problem in self._store.problems):
            return  # It is not a file; reported already.
        if not contents.length:
            lost = self._without_entry or not self._is_active
            yield self._index("file" if lost else "note", 0, "is missing")
        elif not contents.is_ours:
            what = "its first block belongs to another volume, or its checksum is wrong"
            yield self._index("file", 0, what)
        elif not contents.is_whole or (
            contents.sealed and contents.length > contents.file_end
        ):
            what = "a block with a wrong checksum follows"
            yield self._index("file", contents.file_end, what)
        elif not contents.sealed and not self._is_active:
            what = f"is not sealed; {_have_no_entry(self._without_entry)}"
            yield self._index("file", contents.file_end, what)
        elif self._without_entry or contents.length > contents.file_end:
            what = f"{_have_no_entry(self._without_entry)} yet, as after a kill"
            yield self._index("note", contents.file_end, what)


def _have_no_entry(records: int) -> str:
    return f"{counted(records, 'record')} {'has' if records == 1 else 'have'} no entry"
