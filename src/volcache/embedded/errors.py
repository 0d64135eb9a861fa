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
    """The directory is open elsewhere, in this or another process."""


_KINDS: Final[dict[type[errors.VolcacheError], type[CacheError]]] = {
    errors.DiskFullError: StorageFullError,
    errors.StoreLockedError: StorageLockedError,
    errors.ValueTooLargeError: ValueTooLargeError,
    errors.ConfigError: InvalidArgumentError,
}


def translated(error: errors.VolcacheError) -> CacheError:
    """Return the error to raise for one of the store."""
    return _KINDS.get(type(error), StorageError)(str(error))
