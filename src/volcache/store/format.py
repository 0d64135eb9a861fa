"""
The bytes of a volume: its header and its records, as drawn in docs/FORMAT.md.

Pure functions over bytes: nothing here reads or writes a file. The text formats (index
files, META.txt) are in `lines.py`. The numbers below are on disks: they do not change
without a new version, and `tests/golden` holds directories written with them.

A volume is one header, then records one behind the other, the first at
`VOLUME_HEADER_BYTES`. What lies behind the last record is of no meaning: zeros of a fresh
file or records of an earlier generation.
"""

from __future__ import annotations

from functools import partial
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
#  20  4  session in which the generation began
#  24  8  time it began, milliseconds since the epoch
#  32  8  the oldest life that exists: generation << 16 | volume id
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
#   8  8  store id                     | record of one life of a volume
#  16  2  volume id                   /
#  18  2  key length
#  20  4  session
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
# The same fields as `_FIELDS` without the session, for reading on the path of a request:
# flags and the two short lengths in one number, which is 0 for most records.
_READ_FIELDS: Final = Struct("<H4xQQQIII")
_IDENTITY_BYTES: Final = 18
FIXED_BYTES: Final = 60
_CHECKSUM_BYTES: Final = 4
_TOMBSTONE: Final = 1
_FLAGS_MASK: Final = 0xFF0000FF
# The CRC-32C of any bytes with their own CRC-32C behind them.
_CHECKED: Final = 0x48674BC7

_unpack_read_fields = _READ_FIELDS.unpack_from

if (
    _IDENTITY.size != _IDENTITY_BYTES
    or _IDENTITY.size + _FIELDS.size != FIXED_BYTES
    or _READ_FIELDS.size != _FIELDS.size
    or _VOLUME_HEADER.size + _CHECKSUM_BYTES > VOLUME_HEADER_BYTES
):
    message = "the structs of format.py do not fit the layout drawn above them"
    raise AssertionError(message)

RECORD_OVERHEAD_BYTES: Final = FIXED_BYTES + _CHECKSUM_BYTES  # without key and value
RECORD_BYTES_MIN: Final = RECORD_OVERHEAD_BYTES + 1  # a key has at least one byte
# What has to be read to see all of a record but its value, without the key.
HEAD_BYTES: Final = RECORD_OVERHEAD_BYTES + 255 + 255
CONTENT_TYPE_BYTES_MAX: Final = 255
CONTENT_ENCODING_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 2**16 - 1
VALUE_BYTES_MAX: Final = 2**30
# The longest a record can be without its value.
RECORD_PREFIX_BYTES_MAX: Final = RECORD_OVERHEAD_BYTES + 255 + 255 + KEY_BYTES_MAX


class VolumeIdentity(NamedTuple):
    """Which use of which volume a record belongs to."""

    identity: bytes  # the first bytes of all its records
    volume: int
    generation: int


class VolumeHeader(NamedTuple):
    """What the first bytes of a volume say."""

    generation: int
    store_id: int
    volume: int
    mount_count: int
    started_ms: int
    oldest_seq: int = 0  # as position.py numbers lives; older ones were flushed


