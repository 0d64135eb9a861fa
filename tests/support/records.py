"""The header part of a record, as the core writes it, from its fields."""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

from volcache.store.format import RecordIdentity


def encode_record(  # noqa: PLR0913, PLR0917 - one argument for one field.
    identity: RecordIdentity,
    offset: int,
    stored_us: int,
    expires_ms: int,
    content_type: bytes,
    content_encoding: bytes,
    cache_control: bytes,
    key: bytes,
    length: int,
    checksum: int,
    flags: int = 0,
    kind: int = 0,
) -> bytes:
    """Return everything before the value of a record."""
    texts = (content_type, content_encoding, cache_control, key)
    sizes = (len(key), len(content_type), len(content_encoding), length)
    place = (offset, stored_us, expires_ms, identity.volume, kind, len(cache_control))
    fields = struct.pack("<HBBIII4xQQQHBB", *sizes, checksum, flags, *place)
    checked = identity.prefix + fields + b"".join(texts)
    return checked + struct.pack("<I", crc32c(checked))
