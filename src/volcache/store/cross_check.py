"""
The lines of an index file, held one after the other against the records of its volume.

Lines stand in the order of the volume, but those of deletions name no place. Where the
volume shows no record, the lines tell which ones should be there.
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
    from volcache.store.scan import VolumeReader


_STEP_BYTES: Final = 8 * 2**20  # of whole records, told at once
Entry = tuple[bytes, int, int]  # key, offset, size; the last two 0 for a deletion


class Line(NamedTuple):
    """Where a record should be that cannot be found."""

    key: bytes
    offset: int
    size: int
    tombstone: bool


class Mistake(NamedTuple):
    """A line that is not right although its checksum is, or one that is not there."""

    what: str


class Whole(NamedTuple):
    """Records side by side that are what their lines say, and where the last one ends."""

    lines: list[Entry]
    end: int


def cross_check(
    walk: CrossCheck, reader: VolumeReader
) -> Iterator[Whole | Found | Line | Gap | Mistake]:
    """
    Yield what is in the indexed part of a volume, in order, and what is wrong with lines.

    Args:
        walk: Through the index file, at its beginning.
        reader: Of the volume, up to `walk.end`.
    """
    at = VOLUME_HEADER_BYTES
    yield from walk.mistakes
    while True:
        while whole := walk.pass_whole(reader, at):
            yield whole
            at = whole.end
        # Something else: a deletion or damage, which only a scan can tell.
        events = scan_records(reader, at, WHOLE_VOLUME)
        found = next((event for event in events if isinstance(event, Found)), None)
        if found is None:
            break
        header = found.header
        yield from walk.within(at, header.offset, header)
        yield from walk.match(header)
        yield found
        at = header.offset + header.size
    yield from walk.within(at, walk.end, None)
    yield from walk.rest()


class CrossCheck:
    """A place among the lines of an index file."""

    def __init__(self, contents: IndexContents) -> None:
        """Stand before the first line; `contents` has been read through afterwards."""
        lines = [entry for block in contents.read() for entry in block]
        self._lines, strange = _in_order(lines)
        self.mistakes = [_strange(*line) for line in strange]
        self.end = contents.volume_end  # How far the volume is indexed.
        self._next = 0

    def within(
        self, start: int, end: int, before: RecordHeader | None
    ) -> Iterator[Line | Gap]:
        """
        Yield the records that the lines place from `start` to `end`, and pass them.

        Args:
            start: Where bytes begin that hold no record.
            end: Where they end.
            before: The record that was found at `end`, if any.
        """
        while start < end and self._next < len(self._lines):
            key, offset, size = self._lines[self._next]
            tombstone = not size
            if tombstone:
                # A deletion lies behind what comes before it. It may also be the
                # record at `end`, behind bytes that were lost before it was written.
                if before is not None and before.tombstone and before.key == key:
                    break
                offset, size = start, RECORD_OVERHEAD_BYTES + len(key)
            if offset < start or offset + size > end:
                break
            if offset > start:
                yield Gap(start, offset)
            yield Line(key, offset, size, tombstone)
            self._next += 1
            start = offset + size
        if start < end:
            yield Gap(start, end)

    def pass_whole(self, reader: VolumeReader, start: int) -> Whole | None:
        """
        Pass the lines of records that check out as a get would check them.

        Far cheaper than a scan, which does not know where a record ends.

        Args:
            reader: Of the volume.
            start: Where the record of the next line should be.
        """
        first, at = self._next, start
        stop = start + _STEP_BYTES
        for key, offset, size in islice(self._lines, first, None):
            if offset != at or at >= stop:
                break
            try:
                decode_record(reader.read(at, size), reader.name, at, size, key)
            except DamagedRecordError:
                break
            at += size
            self._next += 1
        return Whole(self._lines[first : self._next], at) if at > start else None

    def match(self, header: RecordHeader) -> Iterator[Mistake]:
        """Pass the line of a record that was found; yield what is wrong with it."""
        while self._next < len(self._lines):
            key, offset, size = self._lines[self._next]
            if size and offset > header.offset:
                break
            self._next += 1
            if header.tombstone:
                if not size and key == header.key:
                    return
            elif offset == header.offset:
                if (key, size) != (header.key, header.size):
                    yield Mistake(
                        f"the line of {encode_key(key)} names offset {offset}, where"
                        f" {encode_key(header.key)} is"
                    )
                return
            yield _strange(key, offset, size)
        yield Mistake(
            f"{encode_key(header.key)} at {header.offset} of the volume has no line"
        )

    def rest(self) -> Iterator[Mistake]:
        """Yield what is wrong with the lines behind the last record."""
        for line in self._lines[self._next :]:
            yield _strange(*line)
        self._next = len(self._lines)


def _strange(key: bytes, offset: int, size: int) -> Mistake:
    where = f"names offset {offset}" if size else "says that it was deleted"
    return Mistake(f"the line of {encode_key(key)} {where}, where no such record is")


def _in_order(lines: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """
    Return most of the lines, such that offsets grow, and the others.

    One line that names a place far ahead would else stand before all that follow. The
    longest growing sequence is found as in sorting by patience.
    """
    placed = [(offset, at) for at, (_, offset, size) in enumerate(lines) if size]
    if all(one < other for (one, _), (other, _) in pairwise(placed)):
        return lines, []
    ends: list[tuple[int, int]] = []  # of the best sequence of each length
    before: dict[int, int] = {}  # the place of the line before, in the best one
    for offset, at in placed:
        length = bisect_left(ends, (offset,))
        before[at] = ends[length - 1][1] if length else -1
        ends[length : length + 1] = [(offset, at)]
    kept, at = set(), ends[-1][1]
    while at >= 0:
        kept.add(at)
        at = before[at]
    good = [line for at, line in enumerate(lines) if at in kept or not line[2]]
    return good, [line for at, line in enumerate(lines) if at not in kept and line[2]]
