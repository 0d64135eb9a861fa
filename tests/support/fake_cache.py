"""A cache that is a dict, and counts nothing on disk."""

from __future__ import annotations

import zlib

from volcache.store.format import Record


class FakeCache:
    """
    Stands for `FileCache`: values under keys, a miss is `None`.

    `error`, when set, is raised instead of any answer; `reads` counts values read.
    """

    def __init__(self) -> None:
        """Begin empty, at 2026-11-21 09:00:00.123 UTC."""
        self.records: dict[bytes, Record] = {}
        self.stored_ms = 1_795_251_600_123
        self.error: BaseException | None = None
        self.reads = 0
        self._end = 64

    def get(self, key: bytes) -> Record | None:
        """Return what was stored last under a key."""
        self._raise()
        self.reads += 1
        return self.records.get(key)

    def flush(self) -> None:
        """Forget everything."""
        self._raise()
        self.records.clear()

    def stat(self, key: bytes) -> Record | None:
        """Return the same without its value."""
        self._raise()
        record = self.records.get(key)
        return None if record is None else record._replace(value=b"")

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        expires_ms: int = 0,
    ) -> Record:
        """Store a value behind the one before."""
        self._raise()
        size = 64 + len(key) + len(value)
        record = Record(
            value=value,
            content_type=content_type,
            content_encoding=content_encoding,
            stored_ms=self.stored_ms,
            expires_ms=expires_ms,
            volume=3,
            generation=17,
            offset=self._end,
            size=size,
            length=len(value),
            checksum=zlib.crc32(value),
            source="DISK",
        )
        self.records[key] = record
        self._end += size
        return record

    def delete(self, key: bytes) -> bool:
        """Forget a key and tell whether it was there."""
        self._raise()
        return self.records.pop(key, None) is not None

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error
