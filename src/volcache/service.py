"""
The cache: what a get, a put and a delete do.

The page to read first. Today there is one tier, the store on disk; this is the place where
a second one comes in. Knows neither HTTP nor settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volcache.store import Record, Store


class FileCache:
    """Values under keys; a miss is `None`."""

    def __init__(self, store: Store) -> None:
        """Serve from `store`, which stays the caller's to close."""
        self.store = store
        # A get of one tier is the get of the tier: no call is spent on passing it on.
        self.get = store.get
        self.head = store.head

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        expires_ms: int = 0,
    ) -> Record:
        """Store a value; see `Store.put`."""
        return self.store.put(
            key,
            value,
            content_type=content_type,
            content_encoding=content_encoding,
            expires_ms=expires_ms,
        )

    def delete(self, key: bytes) -> bool:
        """Forget a key and tell whether it was there; see `Store.delete`."""
        return self.store.delete(key)
