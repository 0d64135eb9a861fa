"""What the service asks of a hot tier, and what a hot tier counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from volcache.histogram import Histogram


@dataclass(slots=True)
class HotStats:
    """Counts since the start."""

    gets: int = 0  # calls for an item
    hits: int = 0  # items found, whether they were current or not
    stale: int = 0  # items found that were not what was asked for, and not used
    promotions: int = 0
    refused: int = 0  # items memcached would not take: too large, no room
    invalidations: int = 0  # promoted keys that were put or deleted
    flushes: int = 0  # times all items were given up at once
    states: int = 0  # changes between up and down, of all servers
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    calls: Histogram = field(default_factory=Histogram)  # to a server that was up


class HotTier(Protocol):
    """A place for copies of records that is faster than the disk, and may forget."""

    stats: HotStats

    @property
    def up(self) -> dict[str, bool]:
        """Which servers are asked at present, by their addresses."""

    def may_hold(self, key: bytes) -> bool:
        """
        Tell whether there may be an item under a key.

        No is certain: nobody needs to be asked, and nothing to be invalidated.
        """

    def get(self, key: bytes) -> bytes | None:
        """Return the item under a key; None when there is none or nobody can say."""

    def promote(self, key: bytes, item: bytes, expires_ms: int) -> bool:
        """
        Keep a copy.

        Args:
            key: Of the record.
            item: The record as it is on the disk.
            expires_ms: Milliseconds since the epoch; 0 = never.

        Returns:
            Whether it is there now.
        """

    def invalidate(self, key: bytes) -> None:
        """
        Make sure that no item of a key is ever returned that was promoted before.

        Raises:
            OSError: That could not be made sure; the value must not be changed.
        """

    def flush(self) -> None:
        """
        Make sure that nothing promoted before is ever returned.

        Raises:
            OSError: That could not be made sure.
        """

    def close(self) -> None:
        """End the connections; the items stay."""