class Record(NamedTuple):
    """
    One stored value with all that is known of it.

    Times are milliseconds since the epoch, 0 for "never expires"; `size` is that of the
    whole record; `length` and `checksum` (CRC-32C) are those of the value; `source` names
    the tier it was read from, as the header `X-Cache` does.
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


# What Record(*fields) does, without the call of a Python function: 0.3 us less.
make_record = partial(tuple.__new__, Record)


class RecordHeader(NamedTuple):
    """A record without its value, as a scan of a volume finds it."""

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
    """Return what the header says, or None when it is missing or damaged."""
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
    """Return the format version a volume was written with; None: not a volume."""
    if len(data) < VOLUME_HEADER_BYTES or not data.startswith(_VOLUME_MAGIC):
        return None
    fixed = data[: _VOLUME_HEADER.size]
    (checksum,) = _CHECKSUM.unpack_from(data, len(fixed))
    return data[len(_VOLUME_MAGIC)] if checksum == crc32c(fixed) else None


def volume_identity(*, generation: int, store_id: int, volume: int) -> VolumeIdentity:
    """Return the name of one use of a volume."""
    identity = _IDENTITY.pack(_RECORD_MAGIC, VERSION, generation, store_id, volume)
    return VolumeIdentity(identity, volume, generation)


def identified_generation(data: bytes, *, store_id: int, volume: int) -> int | None:
    """Return the generation of the record at the beginning of `data`, if it is ours."""
    if len(data) < _IDENTITY_BYTES:
        return None
    generation: int = _IDENTITY.unpack_from(data)[2]
    name = volume_identity(generation=generation, store_id=store_id, volume=volume)
    found = decode_header(data, name.identity, VOLUME_HEADER_BYTES)
    return None if found is None else generation


def encode_record(  # noqa: PLR0913, PLR0917 - one argument for one field.
    identity: bytes,
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
    """Return all of a record that comes before its value."""
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
    checked = identity + fields + content_type + content_encoding + key
    return checked + _CHECKSUM.pack(crc32c(checked))


def encode_tombstone(
    identity: bytes, mount_count: int, offset: int, stored_ms: int, key: bytes
) -> bytes:
    """Return the record that says: from here on the key is gone."""
    return encode_record(
        identity, mount_count, offset, stored_ms, 0, b"", b"", key, 0, 0, _TOMBSTONE
    )


def decode_record(
    data: bytes, name: VolumeIdentity, offset: int, size: int, key: bytes
) -> Record:
    """
    Return the record read from `offset`, after checking everything it says of itself.

    Raises:
        DamagedRecordError: The bytes are not that record, whole and undamaged.
    """
    identity, volume, generation = name
    if len(data) != size or size < RECORD_BYTES_MIN or not data.startswith(identity):
        raise DamagedRecordError(_reason(data, identity, size), volume, offset)
    key_length, at, stored_ms, expires_ms, length, checksum, kind = _unpack_read_fields(
        data, _IDENTITY_BYTES
    )
    key_start = FIXED_BYTES
    content_type = content_encoding = b""
    if kind:
        type_end = key_start + (kind >> 8 & 0xFF)
        content_type = data[key_start:type_end]
        key_start = type_end + (kind >> 16 & 0xFF)
        content_encoding = data[type_end:key_start]
    key_end = key_start + key_length
    value_start = key_end + _CHECKSUM_BYTES
    if (
        value_start + length != size
        or crc32c(data[:value_start]) != _CHECKED
        or data[key_start:key_end] != key
        or at != offset
        or kind & _FLAGS_MASK
    ):
        raise DamagedRecordError("its header does not check out", volume, offset)
    value = data[value_start:]
    if crc32c(value) != checksum:
        raise DamagedRecordError("its value does not check out", volume, offset)
    return make_record(
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
    Return the record in a copy that was kept elsewhere, checked like one on the disk.

    None when the bytes are not a whole, undamaged record of that store and key. Which
    life and offset it is of is for the caller to judge.
    """
    if len(data) < RECORD_BYTES_MIN:
        return None
    generation, volume = _IDENTITY.unpack_from(data)[2], _IDENTITY.unpack_from(data)[4]
    name = volume_identity(generation=generation, store_id=store_id, volume=volume)
    offset = _FIELDS.unpack_from(data, _IDENTITY_BYTES)[2]
    try:
        return decode_record(data, name, offset, len(data), key)
    except DamagedRecordError:
        return None


def decode_head(
    data: bytes, name: VolumeIdentity, offset: int, size: int, key: bytes
) -> Record:
    """
    Return a record without its value from its first bytes.

    Args:
        data: The first `HEAD_BYTES` + length of the key, or all of a shorter record.
        name: Of the life the record must belong to.
        offset: Where in the volume it must lie.
        size: Of the whole record.
        key: That it must have.

    Raises:
        DamagedRecordError: The bytes are not the beginning of that record.
    """
    identity, volume, generation = name
    header = decode_header(data, identity, offset)
    if header is None or header.key != key or header.size != size or header.tombstone:
        raise DamagedRecordError("its header does not check out", volume, offset)
    return Record(
        b"",
        header.content_type,
        header.content_encoding,
        header.stored_ms,
        header.expires_ms,
        volume,
        generation,
        offset,
        size,
        header.length,
        header.checksum,
    )


def _reason(data: bytes, identity: bytes, size: int) -> str:
    """Say in words why bytes cannot be the record that was expected."""
    if len(data) != size or size < RECORD_BYTES_MIN:
        return f"{len(data)} of its {size} bytes are there"
    return f"another begins there: expected {identity.hex()}, found {data[:18].hex()}"


def prefix_length(data: bytes) -> int:
    """Return the length of a record without its value, told by its first bytes."""
    if len(data) < FIXED_BYTES:
        return 0
    key_length = data[18] | data[19] << 8
    return RECORD_OVERHEAD_BYTES + key_length + data[57] + data[58]


def decode_header(data: bytes, identity: bytes, offset: int) -> RecordHeader | None:
    """
    Return the header of the record at the beginning of `data`.

    Args:
        data: At least its part before the value; more does no harm.
        identity: Of the life of the volume it is read from.
        offset: Where in the volume `data` begins.

    Returns:
        None when there is no whole, undamaged header of that life and place. The offset
        written into each record tells a record from a copy of one inside a value.
    """
    if len(data) < RECORD_BYTES_MIN or not data.startswith(identity):
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
    ) = _FIELDS.unpack_from(data, _IDENTITY_BYTES)
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
