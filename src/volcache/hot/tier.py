"""The hot tier: its counters, and what it uses of `volcache.front`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from volcache.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class HotStats:
    """Counters since the start."""

    gets: int = 0  # lookups sent to a server
    hits: int = 0  # lookups that returned an item, valid or stale
    stale: int = 0  # items returned that were not valid, and were not used
    promotions: int = 0
    refused: int = 0  # items memcached refused: too large, or out of memory
    flushes: int = 0
    states: int = 0  # changes between up and down, over all servers
    failures: Counter[str] = field(default_factory=Counter)  # by kind
    calls: Histogram = field(default_factory=Histogram)  # to servers that were up


class HotKeys(Protocol):
    """The keys of the hot tier; see `Copies` of `volcache.front`."""

    @property
    def first(self) -> int:
        """How many keys are looked up in memcached before the disk."""

    @property
    def invalidations(self) -> int:
        """How many promoted keys were put or deleted since the start."""

    def may_hold(self, key: bytes) -> bool:
        """
        Whether there may be a valid copy of a key.

        False is certain: there is nothing to look up and nothing to invalidate.
        """

    def is_first(self, key: bytes) -> bool:
        """Whether memcached is asked for a key before the disk is read."""

    def ask_first(self, key: bytes, *, is_first: bool) -> None:
        """Change that, unless the key is not promoted."""

    def name(self, key: bytes) -> bytes:
        """Return the name of a key's item at its present version."""

    def promote(self, key: bytes) -> bytes:
        """
        Register a key as promoted; to be called before its item is sent.

        Returns:
            The name of the item. If the key is invalidated from now on, also before the
            item is sent, no call looks up this name again.
        """

    def invalidate(self, key: bytes) -> bool:
        """
        Make every copy of a key that was stored so far unreachable, without a call.

        That includes copies that another thread is storing.

        Returns:
            Whether there may have been one.
        """

    def count_read(self, key: bytes) -> bool:
        """Count a read from the disk; return whether the key is hot now."""

    def begin_epoch(self, epoch: bytes | None = None) -> None:
        """Make every copy unreachable and forget all reads, without a call."""

    def add(self, hashed: int, version: int) -> bool:
        """Add what an earlier process had in this epoch; False: there is no room."""

    def entries(self) -> tuple[bytes, list[tuple[int, int]]]:
        """Return the epoch, and hash and version of each key."""


class HotCalls(Protocol):
    """The client of memcached; see `HotClient` of `volcache.front`."""

    def server_of(self, name: bytes) -> int:
        """Return the number of the server that an item belongs to."""

    def get_command(self, name: bytes) -> bytes:
        """Return the command that asks for an item."""

    def set_command(self, name: bytes, item: bytes, expires_s: int) -> bytes:
        """Return the command that stores an item; seconds since the epoch, or 0."""

    def parse(self, received: bytes, name: bytes | None) -> tuple[str, bytes | None]:
        """
        Return the result in a reply, and the item; empty: it is not whole.

        Args:
            received: All bytes since the command.
            name: Of the item that was asked for; None: one was sent.
        """

    @property
    def count(self) -> int:
        """The number of loops."""

    def give(self, server: int, fds: Sequence[int]) -> None:
        """Let each loop use a copy of a socket, in place of the one it has."""

    def failure(self, server: int) -> str:
        """Return why the connection of a loop has failed since; empty: none has."""
