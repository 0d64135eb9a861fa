"""
The lines of an index file, held one after the other against the records of its volume.

Lines stand in the order of the volume, but those of deletions name no place. Where the
volume shows no record, the lines tell which ones should be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from volcache.store.format import RECORD_OVERHEAD_BYTES
from volcache.store.lines import encode_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.format import RecordHeader
    from volcache.store.index_file import IndexContents


class Line(NamedTuple):
    """Where a record should be that cannot be found."""

    key: bytes
    offset: int
    size: int


class IndexWalk:
    """A place among the lines of an index file."""

    def __init__(self, contents: IndexContents) -> None:
        """Stand before the first line; `contents` has been read through afterwards."""
        self._lines = [entry for block in contents.read() for entry in block]
        self._next = 0

    def within(
        self, start: int, end: int, before: RecordHeader | None
    ) -> Iterator[Line]:
        """
        Yield the records that the lines place from `start` to `end`, and pass them.

        Args:
            start: Where bytes begin that hold no record.
            end: Where they end.
            before: The record that was found at `end`, if any.
        """
        while self._next < len(self._lines):
            key, offset, size = self._lines[self._next]
            if not size:
                # A deletion lies behind what comes before it. It may also be the
                # record at `end`, behind bytes that were lost before it was written.
                if before is not None and before.tombstone and before.key == key:
                    return
                offset, size = start, RECORD_OVERHEAD_BYTES + len(key)
            if offset < start or offset + size > end:
                return
            yield Line(key, offset, size)
            self._next += 1
            start = offset + size

    def match(self, header: RecordHeader) -> Iterator[str]:
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
                    yield (
                        f"the line of {encode_key(key)} names offset {offset}, where"
                        f" {encode_key(header.key)} is"
                    )
                return
            yield _strange(key, offset)
        yield f"{encode_key(header.key)} at {header.offset} of the volume has no line"

    def rest(self) -> Iterator[str]:
        """Yield what is wrong with the lines behind the last record."""
        for key, offset, _ in self._lines[self._next :]:
            yield _strange(key, offset)
        self._next = len(self._lines)


def _strange(key: bytes, offset: int) -> str:
    where = f"names offset {offset}" if offset else "says that it was deleted"
    return f"the line of {encode_key(key)} {where}, where no such record is"
