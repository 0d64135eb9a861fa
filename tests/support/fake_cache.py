"""A cache in a dict, for tests of the HTTP layer."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext

from volcache.store.format import Record


class FakeCache:
    """
    Replaces `Cache`.

    `error`, if set, is raised by every method but `is_ready`, `read_error` by those that
    read; `reads` counts the values that were read. Like the clock of a store, `now_ms`
    never goes back.
    """

    def __init__(self) -> None:
        """Start empty, at 2026-11-21 09:00:00.123 UTC."""
        self.records: dict[bytes, Record] = {}
        self.machine_ms = self.now_ms = 1_795_251_600_123
        self.error: BaseException | None = None
        self.read_error: BaseException | None = None
        self.reads = 0
        self.is_disk_readable = True
        self._end = 64
        self._stored_us = 0

    def set_clock(self, machine_ms: int) -> None:
        """Set the clock of the machine."""
        self.machine_ms = machine_ms
        self.now_ms = max(self.now_ms, machine_ms)

    def exclusive(self) -> AbstractContextManager[object]:
        """Return what does nothing: there is one thread."""
        return nullcontext()

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key."""
        self._raise(self.read_error)
        self.reads += 1
        return self.records.get(key)

    def flush(self) -> None:
        """Delete every key."""
        self._raise()
        self.records.clear()

    def stat(self, key: bytes) -> Record | None:
        """Return the record of a key without its value."""
        self._raise(self.read_error)
        record = self.records.get(key)
        return None if record is None else record._replace(value=b"")

    def put(  # noqa: PLR0913 - As the cache has it.
        self,
        key: bytes,
        value: bytes,
        *,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        cache_control: bytes = b"",
        expires_ms: int = 0,
        flags: int = 0,
    ) -> Record:
        """Store a value after the previous one, which has another time."""
        self._raise()
        self._stored_us = max(self.now_ms * 1000, self._stored_us + 1)
        size = 64 + len(key) + len(value)
        record = Record(
            value=value,
            content_type=content_type,
            content_encoding=content_encoding,
            cache_control=cache_control,
            stored_us=self._stored_us,
            expires_ms=expires_ms,
            flags=flags,
            volume=3,
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

    def expiry_of(self, machine_ms: int) -> int:
        """Return the time by our clock."""
        return machine_ms + self.now_ms - self.machine_ms

    def remaining_ms(self, expires_ms: int) -> int:
        """Return how long a record still lives."""
        return max(0, expires_ms - self.now_ms)

    def is_ready(self) -> bool:
        """Return whether the disk can be read."""
        return self.is_disk_readable

    def _raise(self, error: BaseException | None = None) -> None:
        error = self.error or error
        if error is not None:
            raise error
