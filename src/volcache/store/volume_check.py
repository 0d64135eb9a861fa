"""
Integrity check of one volume: its records, and its index file.

The entries of the index file are compared with the records, so that each damaged record is
named even if several are adjacent. What a killed process leaves is not damage: it is
reported as a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.store.cross_check import EntryWalk, Matching, Missing, cross_check
from volcache.store.directory import DATA, INDEX
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.index_format import encode_key
from volcache.store.replay import is_whole, tail_reader, tail_window
from volcache.store.scan import Found, Gap, Torn, scan_records
from volcache.store.volume import NO_FILE
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.files import FileSystem
    from volcache.store.index_file import IndexContents
    from volcache.store.manifest import ListedVolume
    from volcache.store.native import Index
    from volcache.store.scan import VolumeReader
    from volcache.store.volume import Volume

# record: a stored record is lost. file: metadata about records is wrong, or a part of the
# disk cannot be read. torn: a record that was not acknowledged is cut off. note: something
# else that a kill leaves.
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


class VolumeCheck:
    """One volume, compared with its index file."""

    def __init__(  # noqa: PLR0913 - The parts, by keyword.
        self,
        fs: FileSystem,
        volume: Volume,
        contents: IndexContents,
        *,
        listed: ListedVolume,
        is_active: bool,
        counts: Counts,
        keys: Index | None = None,
        advance: Callable[[int], object] = lambda _: None,
    ) -> None:
        """
        Read the index file.

        Args:
            fs: Reads the volume.
            volume: To be checked.
            contents: Of its index file.
            listed: Its line in META.txt.
            is_active: Records may follow those that are indexed.
            counts: Is added to.
            keys: Gets the records that can be read.
            advance: Called with the number of bytes read since the last call.
        """
        self._fs = fs
        self._volume = volume
        self._is_active = is_active
        self._listed = listed
        self._counts = counts
        self._keys = keys
        self._advance = advance
        self._data_file = f"{DATA}/{volume.id}"
        self._index_file = f"{INDEX}/{volume.id}"
        self._contents = contents
        self._walk = EntryWalk(fs, volume, contents, keys)
        self._without_entry = 0
        self._reported = VOLUME_HEADER_BYTES

    def run(self) -> Iterator[Finding]:
        """Yield what is wrong with the volume, then with its index file."""
        volume, contents = self._volume, self._contents
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
            yield self._lost(header.offset, header.size, header.key, "is damaged")
            return
        self._counts.records += 1
        if header.tombstone:
            self._forget(header.key)
        elif self._keys is not None:
            self._keys.set(header.key, self._volume.seq, header.offset, header.size)

    def _forget(self, key: bytes) -> None:
        """Let a key have no value, whatever is in older volumes."""
        if self._keys is not None:
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
            yield self._data("file", reader.unreadable[0][0], what)

    # --- The part after it ---------------------------------------------------------

    def _tail(self) -> Iterator[Finding]:
        """Check what follows the last entry, as a start does."""
        reader = tail_reader(self._fs, self._volume, self._listed)
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
