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

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from volcache.store.eviction import HITS_MAX, MISSED_KEYS, Ghost
from volcache.store.format import Ring
from volcache.store.purges import PurgeList

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volcache.errors import DamagedRecordError
    from volcache.store.eviction import Rates
    from volcache.store.format import RecordFields
    from volcache.store.stats import Fate
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

# Parts of the index that are searched one by one.
SHARES: Final = 64

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


class Heat(NamedTuple):
    """What the index counts for the eviction policy."""

    tokens: float = 0.0
    ghost_hits: int = 0  # keys that were put after they were dropped from ring P
    older_hits: int = 0  # see `count_older`


class Step(NamedTuple):
    """
    The result of one step.

    `why` it ended: "more" = as far as it was to go, "done" = all records found were looked
    at, "full" = the volume that gets the copies has no room for the next one; or the disk
    has refused to read or to write a record, or a record has failed a check: then `error`
    says why, and the record was passed.
    """

    why: Literal["more", "done", "full", "unreadable", "refused", "damaged"]
    fate: Fate
    error: OSError | DamagedRecordError | None = None


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

    def set_age(self, seq: int, ring: Ring, born: int, end: int) -> None:
        """
        Say in which ring a volume is, and how old its records are.

        Args:
            seq: Of the volume.
            ring: Its ring.
            born: The bytes that had been appended to the ring when it was started.
            end: Its end.
        """

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

    def put(self, key: bytes, seq: int, offset: int, size: int) -> None:
        """Set the position of a value that was put, and count that."""

    def set_tombstone(self, key: bytes, seq: int, offset: int, size: int) -> None:
        """
        Let a key have no position; the last record of it is a tombstone.

        The entry stays until the volume is reclaimed, for `ring_for`.
        """

    def forget(self, key: bytes, seq: int, offset: int) -> bool:
        """
        Let a key have no position if this is its position; return whether it was.

        As after `set_tombstone`, the entry stays.
        """

    def is_deleted(self, key: bytes) -> bool:
        """Return whether a key has no position because of a tombstone."""

    # --- For the eviction policy, see eviction.py ---

    def set_policy(self, rates: Rates) -> None:
        """Count hits, misses and tokens from now on; before `set_age`."""

    def ring_for(self, key: bytes) -> Ring | None:
        """
        Return into which ring a value of this key has to be put; nothing is changed.

        None: the index has lost an entry, perhaps this one, see `accept_displaced`.
        """

    def accept_displaced(self) -> None:
        """Let `ring_for` answer again; a key without an entry belongs to ring M then."""

    def hit(self, key: bytes) -> bool:
        """Count a read of a key whose value came from elsewhere."""

    def miss(self, key: bytes) -> None:
        """Remember that a key without an entry was asked for."""

    def heat(self) -> Heat:
        """Return what was counted."""

    def count_older(self, stored_us: int) -> None:
        """
        Count hits of records that were stored before a time, unless they had 3.

        Once they are copied they have fewer, so the hits of a record that is read all the
        time are counted about once per turn of the ring: as often a single ring would
        have missed it.
        """

    def count_older_hit(self, stored_us: int) -> None:
        """Count such a hit that `hit` has returned."""

    def set_purges(self, purges: PurgeList) -> None:
        """Leave out what is purged, in `read` and in copies."""

    def size_ghost(self, keys: int) -> None:
        """Have room in the ghost for about `keys` keys."""

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

    __slots__ = ("bytes", "records", "tombstones")

    def __init__(self) -> None:
        self.records = 0
        self.tombstones = 0
        self.bytes = 0


