"""
The in-memory index: key to position.

A position is (sequence number of the volume, offset, size in bytes). The caller adds a
volume, sets positions in it, and one day reclaims it. Reclaiming is constant work: the
entries of that volume become stale. `sweep` removes stale entries in small steps, so that
no request has to remove a million of them.

`Index` is the interface, `PythonIndex` the implementation in Python. The native one, see
`native.py`, keeps fingerprints instead of keys: 16 bytes for a key instead of over 200. For
its sake, callers must accept:
    - `find` may return the position of a record of another key, and a key may be missing
      because another one has its fingerprint.
    - The size is a hint for the first read, at least that of the record; the record header
      is authoritative.
    - There is no list of the keys: read the volumes and look each key up.

Invariants:
    - `find` returns the position set last, unless the key was deleted or swept since.
    - `live(seq)` counts the entries in that volume; their sum over all volumes that are
      not reclaimed is `count`.

Locking: `find` and `read` may be called by any thread at any time; all other methods by the
thread that holds the lock of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volcache.store.format import RecordFields
    from volcache.store.writer import Writer

# An entry is one int (48 bytes) instead of a tuple of three (over 150). From the highest
# bits to the lowest: sequence number 48, offset 40, size 32.
_SIZE_MAX: Final = 2**32 - 1
_OFFSET_SHIFT: Final = 32
_OFFSET_MAX: Final = 2**40 - 1
_SEQ_SHIFT: Final = 72

# The table is split into segments, each of which grows by itself: to grow one dict of ten
# million keys takes a second. A sweep reads one segment at a time: 7 ms with ten million
# keys. More segments than these would cost a look-up more cache misses.
_SEGMENTS: Final = 64
_SEGMENT_MASK: Final = _SEGMENTS - 1
# A sweep starts when this share of the entries is stale. It reads the whole table, so a
# lower share costs more time per entry removed, a higher one more memory.
_STALE_SHARE: Final = 8  # one in this many

Position = tuple[int, int, int]  # sequence number, offset, size


class Loaded(NamedTuple):
    """What `Index.load` found in an index file; that of whole valid blocks."""

    file_end: int  # the valid part ends here
    volume_end: int  # the volume is indexed up to here
    is_sealed: bool
    checksum: int | None  # of the last valid checkpoint
    named: int  # how many of the segments are named
    is_of_copy: bool  # a block of a copy of the volume follows
    entries: int
    last_offset: int  # of the last entry that is not a deletion; 0 = none


class Replayed(NamedTuple):
    """What `Index.replay` has passed."""

    end: int  # where the first bytes begin that are not an intact record
    records: int
    latest_us: int  # the latest time stored, microseconds since the epoch


class Index(Protocol):
    """
    A hash table from key to position.

    Attributes:
        is_native: `read`, `load` and `replay` do something; in Python the caller does it.
    """

    is_native: bool

    @property
    def count(self) -> int:
        """The number of keys with a live position."""

    @property
    def stale(self) -> int:
        """The number of entries of reclaimed volumes that are still in the table."""

    @property
    def is_sweeping(self) -> bool:
        """Whether `sweep` has work to do."""

    @property
    def displaced(self) -> int:
        """The number of keys lost because the table could not grow."""

    def live(self, seq: int) -> tuple[int, int]:
        """
        Return the number of live records of a volume and their size in bytes.

        The native index knows sizes to an eighth only; the sum is that of the middles.
        """

    def add_volume(self, seq: int) -> None:
        """Accept positions in a volume from now on."""

    def bind_volume(
        self, seq: int, fd: int, volume: int, salts: Iterable[tuple[int, int]]
    ) -> None:
        """
        Say where the records of a volume are, for `read`.

        Args:
            seq: Of the volume.
            fd: Descriptor of its data file, open until `close`.
            volume: Its id.
            salts: From which offset on records have which salt; the first is 0.
        """

    def find(self, key: bytes) -> Position | None:
        """
        Return the position of a key, or None.

        The volume may have been reclaimed: then the caller must treat it as None.
        """

    def is_stale(self, key: bytes) -> bool:
        """Return whether a key that has no position had one in a reclaimed volume."""

    def set(self, key: bytes, seq: int, offset: int, size: int) -> None:
        """Set the position of a key; `add_volume(seq)` must have been called."""

    def delete(self, key: bytes) -> bool:
        """Remove a key; return whether it had a live position."""

    def reclaim(self, seq: int) -> tuple[int, int]:
        """
        Make all entries of a volume stale, in constant time.

        Returns:
            The number of live records lost by it, and their size in bytes.
        """

    def sweep(self, budget: int) -> None:
        """Go on with the sweep under way: read about `budget` entries."""

    def read(self, key: bytes) -> RecordFields | None:
        """
        Return the fields of the record of a key, read from the disk and checked.

        Returns:
            None if there is no intact record of the key, or if it is not known: then the
            caller reads it. It may have expired.
        """

    def load(
        self, seq: int, fd: int, segments: Iterable[tuple[int, int]]
    ) -> Loaded | None:
        """
        Set the positions that an index file has.

        Args:
            seq: Of the volume.
            fd: Of the index file, whose first line is right.
            segments: Of the volume, see `IndexContents`.

        Returns:
            None if the caller has to do it.

        Raises:
            OSError: The file cannot be read.
        """

    def end_load(self) -> None:
        """Free the memory that only loading needs."""

    def replay(
        self,
        seq: int,
        data: bytes,
        salt: int,
        volume: int,
        offset: int,
        limit: int,
        writer: Writer,
    ) -> Replayed:
        """
        Set the positions of intact records that follow each other, as far as possible.

        Args:
            seq: Of the volume.
            data: Bytes of the volume.
            salt: Of the records.
            volume: Its id.
            offset: Where in the volume `data` begins.
            limit: Records that begin here or later are not passed.
            writer: Gets the entries of the records passed.
        """

    def close(self) -> None:
        """Return when no thread reads; `read` finds nothing from now on."""


class _Live:
    """The live records of one volume."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class PythonIndex:
    """Implements `Index` by dicts; leaves reading to the caller."""

    is_native = False

    def __init__(self) -> None:
        self._segments: list[dict[bytes, int]] = [{} for _ in range(_SEGMENTS)]
        self._live: dict[int, _Live] = {}  # by sequence number
        self.stale = 0  # entries of reclaimed volumes that are still in the table
        self.displaced = 0
        self.is_sweeping = False  # a sweep is under way
        self._next_segment = 0  # to be swept
        self._credit = 0  # entries that the sweep under way may still read

    @property
    def count(self) -> int:
        return sum(live.records for live in self._live.values())

    def live(self, seq: int) -> tuple[int, int]:
        found = self._live.get(seq)
        return (found.records, found.bytes) if found else (0, 0)

    def add_volume(self, seq: int) -> None:
        self._live.setdefault(seq, _Live())

    def find(self, key: bytes) -> Position | None:
        entry = self._segments[hash(key) & _SEGMENT_MASK].get(key)
        if entry is None:
            return None
        return (
            entry >> _SEQ_SHIFT,
            entry >> _OFFSET_SHIFT & _OFFSET_MAX,
            entry & _SIZE_MAX,
        )

    def bind_volume(
        self, seq: int, fd: int, volume: int, salts: Iterable[tuple[int, int]]
    ) -> None:
        pass

    def is_stale(self, key: bytes) -> bool:
        found = self.find(key)
        return found is not None and found[0] not in self._live

    def read(self, key: bytes) -> None:
        return None

    def load(self, seq: int, fd: int, segments: Iterable[tuple[int, int]]) -> None:
        return None

    def end_load(self) -> None:
        pass

    def replay(
        self,
        seq: int,
        data: bytes,
        salt: int,
        volume: int,
        offset: int,
        limit: int,
        writer: Writer,
    ) -> Replayed:
        return Replayed(offset, 0, 0)

    def close(self) -> None:
        pass

    def set(self, key: bytes, seq: int, offset: int, size: int) -> None:
        segment = self._segments[hash(key) & _SEGMENT_MASK]
        previous = segment.get(key)
        segment[key] = seq << _SEQ_SHIFT | offset << _OFFSET_SHIFT | size
        live = self._live[seq]
        live.bytes += size
        if previous is not None:
            if previous >> _SEQ_SHIFT == seq:
                live.bytes -= previous & _SIZE_MAX
                return
            self._count_removed(previous)
        live.records += 1

    def delete(self, key: bytes) -> bool:
        previous = self._segments[hash(key) & _SEGMENT_MASK].pop(key, None)
        return previous is not None and self._count_removed(previous)

    def _count_removed(self, entry: int) -> bool:
        """Count an entry that left the table; return whether it was live."""
        live = self._live.get(entry >> _SEQ_SHIFT)
        if live is None:
            self.stale -= 1
            return False
        live.records -= 1
        live.bytes -= entry & _SIZE_MAX
        return True

    def reclaim(self, seq: int) -> tuple[int, int]:
        lost = self._live.pop(seq, None)
        if lost is None:
            return 0, 0
        self.stale += lost.records
        if self.stale * _STALE_SHARE > self.stale + self.count:
            self.is_sweeping = True
        return lost.records, lost.bytes

    def sweep(self, budget: int) -> None:
        self._credit += budget
        while self._next_segment < _SEGMENTS:
            segment = self._segments[self._next_segment]
            if self._credit <= len(segment):
                return
            self._credit -= len(segment) + 1
            live = self._live
            stale = [
                key for key, entry in segment.items() if entry >> _SEQ_SHIFT not in live
            ]
            for key in stale:
                del segment[key]
            self.stale -= len(stale)
            self._next_segment += 1
        self._credit = self._next_segment = 0
        self.is_sweeping = False
