"""
One walk over a volume: its records, the entries of its index file, and how they differ.

`volcache check` and the scrub of a running store report the anomalies that it yields,
`volcache repair` writes the entries, `dump` and `export` list the records. It changes
nothing.

Entries are in the order of the volume, but those of deletions have no offset. Where the
volume has no intact record, the entries tell which record should be there: each damaged
record is named even if several are adjacent. What a killed process leaves is not damage:
it is reported as a note.

The native core compares the lines of the index file as they are. Where one differs, or a
record is not intact, the entries are decoded, and the code here finds out what is wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.store.directory import DATA, INDEX
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES
from volcache.store.index import Found, Gap, Run, Torn
from volcache.store.index_format import decode_entries, encode_key
from volcache.store.native import Records
from volcache.store.replay import is_whole, tail_of
from volcache.store.volume import NO_FILE, IndexContents
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from volcache.store.directory import StoreDirectory
    from volcache.store.files import FileSystem
    from volcache.store.format import RecordHeader
    from volcache.store.index_format import Entry
    from volcache.store.manifest import ListedVolume
    from volcache.store.native import Index
    from volcache.store.volume import Volume

# record: a stored record is lost. file: metadata about records is wrong, or a part of the
# disk cannot be read. torn: a record that was not acknowledged is cut off. note: something
# else that a kill leaves.
Kind = Literal["record", "file", "torn", "note"]
_STEP_BYTES: Final = 8 * 2**20  # of matching records, reported at once


class Anomaly(NamedTuple):
    """One deviation from the format, or a note."""

    kind: Kind
    file: str
    offset: int
    what: str


class Missing(NamedTuple):
    """An entry whose record is not intact."""

    key: bytes
    offset: int
    size: int
    tombstone: bool


# A `Run` stands for adjacent records that match their entries.
Event = Run | Found | Missing | Anomaly


@dataclass(slots=True)
class Counts:
    """What was checked."""

    volumes: int = 0
    records: int = 0  # intact ones, tombstones included
    keys: int = 0  # that can be read, expired and purged ones included
    bytes: int = 0


class VolumeCheck:
    """A walk over one volume and its index file."""

    def __init__(  # noqa: PLR0913 - The parts, by keyword.
        self,
        directory: StoreDirectory,
        volume: Volume,
        listed: ListedVolume,
        *,
        is_active: bool,
        is_oldest: bool = False,
        fs: FileSystem | None = None,
        index: Index | None = None,
        counts: Counts | None = None,
        each: bool = False,
    ) -> None:
        """
        Read the index file.

        Args:
            directory: Has the files.
            volume: Its records are read.
            listed: Its line in META.txt.
            is_active: Records may follow those that are indexed.
            is_oldest: Of its ring. The index file of a volume is removed before META.txt
                says that the volume is used again.
            fs: Reads the volume; None: that of the directory.
            index: Gets the records that can be read.
            counts: Is added to.
            each: Yield each record by itself.
        """
        self._fs = fs or directory.fs
        self._volume = volume
        self._listed = listed
        self._is_active, self._is_oldest = is_active, is_oldest
        self._index = index
        self._counts = counts or Counts()
        self._passed = VOLUME_HEADER_BYTES  # This much of the volume is counted.
        # Another thread reads while this one reads the index file.
        self._step = 0 if each else _STEP_BYTES
        self._records = Records(
            self._fs, volume, VOLUME_HEADER_BYTES, step=self._step, index=index
        )
        data = directory.read_index_file(volume.id)
        contents = IndexContents(data, volume.index_name, volume.segments)
        self._contents = contents
        lines, is_in_order = contents.read_lines()
        self._lines = lines
        self._misplaced: list[Entry] = []
        if not is_in_order:
            self._entries, self._misplaced = _in_order(decode_entries(lines))
            lines = b""
        self._next = 0  # of the entries
        self._records.expect(lines, contents.found.volume_end)

    @property
    def _count(self) -> int:
        return self._contents.found.entries - len(self._misplaced)

    @cached_property
    def _entries(self) -> list[Entry]:
        return decode_entries(self._lines)

    def run(self, *, is_same_boot: bool = True) -> Iterator[Event]:
        """
        Yield what the volume has, then what is wrong with its index file.

        Args:
            is_same_boot: No power loss can have taken what was not synced.
        """
        yield from self.indexed()
        behind = 0
        is_complete = is_whole(self._contents.found, self._listed)
        if not is_complete and self._volume.fd != NO_FILE:
            behind = yield from self._tail(is_same_boot=is_same_boot)
        yield from self._index_file(behind)

    def indexed(self) -> Iterator[Event]:
        """Yield what is in the indexed part of the volume, and which entries are wrong."""
        for entry in self._misplaced:
            yield self._no_record(*entry)
        at = VOLUME_HEADER_BYTES
        for event in self._records:
            if isinstance(event, Run):
                self._next += event.records
                yield self._run(event)
            elif isinstance(event, Found):
                yield from self._pass_range(at, event.header.offset, event.header)
                yield from self._pass_record(event.header)
                yield from self._record(event)
            else:
                continue  # The entries say what should be there.
            at = self._records.at
        yield from self._pass_range(at, self._contents.found.volume_end, None)
        while self._next < self._count:
            yield self._no_record(*self._pass_entry())
        yield from self._end(self._records)

    def _tail(self, *, is_same_boot: bool) -> Generator[Event, None, int]:
        """Yield what follows the last entry, as a start finds it; return how much."""
        behind = 0
        tail = tail_of(
            self._listed,
            self._contents,
            is_active=self._is_active,
            is_same_boot=is_same_boot,
        )
        records = Records(
            self._fs, self._volume, *tail, step=self._step, index=self._index
        )
        for event in records:
            if isinstance(event, Run):
                behind += event.records
                yield self._run(event)
            elif isinstance(event, Found):
                behind += 1
                yield from self._record(event)
            elif isinstance(event, Gap):
                yield from self._gap(event.start, event.end)
            elif isinstance(event, Torn):
                yield self._in_data("torn", event.start, "a record was being written")
        yield from self._end(records)
        return behind

    def _index_file(self, behind: int) -> Iterator[Anomaly]:
        """Yield what is wrong with the index file; `behind` records have no entry."""
        contents, found = self._contents, self._contents.found
        has_more = contents.length > found.file_end
        without = (
            f"{counted(behind, 'record')} {'has' if behind == 1 else 'have'} no entry"
        )
        kind: Kind = "file"
        if not contents.length:
            may_lack = self._is_oldest or (self._is_active and not behind)
            kind = "note" if may_lack else "file"
            what = "is missing, as after a kill" if may_lack else "is missing"
        elif not contents.is_ours:
            what = "its first block belongs to another volume, or its checksum is wrong"
        elif found.is_of_clone:
            what = "a block follows that was written for a clone of the mount point"
        elif not contents.is_whole or (found.is_sealed and has_more):
            what = "a block with a wrong checksum follows"
        elif not found.is_sealed and not self._is_active:
            what = f"is not sealed; {without}"
        elif behind or has_more:
            kind, what = "note", f"{without} yet, as after a kill"
        else:
            return
        yield self._in_index(what, found.file_end, kind)

    # --- The entries ---------------------------------------------------------------

    def _pass_entry(self) -> Entry:
        self._records.skip_line()
        self._next += 1
        return self._entries[self._next - 1]

    def _pass_range(
        self, start: int, end: int, before: RecordHeader | None
    ) -> Iterator[Event]:
        """
        Pass the entries of records from `start` to `end`, where no record was found.

        Args:
            start: Start of the range.
            end: End of the range.
            before: The record that was found at `end`, if any.
        """
        while start < end and self._next < self._count:
            key, offset, size = self._entries[self._next]
            tombstone = not size
            if tombstone:
                # A tombstone comes after the records before it. It may also be the
                # record at `end`, after bytes that were lost before it was written.
                if before is not None and before.tombstone and before.key == key:
                    break
                offset, size = start, RECORD_OVERHEAD_BYTES + len(key)
            if offset < start or offset + size > end:
                break
            yield from self._gap(start, offset)
            yield from self._lost(
                Missing(key, offset, size, tombstone), "is not intact"
            )
            self._pass_entry()
            start = offset + size
        yield from self._gap(start, end)

    def _pass_record(self, header: RecordHeader) -> Iterator[Anomaly]:
        """Pass the entry of a record that was found; yield what is wrong with it."""
        while self._next < self._count:
            key, offset, size = self._entries[self._next]
            if size and offset > header.offset:
                break
            self._pass_entry()
            if header.tombstone:
                if not size and key == header.key:
                    return
            elif offset == header.offset:
                if (key, size) != (header.key, header.size):
                    yield self._in_index(
                        f"the entry of {encode_key(key)} has offset {offset}, where"
                        f" {encode_key(header.key)} is"
                    )
                return
            yield self._no_record(key, offset, size)
        what = f"{encode_key(header.key)} at {header.offset} of the volume has no entry"
        yield self._in_index(what)

    def _no_record(self, key: bytes, offset: int, size: int) -> Anomaly:
        has = f"has offset {offset}" if size else "is a deletion"
        what = f"the entry of {encode_key(key)} {has}, but there is no such record"
        return self._in_index(what)

    # --- The records ---------------------------------------------------------------

    def _run(self, run: Run) -> Run:
        """Count records that pass the checks of a get, and deletions."""
        self._counts.records += run.records
        self._count_bytes(run.end)
        return run

    def _record(self, found: Found) -> Iterator[Event]:
        header = found.header
        self._count_bytes(header.offset)
        if not found.intact:
            yield from self._lost(found, "is damaged")
            return
        self._counts.records += 1
        if header.tombstone:
            self._forget(header.key)
        elif self._index is not None:
            self._index.set(header.key, self._volume.seq, header.offset, header.size)
        yield found

    def _lost(self, event: Found | Missing, why: str) -> Iterator[Event]:
        record = event if isinstance(event, Missing) else event.header
        self._forget(record.key)
        yield event
        what = f"{encode_key(record.key)}, {record.size} bytes: {why}"
        yield self._in_data("record", record.offset, what)

    def _forget(self, key: bytes) -> None:
        """Let a key have no value, whatever is in older volumes."""
        if self._index is not None:
            place = self._volume.seq, VOLUME_HEADER_BYTES, 1
            self._index.set(key, *place, tombstone=True)

    def _gap(self, start: int, end: int) -> Iterator[Anomaly]:
        if start < end:
            what = f"{end - start} bytes up to {end} are not a record"
            yield self._in_data("record", start, what)

    def _end(self, records: Records) -> Iterator[Anomaly]:
        """Count what was read, and yield what could not be."""
        self._count_bytes(records.length)
        sectors, first = records.unreadable
        if sectors:
            what = f"{counted(sectors, 'sector')} cannot be read"
            yield self._in_data("file", first, what)

    def _count_bytes(self, end: int) -> None:
        self._counts.bytes += max(0, end - self._passed)
        self._passed = max(end, self._passed)

    def _in_data(self, kind: Kind, offset: int, what: str) -> Anomaly:
        return Anomaly(kind, f"{DATA}/{self._volume.id}", offset, what)

    def _in_index(self, what: str, offset: int = 0, kind: Kind = "file") -> Anomaly:
        return Anomaly(kind, f"{INDEX}/{self._volume.id}", offset, what)


def _in_order(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """
    Return most of the entries, such that offsets grow, and the others.

    Otherwise one entry with a much too high offset would hide all that follow. The
    longest growing subsequence is found as in patience sorting.
    """
    ends: list[tuple[int, int]] = []  # of the best sequence of each length
    before: dict[int, int] = {}  # the previous entry in the best sequence
    for at, (_, offset, size) in enumerate(entries):
        if size:
            length = bisect_left(ends, (offset,))
            before[at] = ends[length - 1][1] if length else -1
            ends[length : length + 1] = [(offset, at)]
    at = ends[-1][1] if ends else -1
    while at >= 0:
        at = before.pop(at)
    # What is left of these is in no order.
    good = [entry for at, entry in enumerate(entries) if at not in before]
    return good, [entries[at] for at in before]