def _fingerprint(key: bytes) -> int:
    """Return bits of the hash of a key, as many as the native index has."""
    return hash(key) & 2**49 - 1


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
        self._hits: dict[bytes, int] = {}  # of the keys that have hits
        self._rates: Rates | None = None
        self._ages: dict[int, tuple[Ring, int]] = {}  # ring and `born`, by seq
        self._clock = dict.fromkeys(Ring, 0)
        self._tokens = 0.0
        self._ghost = Ghost(1)
        self._missed = Ghost(MISSED_KEYS)
        self._ghost_hits = 0
        self._older_us = 0
        self._older_hits = 0
        self.purges = PurgeList()

    @property
    def count(self) -> int:
        return sum(live.records for live in self._live.values())

    def live(self, seq: int) -> tuple[int, int]:
        found = self._live.get(seq)
        return (found.records, found.bytes) if found else (0, 0)

    def add_volume(self, seq: int) -> None:
        self._live.setdefault(seq, _Live())

    def _entry(self, key: bytes) -> int | None:
        """Return the entry of a key; its size is 0 if it is a tombstone."""
        return self._segments[hash(key) & _SEGMENT_MASK].get(key)

    def find(self, key: bytes) -> Position | None:
        entry = self._entry(key)
        if entry is None or not entry & _SIZE_MAX:
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
        self._hits.pop(key, None)
        previous = segment.get(key)
        if previous is not None:
            self._count_removed(previous)
        segment[key] = seq << _SEQ_SHIFT | offset << _OFFSET_SHIFT | size
        live = self._live[seq]
        if size:
            live.records += 1
            live.bytes += size
        else:
            live.tombstones += 1

    def put(self, key: bytes, seq: int, offset: int, size: int) -> None:
        if self._rates is not None:
            self._advance(seq, offset + size)
            self._add_tokens(self._rates.write_rate * size)
            if self._live_entry(key) is None:
                fingerprint = _fingerprint(key)
                self._ghost_hits += self._ghost.remove(fingerprint)
                self._missed.remove(fingerprint)
        self.set(key, seq, offset, size)

    def set_tombstone(self, key: bytes, seq: int, offset: int, size: int) -> None:
        self._advance(seq, offset + size)
        self.set(key, seq, offset, 0)

    def forget(self, key: bytes, seq: int, offset: int) -> bool:
        found = self.find(key)
        if found is None or found[:2] != (seq, offset) or seq not in self._live:
            return False
        self.set(key, seq, offset, 0)
        return True

    def is_deleted(self, key: bytes) -> bool:
        entry = self._live_entry(key)
        return entry is not None and not entry & _SIZE_MAX

    def move(self, key: bytes, seq: int, offset: int, size: int, hits: int) -> None:
        """Set the position of a key to that of a copy."""
        self._advance(seq, offset + size)
        self._tokens -= size
        self.set(key, seq, offset, size)
        if hits:
            self._hits[key] = hits

    # --- For the eviction policy ---------------------------------------------------

    def set_policy(self, rates: Rates) -> None:
        self._rates = rates

    def set_age(self, seq: int, ring: Ring, born: int, end: int) -> None:
        self._ages[seq] = (ring, born)
        self._advance(seq, end)

    def _advance(self, seq: int, end: int) -> None:
        """Let the clock of a ring be at an offset in a volume."""
        if seq in self._ages:
            ring, born = self._ages[seq]
            self._clock[ring] = max(self._clock[ring], born + end)

    def _add_tokens(self, tokens: float) -> None:
        assert self._rates is not None  # noqa: S101 - Checked by the callers.
        self._tokens = min(self._rates.tokens_max, self._tokens + tokens)

    def _live_entry(self, key: bytes) -> int | None:
        """Return the entry of a key, tombstones included, unless it is stale."""
        entry = self._entry(key)
        return (
            entry if entry is not None and entry >> _SEQ_SHIFT in self._live else None
        )

    def ring_for(self, key: bytes) -> Ring:
        if self._rates is None:
            return Ring.MAIN
        entry = self._live_entry(key)
        if entry is not None:
            return self._ages[entry >> _SEQ_SHIFT][0]
        fingerprint = _fingerprint(key)
        if fingerprint in self._ghost or fingerprint not in self._missed:
            return Ring.MAIN
        return Ring.PROBATION

    def accept_displaced(self) -> None:
        pass

    def hit(self, key: bytes) -> bool:
        if self._rates is None:
            return False
        entry = self._live_entry(key)
        if entry is None:
            self._missed.add(_fingerprint(key))
            return False
        seq, offset = entry >> _SEQ_SHIFT, entry >> _OFFSET_SHIFT & _OFFSET_MAX
        if not entry & _SIZE_MAX:
            return False
        self._add_tokens(self._rates.hit_rate * (entry & _SIZE_MAX))
        ring, born = self._ages[seq]
        hits = self._hits.get(key, 0)
        if hits == HITS_MAX or (
            self._clock[ring] - born - offset < self._rates.skip[ring]
        ):
            return False
        self._hits[key] = hits + 1
        return True

    def hits(self, key: bytes) -> int:
        """Return how often a key was hit, at most 3."""
        return self._hits.get(key, 0)

    def miss(self, key: bytes) -> None:
        if self._rates is not None:
            self._missed.add(_fingerprint(key))

    def heat(self) -> Heat:
        return Heat(self._tokens, self._ghost_hits, self._older_hits)

    def count_older(self, stored_us: int) -> None:
        self._older_us = stored_us

    def count_older_hit(self, stored_us: int) -> None:
        self._older_hits += stored_us < self._older_us

    def set_purges(self, purges: PurgeList) -> None:
        self.purges = purges

    def size_ghost(self, keys: int) -> None:
        self._ghost.resize(keys)

    def add_ghost(self, key: bytes) -> None:
        """Remember that a key was dropped from ring P."""
        self._ghost.add(_fingerprint(key))

    def records_of(
        self, seq: int, share: int, shares: int
    ) -> list[tuple[int, int, bytes]]:
        """Return offset, size and key of a volume's records in a part of the index."""
        return [
            (entry >> _OFFSET_SHIFT & _OFFSET_MAX, entry & _SIZE_MAX, key)
            for segment in self._segments[share::shares]
            for key, entry in segment.items()
            if entry >> _SEQ_SHIFT == seq and entry & _SIZE_MAX
        ]

    # --- Stale entries -------------------------------------------------------------

    def _count_removed(self, entry: int) -> None:
        """Count an entry that left the table."""
        live = self._live.get(entry >> _SEQ_SHIFT)
        if live is None:
            self.stale -= 1
            return
        if entry & _SIZE_MAX:
            live.records -= 1
            live.bytes -= entry & _SIZE_MAX
        else:
            live.tombstones -= 1

    def reclaim(self, seq: int) -> tuple[int, int]:
        lost = self._live.pop(seq, None)
        if lost is None:
            return 0, 0
        self.stale += lost.records + lost.tombstones
        self._ages.pop(seq, None)
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
                self._hits.pop(key, None)
            self.stale -= len(stale)
            self._next_segment += 1
        self._credit = self._next_segment = 0
        self.is_sweeping = False
