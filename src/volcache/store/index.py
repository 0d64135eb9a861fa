"""
The in-memory index: key to position.

A position is (sequence number of the volume, offset, size in bytes). Only this module
packs it into one integer. The caller adds a volume, sets positions in it, and one day
reclaims it. Reclaiming is constant work: the entries of that volume become stale, which
the caller sees because it no longer has a volume of that sequence number. `sweep` removes
stale entries in small steps, so that no request has to remove a million of them.

What callers must accept, because a compact index stores fingerprints instead of keys:
    - `find` may return the position of a record of another key.
    - The size is a hint for the first read, at least `RECORD_BYTES_MIN`; the record
      header is authoritative.
    - There is no list of the keys: read the volumes and look each key up.

Invariants:
    - `find` returns the position set last, unless the key was deleted or swept since.
    - `live(seq)` counts the entries in that volume; their sum over all volumes that are
      not reclaimed is `count`.

Locking: `find` may be called by any thread at any time; all other methods by the thread
that holds the lock of the store.
"""

from __future__ import annotations

from typing import Final

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


class _Live:
    """The live records of one volume."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class Index:
    """A hash table from key to position, in Python dicts."""

    def __init__(self) -> None:
        self._segments: list[dict[bytes, int]] = [{} for _ in range(_SEGMENTS)]
        self._live: dict[int, _Live] = {}  # by sequence number
        self.stale = 0  # entries of reclaimed volumes that are still in the table
        self.is_sweeping = False  # a sweep is under way: `sweep` has work to do
        self._next_segment = 0  # to be swept
        self._credit = 0  # entries that the sweep under way may still read

    @property
    def count(self) -> int:
        """The number of keys with a live position."""
        return sum(live.records for live in self._live.values())

    def live(self, seq: int) -> tuple[int, int]:
        """Return the number of live records of a volume and their size in bytes."""
        found = self._live.get(seq)
        return (found.records, found.bytes) if found else (0, 0)

    def add_volume(self, seq: int) -> None:
        """Accept positions in a volume from now on."""
        self._live.setdefault(seq, _Live())

    def find(self, key: bytes) -> Position | None:
        """
        Return the position of a key, or None.

        The volume may have been reclaimed: then the caller must treat it as None.
        """
        entry = self._segments[hash(key) & _SEGMENT_MASK].get(key)
        if entry is None:
            return None
        return (
            entry >> _SEQ_SHIFT,
            entry >> _OFFSET_SHIFT & _OFFSET_MAX,
            entry & _SIZE_MAX,
        )

    def set(self, key: bytes, seq: int, offset: int, size: int) -> None:
        """Set the position of a key; `add_volume(seq)` must have been called."""
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
        """Remove a key; return whether it had a live position."""
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
        """
        Make all entries of a volume stale, in constant time.

        Returns:
            The number of live records lost by it, and their size in bytes.
        """
        lost = self._live.pop(seq, None)
        if lost is None:
            return 0, 0
        self.stale += lost.records
        if self.stale * _STALE_SHARE > self.stale + self.count:
            self.is_sweeping = True
        return lost.records, lost.bytes

    def sweep(self, budget: int) -> None:
        """Go on with the sweep under way: read about `budget` entries."""
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
