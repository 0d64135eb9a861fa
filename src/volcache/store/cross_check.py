"""
Compare the entries of an index file with the records of its volume.

Entries are in the order of the volume, but those of deletions have no offset. Where the
volume has no intact record, the entries tell which record should be there.

The native core compares the lines of the index file as they are. Where one differs, or a
record is not intact, the entries are decoded, and the code here finds out what is wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.store.format import (
    RECORD_OVERHEAD_BYTES,
    VOLUME_HEADER_BYTES,
)
from volcache.store.index_format import decode_entries, encode_key
from volcache.store.native import Comparison
from volcache.store.scan import WHOLE_VOLUME, Found, Gap, VolumeReader, scan_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.files import FileSystem
    from volcache.store.format import RecordHeader
    from volcache.store.index_file import IndexContents
    from volcache.store.index_format import Entry
    from volcache.store.native import Index
    from volcache.store.volume import Volume

_STEP_BYTES: Final = 8 * 2**20  # of matching records, reported at once


class Missing(NamedTuple):
    """An entry whose record is not intact."""

    key: bytes
    offset: int
    size: int
    tombstone: bool


class Mistake(NamedTuple):
    """An entry that is wrong although its checksum is right, or that is missing."""

    what: str


class Matching(NamedTuple):
    """Adjacent records that match their entries, and where the last one ends."""

    records: int
    end: int
    entries: Callable[[], list[Entry]]


def cross_check(
    walk: EntryWalk,
) -> Iterator[Matching | Found | Missing | Gap | Mistake]:
    """
    Yield what is in the indexed part of a volume, in order, and which entries are wrong.

    Args:
        walk: Through the entries, at the first one.
    """
    reader, at = walk.reader, VOLUME_HEADER_BYTES
    yield from walk.mistakes
    while True:
        while matching := walk.pass_matching(at):
            yield matching
            at = matching.end
        # Something else: a deletion or damage; only a scan can tell.
        events = scan_records(reader, at, WHOLE_VOLUME)
        found = next((event for event in events if isinstance(event, Found)), None)
        if found is None:
            break
        header = found.header
        yield from walk.pass_range(at, header.offset, header)
        yield from walk.pass_record(header)
        yield found
        at = header.offset + header.size
    yield from walk.pass_range(at, walk.end, None)
    yield from walk.pass_rest()


class EntryWalk:
    """
    A position in the entries of an index file.

    Attributes (read-only for others):
        mistakes: Entries that are not in the order of the volume.
        end: The volume is indexed up to here.
        reader: Of the volume, up to there.
    """

    def __init__(
        self,
        fs: FileSystem,
        volume: Volume,
        contents: IndexContents,
        index: Index | None = None,
    ) -> None:
        """
        Start at the first entry.

        Args:
            fs: Reads the volume.
            volume: That the entries belong to.
            contents: Of its index file; read to the end by this.
            index: Gets the positions of records that match their entries.
        """
        self._seq = volume.seq
        self._index = index
        self._next = 0
        self._decoded: list[Entry] | None = None
        self.mistakes: list[Mistake] = []
        lines = contents.read_lines()
        if lines is None:
            found = [entry for block in contents.read() for entry in block]
            self._decoded, misplaced = _in_order(found)
            self.mistakes = [_no_such_record(*entry) for entry in misplaced]
        self._count = contents.entries - len(self.mistakes)
        self.end = contents.volume_end
        self.reader = VolumeReader(fs, volume, self.end)
        self._lines = lines or b""
        self._comparison: Comparison | None = None
        if lines is not None:
            self._comparison = Comparison(
                fs, volume.fd, volume.id, self.reader.length, lines
            )
        self._compared = 0  # The comparison is at this entry.

    @property
    def _entries(self) -> list[Entry]:
        if self._decoded is None:
            self._decoded = decode_entries(self._lines)
        return self._decoded

    def pass_range(
        self, start: int, end: int, before: RecordHeader | None
    ) -> Iterator[Missing | Gap]:
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
            if offset > start:
                yield Gap(start, offset)
            yield Missing(key, offset, size, tombstone)
            self._next += 1
            start = offset + size
        if start < end:
            yield Gap(start, end)

    def pass_matching(self, start: int) -> Matching | None:
        """
        Let the core pass entries whose records pass the checks of a get, and deletions.

        Much cheaper than a scan, which does not know where a record ends.

        Args:
            start: Where the record of the next entry should be.
        """
        comparison = self._comparison
        if comparison is None or self._next == self._count:
            return None
        comparison.skip(self._next - self._compared)
        first = comparison.at
        salt, limit = next(self.reader.salts_from(start))
        limit = min(limit, start + _STEP_BYTES)
        passed = comparison.run(self._index, self._seq, salt, start, limit)
        self._next += passed.records
        self._compared = self._next
        if not passed.records:
            return None
        lines = slice(first, comparison.at)
        return Matching(
            passed.records, passed.end, lambda: decode_entries(self._lines[lines])
        )

    def pass_record(self, header: RecordHeader) -> Iterator[Mistake]:
        """Pass the entry of a record that was found; yield what is wrong with it."""
        while self._next < self._count:
            key, offset, size = self._entries[self._next]
            if size and offset > header.offset:
                break
            self._next += 1
            if header.tombstone:
                if not size and key == header.key:
                    return
            elif offset == header.offset:
                if (key, size) != (header.key, header.size):
                    yield Mistake(
                        f"the entry of {encode_key(key)} has offset {offset}, where"
                        f" {encode_key(header.key)} is"
                    )
                return
            yield _no_such_record(key, offset, size)
        yield Mistake(
            f"{encode_key(header.key)} at {header.offset} of the volume has no entry"
        )

    def pass_rest(self) -> Iterator[Mistake]:
        """Yield what is wrong with the entries after the last record."""
        while self._next < self._count:
            yield _no_such_record(*self._entries[self._next])
            self._next += 1


def _no_such_record(key: bytes, offset: int, size: int) -> Mistake:
    what = f"has offset {offset}" if size else "is a deletion"
    return Mistake(
        f"the entry of {encode_key(key)} {what}, but there is no such record"
    )


def _in_order(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """
    Return most of the entries, such that offsets grow, and the others.

    Otherwise one entry with a much too high offset would hide all that follow. The
    longest growing subsequence is found as in patience sorting.
    """
    placed = [(offset, at) for at, (_, offset, size) in enumerate(entries) if size]
    if all(one < other for (one, _), (other, _) in pairwise(placed)):
        return entries, []
    ends: list[tuple[int, int]] = []  # of the best sequence of each length
    before: dict[int, int] = {}  # the previous entry in the best sequence
    for offset, at in placed:
        length = bisect_left(ends, (offset,))
        before[at] = ends[length - 1][1] if length else -1
        ends[length : length + 1] = [(offset, at)]
    kept, at = set(), ends[-1][1]
    while at >= 0:
        kept.add(at)
        at = before[at]
    good = [entry for at, entry in enumerate(entries) if at in kept or not entry[2]]
    bad = [entry for at, entry in enumerate(entries) if at not in kept and entry[2]]
    return good, bad
