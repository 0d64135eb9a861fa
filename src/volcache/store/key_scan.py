"""
The keys of a running store, found by reading its volumes.

The native index has no keys, so the records are read: headers only, where values are long.
Volumes are read by age, the oldest first, each up to where it was written when the scan
came to it. Nothing is locked while the disk is read, and memory is bounded by one piece of
a volume and the list of volumes.

A record is that of its key if the index has its position. If the index has another one,
behind what is read, the key was stored again or its record was copied since the beginning:
then the key is returned here. A volume that was reclaimed before it was read to its end may
have had records that were copied: then what was written since is read as well. Hence a key
that is in the store from the beginning of a scan to its end is returned, once if nothing
changes meanwhile, else perhaps more than once.

A scan can be continued by another `KeyScan`: its cursor is a line of text, whose length
does not depend on the store. What a cursor says is not trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.index import Found, Gap
from volcache.store.native import Records
from volcache.store.volume import NO_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.format import RecordHeader
    from volcache.store.rings import Rings
    from volcache.store.volume import Volume

# Read at a time: behind a longer value, the next header is read by itself.
_PIECE_BYTES: Final = 64 << 10
# How often what was written during a scan is read in turn. A store that is overwritten as
# a whole, again and again, while one scan is under way would never let it end.
_ROUNDS: Final = 8
_MANY: Final = 1 << 62
# Numbers; the last are pairs, of two rings in two rounds at most.
_CURSOR: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18}){7,15}")
_FIXED: Final = 8


class _Reach(NamedTuple):
    """How far volumes are read in a round."""

    seq: int = 0  # Volumes from this one on are not.
    ends: dict[int, int] = {}  # noqa: RUF012 - Of those that may have grown; not changed.

    def end_of(self, volume: Volume) -> int:
        """Return the offset up to which a volume is read; 0: it is not."""
        if volume.seq >= self.seq:
            return 0
        return min(self.ends.get(volume.seq, volume.end), volume.end)


class KeyScan:
    """One scan of a store."""

    def __init__(
        self,
        rings: Rings,
        is_over: Callable[[bytes, RecordHeader], bool],
        cursor: str,
    ) -> None:
        """
        Read nothing yet.

        Args:
            rings: Of the store, which must not be closed while keys are read.
            is_over: Whether the record of a key has expired or is purged.
            cursor: Where another scan has stopped; empty: begin.

        Raises:
            ValueError: It is not a cursor.
        """
        self._rings, self._index, self._is_over = rings, rings.index, is_over
        self._before, self._reach = _Reach(), _Reach()
        self._round = self._offset = 0
        self._todo: list[Volume] = []  # Of this round, the next one last.
        self._is_complete = False
        self._records: Records | None = None  # Of the next volume.
        if cursor:
            self._continue(cursor)
        else:
            self._begin_round()

    @property
    def cursor(self) -> str:
        """Where the scan is; empty: at its end."""
        if not self._todo:
            return ""
        seq, pairs = self._todo[-1].seq, [*self._before.ends.items()]
        numbers = [self._round, int(self._is_complete), len(self._todo), seq]
        numbers += [self._offset, self._before.seq, self._reach.seq, len(pairs)]
        for pair in (*pairs, *self._reach.ends.items()):
            numbers += pair
        return ".".join(map(str, numbers))

    def _continue(self, cursor: str) -> None:
        if _CURSOR.fullmatch(cursor) is None:
            raise ValueError
        numbers = [int(part) for part in cursor.split(".")]
        self._round, is_complete, left, seq, offset, before, reach, count = numbers[
            :_FIXED
        ]
        pairs = list(zip(numbers[_FIXED::2], numbers[_FIXED + 1 :: 2], strict=True))
        self._before = _Reach(before, dict(pairs[:count]))
        self._reach = _Reach(reach, dict(pairs[count:]))
        self._select(seq)
        if self._todo and self._todo[-1].seq == seq:
            self._offset = max(self._offset, offset)
        # Otherwise a volume was reclaimed that was not read to its end.
        self._is_complete = is_complete == 1 and len(self._todo) == left
        if not self._todo:
            self._begin_round()

    def _begin_round(self) -> None:
        """Begin to read what was written since, if something may be missing."""
        while not (self._todo or self._is_complete or self._round >= _ROUNDS):
            self._round += 1
            self._is_complete, self._before = True, self._reach
            with self._index.lock:
                ends = {volume.seq: volume.end for volume in self._rings.written}
                self._reach = _Reach(self._rings.last_seq + 1, ends)
            self._select(0)

    def _select(self, seq: int) -> None:
        """Find out what is left of this round, from a sequence number on."""
        with self._index.lock:
            found = sorted(self._rings.volumes.items(), reverse=True)
        self._todo = [
            volume
            for number, volume in found
            if number >= seq
            and self._reach.end_of(volume) > max(self._before.end_of(volume), 1)
            and volume.fd != NO_FILE
        ]
        self._offset = self._start()

    def _start(self) -> int:
        """Return where the next volume is read from in this round."""
        if not self._todo:
            return 0
        return self._before.end_of(self._todo[-1]) or VOLUME_HEADER_BYTES

    def read(
        self,
        prefix: bytes = b"",
        most: int = _MANY,
        is_due: Callable[[], bool] = lambda: False,
    ) -> list[bytes]:
        """
        Return the keys of the next piece, perhaps none; the cursor is then behind it.

        Nothing is held afterwards, and the store may be changed. What the disk refuses to
        read is left out.

        Args:
            prefix: What they begin with.
            most: How many, at least 1.
            is_due: Whether to stop, called after each record.
        """
        batch: list[bytes] = []
        if not self._todo:
            return batch
        volume = self._todo[-1]
        end = self._reach.end_of(volume)
        limit = min(self._offset + _PIECE_BYTES, end)
        records = self._records = self._records or Records(
            *(self._rings.directory.fs, volume, self._offset, end),
            window=_PIECE_BYTES,
            has_values=False,
            piece=_PIECE_BYTES,
        )
        while self._offset < limit and len(batch) < most and self._rings.has(volume):
            event = next(records, None)
            if isinstance(event, Found):
                if self._is_wanted(volume, event, prefix):
                    batch.append(event.header.key)
            elif not isinstance(event, Gap):  # There is nothing in this piece.
                records.at = limit
            self._offset = records.at
            if is_due():
                break
        if self._offset >= end or not self._rings.has(volume):
            self._end_volume(volume)
        return batch

    def _end_volume(self, volume: Volume) -> None:
        """Go on with the next volume; one that was reclaimed was not read to its end."""
        self._is_complete &= self._rings.has(volume)
        self._todo.pop()
        self._records = None
        self._offset = self._start()
        self._begin_round()

    def _is_wanted(self, volume: Volume, found: Found, prefix: bytes) -> bool:
        """Return whether a key has a value and is to be returned at this record."""
        header = found.header
        is_value = found.intact and not header.tombstone
        if not (is_value and header.key.startswith(prefix)):
            return False
        position = self._index.find(header.key)
        holder = position and self._rings.volumes.get(position[0])
        if not position or not holder:
            return False
        if position[:2] != (volume.seq, header.offset):
            # The record of the key is read by itself, unless it is behind what is read.
            return position[1] >= self._reach.end_of(holder)
        return not self._is_over(header.key, header)
