"""The errors of an embedded cache: those of the store, in the tree of the clients."""

from __future__ import annotations

from typing import Final

from volcache import errors
from volcache_client.errors import (
    CacheError,
    InvalidArgumentError,
    StorageError,
    ValueTooLargeError,
)


class StorageFullError(StorageError):
    """The disk has no space; what is stored stays."""


class StorageLockedError(StorageError):
    """Another process has the directory open, and does not share it."""


class UnknownResultError(StorageError):
    """
    The process that had the directory open has ended during a change.

    Attributes:
        since_us: When the change was asked for, by the clock of the store.
    """

    def __init__(self, path: str, since_us: int) -> None:
        super().__init__(
            f"cache {path!r}: the process that had the directory open has ended during the"
            " call, which it may have made or not"
        )
        self.since_us: Final = since_us


_KINDS: Final[dict[str, type[CacheError]]] = {
    errors.DiskFullError.__name__: StorageFullError,
    errors.StoreLockedError.__name__: StorageLockedError,
    errors.ValueTooLargeError.__name__: ValueTooLargeError,
    errors.ConfigError.__name__: InvalidArgumentError,
}


def translated(error: errors.VolcacheError) -> CacheError:
    """Return the error to raise for one of the store."""
    return refused(type(error).__name__, str(error))


def refused(name: str, text: str) -> CacheError:
    """Return the error to raise for one of the store of another process."""
    return _KINDS.get(name, StorageError)(text)
