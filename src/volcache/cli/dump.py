"""`volcache dump`: every record in the order of the disk, one line each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from volcache.store.files import ReadOnlyFileSystem
from volcache.store.index_format import encode_key
from volcache.store.offline import OfflineStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store.format import RecordHeader
    from volcache.store.index import Index
    from volcache.store.scan import Found
    from volcache.store.volume import Volume


class Row(NamedTuple):
    """What is said of a record, in this order; times in milliseconds since 1970."""

    volume: int
    generation: int
    offset: int
    size: int
    stored: int
    expires: int
    type: str
    state: str
    key: str

    def text(self) -> str:
        """Return it as one line; what is empty is a dash."""
        return " ".join(str(field) or "-" for field in self)

    def json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self._asdict())


def dump(directory: str, now_ms: int) -> Iterator[Row]:
    """
    Yield a row for each record, from the oldest volume to the newest.

    Args:
        directory: That nobody serves.
        now_ms: The time, which tells what has expired.

    Raises:
        StoreError: The directory cannot be looked at, is in use, or no store's.
    """
    store = OfflineStore.inspect(ReadOnlyFileSystem(), directory)
    try:
        index = store.replay()
        for volume, _reader, found in store.records():
            yield _row(volume, found, index, now_ms)
    finally:
        store.close()


def _row(volume: Volume, found: Found, index: Index, now_ms: int) -> Row:
    header = found.header
    return Row(
        volume.id,
        volume.generation,
        header.offset,
        header.size,
        header.stored_ms,
        header.expires_ms,
        encode_key(header.content_type),
        _state(volume, header, index, now_ms) if found.intact else "damaged",
        encode_key(header.key),
    )


def _state(volume: Volume, header: RecordHeader, index: Index, now_ms: int) -> str:
    if header.tombstone:
        return "tombstone"
    if index.find(header.key) != (volume.seq, header.offset, header.size):
        return "superseded"
    return "expired" if 0 < header.expires_ms <= now_ms else "live"
