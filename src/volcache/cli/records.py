"""
Which records of a mount point are live: those that a GET would find.

A record is live if the index, built as at the start of a server, has its position for its
key, and it is neither expired nor purged: the caller compares these times. Used by `dump`
and `export`; the only place in this package that reads the index.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from volcache.store.replay import open_contents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.offline import OfflineStore
    from volcache.store.volume import Volume


class Place(NamedTuple):
    """Where the record of a key is."""

    volume: Volume
    offset: int
    size: int  # Of the whole record.
    key: bytes


class LiveRecords:
    """
    The live records of an offline store.

    Attributes:
        purges: Which of them are purged.
    """

    def __init__(self, store: OfflineStore) -> None:
        """Build the index in memory; nothing is written."""
        self._directory = store.directory
        self._index = store.replay()
        self._volumes = store.volumes
        self.purges = store.inventory.purges.purges

    @property
    def count(self) -> int:
        """The number of live records, expired, purged and damaged ones included."""
        return self._index.count

    def __contains__(self, place: Place) -> bool:
        """Return whether the record at this place is the live one of its key."""
        found = self._index.find(place.key)
        return found is not None and found[:2] == (place.volume.seq, place.offset)

    def take(self) -> Iterator[Place]:
        """
        Yield each live record once, in the order of the disk; none is left afterwards.

        Records whose headers are damaged are included: the index files list them.
        """
        for volume in self._volumes:
            indexed = chain.from_iterable(open_contents(self._directory, volume).read())
            # `pending` are the records behind the last one that the index file lists.
            for key, offset, size in chain(indexed, volume.pending):
                place = Place(volume, offset, size, key)
                if place in self:
                    # An index file may list a key twice.
                    self._index.forget(key, volume.seq, offset)
                    yield place
