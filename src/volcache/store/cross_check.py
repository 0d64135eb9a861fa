"""
Compare the entries of an index file with the records of its volume.

Entries are in the order of the volume, but those of deletions have no offset. Where the
volume has no intact record, the entries tell which record should be there.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import DamagedRecordError
from volcache.store.format import (
    RECORD_OVERHEAD_BYTES,
    VOLUME_HEADER_BYTES,
    decode_record,
)
from volcache.store.index_format import encode_key
from volcache.store.scan import WHOLE_VOLUME, Found, Gap, scan_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.format import RecordHeader
    from volcache.store.index_file import IndexContents
    from volcache.store.index_format import Entry
    from volcache.store.scan import VolumeReader


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

    entries: list[Entry]
    end: int


def cross_check(
    walk: EntryWalk, reader: VolumeReader
) -> Iterator[Matching | Found | Missing | Gap | Mistake]:
    """
    Yield what is in the indexed part of a volume, in order, and which entries are wrong.

    Args:
        walk: Through the entries, at the first one.
        reader: Of the volume, up to `walk.end`.
    """
    at = VOLUME_HEADER_BYTES
    yield from walk.mistakes
    while True:
        while matching := walk.pass_matching(reader, at):
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
    """A position in the entries of an index file."""

    def __init__(self, contents: IndexContents) -> None:
        """Start at the first entry; `contents` is read to its end."""
        entries = [entry for block in contents.read() for entry in block]
        self._entries, misplaced = _in_order(entries)
        self.mistakes = [_no_such_record(*entry) for entry in misplaced]
        self.end = contents.volume_end  # The volume is indexed up to here.
        self._next = 0

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
        while start < end and self._next < len(self._entries):
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

    def pass_matching(self, reader: VolumeReader, start: int) -> Matching | None:
        """
        Pass entries whose records pass the checks of a get.

        Much cheaper than a scan, which does not know where a record ends.

        Args:
            reader: Of the volume.
            start: Where the record of the next entry should be.
        """
        first, at = self._next, start
        stop = start + _STEP_BYTES
        for key, offset, size in islice(self._entries, first, None):
            if offset != at or at >= stop:
                break
            try:
                data = reader.read(at, size)
                record = decode_record(data, reader.identity_at(at), at, key)
            except DamagedRecordError:
                break
            if record is None or record.size != size:
                break
            at += size
            self._next += 1
        return Matching(self._entries[first : self._next], at) if at > start else None

    def pass_record(self, header: RecordHeader) -> Iterator[Mistake]:
        """Pass the entry of a record that was found; yield what is wrong with it."""
        while self._next < len(self._entries):
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
        for entry in self._entries[self._next :]:
            yield _no_such_record(*entry)
        self._next = len(self._entries)


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
