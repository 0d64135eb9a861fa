"""
The bytes of a volume: its header and its records, as specified in docs/FORMAT.md.

Pure functions over bytes: this module reads and writes no files. The text formats are in
`index_format.py` and `manifest.py`. Do not change the numbers below without a new format
version: they are on disks, and `tests/golden` holds directories written with them.

A volume is one header followed by records, the first at `VOLUME_HEADER_BYTES`. The bytes
after the last record are undefined: zeros of a new file or records of an earlier use.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from volcache.errors import DamagedRecordError

VERSION: Final = 1

# --- Volume header -----------------------------------------------------------------
#   0  4  magic "VLV" and version
#   4  4  generation
#   8  8  store id
#  16  2  volume id
#  18  2  zero
#  20  4  mount count when the volume was started
#  24  8  time it was started, milliseconds since the epoch
#  32  8  the oldest valid sequence number, see `make_seq`
#  40  8  zero
#  48  4  CRC-32C of bytes 0 to 47
#  52 12  zero
_VOLUME_HEADER: Final = Struct("<3sBIQHHIQQ8x")
_VOLUME_MAGIC: Final = b"VLV"
_CHECKSUM: Final = Struct("<I")
VOLUME_HEADER_BYTES: Final = 64

# --- Record ------------------------------------------------------------------------
#   0  4  magic "VLR" and version     \
#   4  4  generation                   | the identity: the same in every
#   8  8  store id                     | record of one use of a volume
#  16  2  volume id                   /
#  18  2  key length
#  20  4  mount count
#  24  8  offset of the record in its volume
#  32  8  time stored, milliseconds since the epoch
#  40  8  time it expires, likewise; 0 = never
#  48  4  value length
#  52  4  CRC-32C of the value
#  56  1  flags: 1 = tombstone
#  57  1  content type length
#  58  1  content encoding length
#  59  1  zero
#  60  .  content type, content encoding, key
#   .  4  CRC-32C of all bytes before
#   .  .  value
_IDENTITY: Final = Struct("<3sBIQH")
_FIELDS: Final = Struct("<HIQQQIIBBBx")
_RECORD_MAGIC: Final = b"VLR"
# The fixed part for the path of a request: the identity as bytes, no mount count, flags
# and the two short lengths as one number, which is 0 for most records.
_READ_FIELDS: Final = Struct("<18sH4xQQQIII")
IDENTITY_BYTES: Final = 18
FIXED_BYTES: Final = 60
_CHECKSUM_BYTES: Final = 4
_TOMBSTONE: Final = 1
_FLAGS_MASK: Final = 0xFF0000FF
# The CRC-32C of any bytes followed by their own CRC-32C.
_CHECKED: Final = 0x48674BC7

_unpack_read_fields = _READ_FIELDS.unpack_from

if (
    _IDENTITY.size != IDENTITY_BYTES
    or _IDENTITY.size + _FIELDS.size != FIXED_BYTES
    or _READ_FIELDS.size != FIXED_BYTES
    or _VOLUME_HEADER.size + _CHECKSUM_BYTES > VOLUME_HEADER_BYTES
):
    message = "the structs of format.py do not match the layout above them"
    raise AssertionError(message)

RECORD_OVERHEAD_BYTES: Final = FIXED_BYTES + _CHECKSUM_BYTES  # without key and value
RECORD_BYTES_MIN: Final = RECORD_OVERHEAD_BYTES + 1  # a key has at least one byte
VOLUME_ID_MAX: Final = 2**16 - 1
KEY_BYTES_MAX: Final = 2**16 - 1
VALUE_BYTES_MAX: Final = 2**30
_TYPE_AND_ENCODING_BYTES_MAX: Final = 255 + 255  # One byte each for their lengths.
# The longest header part of a record, without the key and with the longest key.
HEADER_BYTES_MAX: Final = RECORD_OVERHEAD_BYTES + _TYPE_AND_ENCODING_BYTES_MAX
RECORD_PREFIX_BYTES_MAX: Final = HEADER_BYTES_MAX + KEY_BYTES_MAX


class TruncatedReadError(DamagedRecordError):
    """
    A record is longer than the bytes that were read.

    `needed` is its size according to its header, which may be damaged.
    """

    def __init__(self, needed: int, volume: int, offset: int) -> None:
        super().__init__(f"record of {needed} bytes is cut off", volume, offset)
        self.needed = needed


class VolumeIdentity(NamedTuple):
    """One use of one volume."""

    prefix: bytes  # the first IDENTITY_BYTES bytes of all its records
    volume: int
    generation: int


class VolumeHeader(NamedTuple):
    """The header of a volume; fields as in the layout above."""

    generation: int
    store_id: int
    volume: int
    mount_count: int
    started_ms: int
    oldest_seq: int = 0  # volumes with a lower sequence number were flushed


class Record(NamedTuple):
    """
    One stored value and its metadata.

    Times are milliseconds since the epoch, 0 for "never expires"; `size` is the size of
    the whole record in bytes; `length` and `checksum` (CRC-32C) are those of the value;
    `source` is the tier it was read from, as in the header `X-Cache`.
    """

    value: bytes
    content_type: bytes
    content_encoding: bytes
    stored_ms: int
    expires_ms: int
    volume: int
    generation: int
    offset: int
    size: int
    length: int
    checksum: int
    source: str = "DISK"


# `new_record(Record, fields)` is Record(*fields) without a Python call: 0.3 us less.
new_record = tuple.__new__


class RecordHeader(NamedTuple):
    """The header part of a record."""

    key: bytes
    mount_count: int
    offset: int
    stored_ms: int
    expires_ms: int
    length: int
    checksum: int
    tombstone: bool
    content_type: bytes
    content_encoding: bytes
    value_start: int  # from the beginning of the record
    size: int


def make_seq(generation: int, volume: int) -> int:
    """
    Return the sequence number of a volume.

    A volume that is started later has a higher number: volume ids are used in a circle,
    and the generation counts the turns.
    """
    return generation << 16 | volume


def volume_of(seq: int) -> int:
    """Return the volume id that a sequence number contains."""
    return seq & VOLUME_ID_MAX


def generation_of(seq: int) -> int:
    """Return the generation that a sequence number contains."""
    return seq >> 16


# --- Volume header -----------------------------------------------------------------


def encode_volume_header(header: VolumeHeader) -> bytes:
    """Return the first `VOLUME_HEADER_BYTES` bytes of a volume."""
    fixed = _VOLUME_HEADER.pack(
        _VOLUME_MAGIC,
        VERSION,
        header.generation,
        header.store_id,
        header.volume,
        0,
        header.mount_count,
        header.started_ms,
        header.oldest_seq,
    )
    data = fixed + _CHECKSUM.pack(crc32c(fixed))
    return data.ljust(VOLUME_HEADER_BYTES, b"\0")


def decode_volume_header(data: bytes) -> VolumeHeader | None:
    """Return the header of a volume, or None if it is missing or damaged."""
    if len(data) < VOLUME_HEADER_BYTES:
        return None
    fixed = data[: _VOLUME_HEADER.size]
    (checksum,) = _CHECKSUM.unpack_from(data, len(fixed))
    magic, _, generation, store_id, volume, _, mount_count, started_ms, oldest_seq = (
        _VOLUME_HEADER.unpack(fixed)
    )
    if magic != _VOLUME_MAGIC or checksum != crc32c(fixed):
        return None
    return VolumeHeader(
        generation, store_id, volume, mount_count, started_ms, oldest_seq
    )


def volume_version(data: bytes) -> int | None:
    """Return the format version of a volume, or None if it has no valid header."""
    if len(data) < VOLUME_HEADER_BYTES or not data.startswith(_VOLUME_MAGIC):
        return None
    fixed = data[: _VOLUME_HEADER.size]
    (checksum,) = _CHECKSUM.unpack_from(data, len(fixed))
    return data[len(_VOLUME_MAGIC)] if checksum == crc32c(fixed) else None


def volume_identity(*, generation: int, store_id: int, volume: int) -> VolumeIdentity:
    """Return the identity of one use of a volume."""
    prefix = _IDENTITY.pack(_RECORD_MAGIC, VERSION, generation, store_id, volume)
    return VolumeIdentity(prefix, volume, generation)


# --- Records -----------------------------------------------------------------------


def identified_generation(data: bytes, *, store_id: int, volume: int) -> int | None:
    """
    Return the generation of the first record of a volume.

    Args:
        data: The volume from `VOLUME_HEADER_BYTES` on.
        store_id: The record must belong to this store.
        volume: The record must belong to this volume.

    Returns:
        None if there is no intact record header of that store and volume.
    """
    if len(data) < IDENTITY_BYTES:
        return None
    generation: int = _IDENTITY.unpack_from(data)[2]
    identity = volume_identity(generation=generation, store_id=store_id, volume=volume)
    found = decode_header(data, identity.prefix, VOLUME_HEADER_BYTES)
    return None if found is None else generation


def encode_record(  # noqa: PLR0913, PLR0917 - one argument for one field.
    prefix: bytes,
    mount_count: int,
    offset: int,
    stored_ms: int,
    expires_ms: int,
    content_type: bytes,
    content_encoding: bytes,
    key: bytes,
    length: int,
    checksum: int,
    flags: int = 0,
) -> bytes:
    """Return the header part of a record: everything before its value."""
    fields = _FIELDS.pack(
        len(key),
        mount_count,
        offset,
        stored_ms,
        expires_ms,
        length,
        checksum,
        flags,
        len(content_type),
        len(content_encoding),
    )
    checked = prefix + fields + content_type + content_encoding + key
    return checked + _CHECKSUM.pack(crc32c(checked))


def encode_tombstone(
    prefix: bytes, mount_count: int, offset: int, stored_ms: int, key: bytes
) -> bytes:
    """Return the record of a deletion."""
    return encode_record(
        prefix, mount_count, offset, stored_ms, 0, b"", b"", key, 0, 0, _TOMBSTONE
    )


def decode_record(
    data: bytes, identity: VolumeIdentity, offset: int, key: bytes
) -> Record | None:
    """
    Check a record and return it.

    Args:
        data: The bytes from `offset` on, at least the whole record.
        identity: The record must belong to this use of this volume.
        offset: Where in the volume `data` begins.
        key: The key that was looked up.

    Returns:
        None if an intact record of another key begins here: the index stores
        fingerprints, so two keys can have one position.

    Raises:
        TruncatedReadError: The record is longer than `data`; read again.
        DamagedRecordError: A check failed; the bytes are not an intact value record.
    """
    prefix, volume, generation = identity
    if len(data) < RECORD_BYTES_MIN:
        raise DamagedRecordError(_explain(data, prefix), volume, offset)
    found, key_length, at, stored_ms, expires_ms, length, checksum, kind = (
        _unpack_read_fields(data)
    )
    if found != prefix:
        raise DamagedRecordError(_explain(data, prefix), volume, offset)
    key_start = FIXED_BYTES
    content_type = content_encoding = b""
    if kind:
        type_end = key_start + (kind >> 8 & 0xFF)
        content_type = data[key_start:type_end]
        key_start = type_end + (kind >> 16 & 0xFF)
        content_encoding = data[type_end:key_start]
    key_end = key_start + key_length
    value_start = key_end + _CHECKSUM_BYTES
    size = value_start + length
    if size > len(data):
        raise TruncatedReadError(size, volume, offset)
    if (
        crc32c(data[:value_start]) != _CHECKED
        or at != offset
        or not key_length
        or kind & _FLAGS_MASK
    ):
        raise DamagedRecordError("header check failed", volume, offset)
    if data[key_start:key_end] != key:
        return None
    value = data[value_start:size]
    if crc32c(value) != checksum:
        raise DamagedRecordError("value checksum mismatch", volume, offset)
    return new_record(
        Record,
        (
            value,
            content_type,
            content_encoding,
            stored_ms,
            expires_ms,
            volume,
            generation,
            offset,
            size,
            length,
            checksum,
            "DISK",
        ),
    )


def decode_copy(data: bytes, store_id: int, key: bytes) -> Record | None:
    """
    Return the record in a copy that was stored elsewhere, with all checks but one.

    The caller has to decide whether the volume and the offset are still valid.

    Returns:
        None if the bytes are not exactly one intact record of that store and key.
    """
    if len(data) < RECORD_BYTES_MIN:
        return None
    generation, volume = _IDENTITY.unpack_from(data)[2], _IDENTITY.unpack_from(data)[4]
    identity = volume_identity(generation=generation, store_id=store_id, volume=volume)
    offset = _FIELDS.unpack_from(data, IDENTITY_BYTES)[2]
    try:
        record = decode_record(data, identity, offset, key)
    except DamagedRecordError:
        return None
    return record if record is not None and record.size == len(data) else None


def _explain(data: bytes, prefix: bytes) -> str:
    """Return why bytes cannot be a record of a volume."""
    if len(data) < RECORD_BYTES_MIN:
        return f"only {len(data)} bytes could be read"
    found = data[:IDENTITY_BYTES]
    return f"identity mismatch: expected {prefix.hex()}, found {found.hex()}"


def prefix_length(data: bytes) -> int:
    """Return the length of a record without its value, from its first bytes."""
    if len(data) < FIXED_BYTES:
        return 0
    key_length = data[18] | data[19] << 8
    return RECORD_OVERHEAD_BYTES + key_length + data[57] + data[58]


def decode_header(data: bytes, prefix: bytes, offset: int) -> RecordHeader | None:
    """
    Check the header part of a record and return it.

    Args:
        data: The bytes from `offset` on, at least the header part.
        prefix: The identity of the volume, see `VolumeIdentity`.
        offset: Where in the volume `data` begins.

    Returns:
        None if no intact header of that volume and offset is here. Each header contains
        its offset, so a copy of a record inside a value is not mistaken for a record.
    """
    if len(data) < RECORD_BYTES_MIN or not data.startswith(prefix):
        return None
    (
        key_length,
        mount_count,
        at,
        stored_ms,
        expires_ms,
        length,
        checksum,
        flags,
        type_length,
        encoding_length,
    ) = _FIELDS.unpack_from(data, IDENTITY_BYTES)
    type_end = FIXED_BYTES + type_length
    key_start = type_end + encoding_length
    key_end = key_start + key_length
    value_start = key_end + _CHECKSUM_BYTES
    if (
        at != offset
        or not key_length
        or len(data) < value_start
        or _CHECKSUM.unpack_from(data, key_end)[0] != crc32c(data[:key_end])
    ):
        return None
    return RecordHeader(
        data[key_start:key_end],
        mount_count,
        at,
        stored_ms,
        expires_ms,
        length,
        checksum,
        flags == _TOMBSTONE,
        data[FIXED_BYTES:type_end],
        data[type_end:key_start],
        value_start,
        value_start + length,
    )
