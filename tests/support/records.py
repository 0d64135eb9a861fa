"""The part of a record before its value, as docs/FORMAT.md defines it."""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

from volcache.store.format import (
    FIXED_BYTES,
    RECORD_OVERHEAD_BYTES,
    TIME_END,
    VALUE_BYTES_MAX,
    VERSION,
    Place,
    RecordHeader,
    prefix_length,
)

IDENTITY: Final = Struct("<3sBQ")
FIELDS: Final = Struct("<HBBIIIIQQQHBB")
_CHECKSUM: Final = Struct("<I")
_CONTROL_BYTE: Final = re.compile(rb"[\x00-\x1f\x7f]")


def identity_of(salt: int) -> bytes:
    """Return the first bytes of all records with a salt."""
    return IDENTITY.pack(b"VLR", VERSION, salt)


def encode_record(  # noqa: PLR0913, PLR0917 - one argument for one field.
    place: Place,
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
    salt, volume, offset = place
    texts = (content_type, content_encoding, cache_control, key)
    sizes = (len(key), len(content_type), len(content_encoding), length)
    more = (flags, 0, offset, stored_us, expires_ms, volume, kind, len(cache_control))
    fields = FIELDS.pack(*sizes, checksum, *more)
    checked = identity_of(salt) + fields + b"".join(texts)
    return checked + _CHECKSUM.pack(crc32c(checked))


def decode_header(
    data: bytes, place: Place, *, is_bounded: bool = True
) -> RecordHeader | None:
    """Return what `native.decode_header` returns; or also what is out of its bounds."""
    start = prefix_length(data)
    if len(data) <= RECORD_OVERHEAD_BYTES or len(data) < start:
        return None
    if not data.startswith(identity_of(place.salt)):
        return None
    fields = FIELDS.unpack_from(data, IDENTITY.size)
    key_length, type_length, encoding_length, length, checksum, flags, *more = fields
    unsynced, offset, stored_us, expires_ms, volume, kind, cache_length = more
    type_end = FIXED_BYTES + type_length
    encoding_end = type_end + encoding_length
    key_start = encoding_end + cache_length
    key_end = key_start + key_length
    is_sound = (
        kind <= 1
        and length <= (0 if kind else VALUE_BYTES_MAX)
        and max(stored_us, expires_ms) < TIME_END
        and not _CONTROL_BYTE.search(data[FIXED_BYTES:key_start])
    )
    if (
        (volume, offset) != place[1:]
        or not key_length
        or _CHECKSUM.unpack_from(data, key_end)[0] != crc32c(data[:key_end])
        or (is_bounded and not is_sound)
    ):
        return None
    texts = data[FIXED_BYTES:type_end], data[type_end:encoding_end]
    return RecordHeader(
        *(*texts, data[encoding_end:key_start], stored_us, expires_ms, flags),
        *(data[key_start:key_end], offset, length, checksum, kind == 1),
        *(start, start + length, unsynced),
    )
