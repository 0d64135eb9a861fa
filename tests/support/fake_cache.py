"""A cache in a dict, for tests of the HTTP layer."""

from __future__ import annotations

import zlib

from volcache.store.format import Record


class FakeCache:
    """
    Replaces `Cache`.

    `error`, if set, is raised by every method but `is_ready`; `reads` counts the values
    that were read.
    """

    def __init__(self) -> None:
        """Start empty, at 2026-11-21 09:00:00.123 UTC."""
        self.records: dict[bytes, Record] = {}
        self.stored_ms = 1_795_251_600_123
        self.error: BaseException | None = None
        self.reads = 0
        self.is_disk_readable = True
        self._end = 64

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key."""
        self._raise()
        self.reads += 1
        return self.records.get(key)

    def flush(self) -> None:
        """Delete every key."""
        self._raise()
        self.records.clear()

    def stat(self, key: bytes) -> Record | None:
        """Return the record of a key without its value."""
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
        """Store a value after the previous one."""
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
        """Delete a key; return whether it existed."""
        self._raise()
        return self.records.pop(key, None) is not None

    def is_ready(self) -> bool:
        """Return whether the disk can be read."""
        return self.is_disk_readable

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error
