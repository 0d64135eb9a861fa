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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.scan import WHOLE_VOLUME, VolumeReader
from volcache.store.volume import NO_FILE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from volcache.store.format import RecordHeader
    from volcache.store.log import CircularLog
    from volcache.store.volume import Volume

# Read at a time: behind a longer value, the next header is read by itself.
_PIECE_BYTES: Final = 64 << 10
# How often what was written during a scan is read in turn. A store that is overwritten as
# a whole, again and again, while one scan is under way would never let it end.
_ROUNDS: Final = 8


class KeyScan:
    """One scan of a store."""

    def __init__(self, log: CircularLog) -> None:
        """Read nothing yet."""
        self._rings, self._kept_purges = log.rings, log.kept_purges
        self._volumes, self._index = log.volumes, log.rings.index
        # How far each volume is read in this round, by sequence number.
        self._ends: dict[int, int] = {}

    def batches(self) -> Iterator[list[bytes]]:
        """
        Yield the keys, some at a time, perhaps none.

        Between two batches nothing is held, and the store may be changed. It must not be
        closed while a batch is fetched. What the disk refuses to read is left out.
        """
        for _ in range(_ROUNDS):
            read = self._ends
            with self._index.lock:
                volumes = [volume for _, volume in sorted(self._volumes.items())]
                self._ends = {volume.seq: volume.end for volume in volumes}
            is_complete = True
            for volume in volumes:
                start = read.get(volume.seq, VOLUME_HEADER_BYTES)
                is_complete &= yield from self._scan(volume, start)
            if is_complete:
                return

    def _scan(self, volume: Volume, start: int) -> Generator[list[bytes], None, bool]:
        """Yield the keys of a part of a volume; return whether it was there to the end."""
        end = self._ends[volume.seq]
        if volume.fd == NO_FILE:
            return True
        reader = VolumeReader(self._rings.directory.fs, volume, end, piece=_PIECE_BYTES)
        offset, is_valid = start, True
        while offset < end and is_valid:
            batch, limit = list[bytes](), min(offset + _PIECE_BYTES, end)
            while offset < limit:
                header = reader.header_at(offset)
                if header is not None:
                    if self._has(volume, header):
                        batch.append(header.key)
                    offset += header.size
                elif self._is_valid(volume):  # Damaged or unreadable.
                    offset = reader.find_header(offset + 1, WHOLE_VOLUME) or end
                else:
                    offset = end  # The bytes are those of another use by now.
            is_valid = self._is_valid(volume)
            yield batch
        return is_valid

    def _is_valid(self, volume: Volume) -> bool:
        return self._volumes.get(volume.seq) is volume

    def _has(self, volume: Volume, header: RecordHeader) -> bool:
        """Return whether a key has a value and is to be returned at this record."""
        if header.tombstone:
            return False
        position = self._index.find(header.key)
        if position is None or position[0] not in self._volumes:
            return False
        seq, offset, _ = position
        if (seq, offset) != (volume.seq, header.offset):
            # The record of the key is read by itself, unless it is behind what is read.
            return offset >= self._ends.get(seq, 0)
        is_expired = 0 < header.expires_ms <= self._rings.clock.now_ms()
        return not is_expired and not self._kept_purges.current.covers(
            header.key, header.stored_us
        )
