"""
The bytes of a volume: its header and its records, as specified in docs/FORMAT.md.

Pure functions over bytes: this module reads and writes no files. The text formats are in
`index_format.py` and `manifest.py`. Do not change the numbers below without a new format
version: they are on disks, and `tests/golden` holds directories written with them.

A volume is one header followed by records, the first at `VOLUME_HEADER_BYTES`. The bytes
after the last record are undefined: zeros of a new file or records of an earlier use.

Each use of a volume has a random *salt*, and so has each *segment*: what a later mount
appends to it. A record is valid only with the salt of its place, so records of an earlier
use, of a clone of the mount point or of another store are never accepted.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from volcache.checksum import crc32c
from volcache.errors import DamagedRecordError

VERSION: Final = 2

# --- Volume header -----------------------------------------------------------------
#   0  4  magic "VLV" and version
#   4  8  salt
#  12  8  store id
#  20  8  sequence number
#  28  2  volume id
#  30  1  ring: 0 = main, 1 = probation
#  31  1  zero
#  32  4  mount count when the volume was started
#  36  8  time it was started, milliseconds since the epoch
#  44  8  the oldest sequence number that was valid then
#  52  8  salt of the volume with the previous sequence number; 0 = there was none
#  60  4  CRC-32C of bytes 0 to 59
_VOLUME_HEADER: Final = Struct("<3sBQQQHBxIQQQ")
_VOLUME_MAGIC: Final = b"VLV"
_CHECKSUM: Final = Struct("<I")
VOLUME_HEADER_BYTES: Final = 64
_V1_HEADER_BYTES: Final = 48  # in format version 1, before its checksum

# --- Record ------------------------------------------------------------------------
#   0  4  magic "VLR" and version     \  the identity: the same in every
#   4  8  salt                        /  record that one mount has written
#  12  2  key length
#  14  1  content type length
#  15  1  content encoding length
#  16  4  value length
#  20  4  CRC-32C of the value
#  24  4  flags of memcached
#  28  4  how many bytes before it were not synced when it was written
#  32  8  offset of the record in its volume
#  40  8  time stored, microseconds since the epoch
#  48  8  time it expires, milliseconds since the epoch; 0 = never
#  56  2  volume id
#  58  1  kind: 0 = value, 1 = tombstone
#  59  1  cache directives length
#  60  .  content type, content encoding, cache directives, key
#   .  4  CRC-32C of all bytes before
#   .  .  value
_IDENTITY: Final = Struct("<3sBQ")
_LENGTHS: Final = Struct("<HBBIIII")
_PLACE: Final = Struct("<QQQHBB")
_RECORD_MAGIC: Final = b"VLR"
IDENTITY_BYTES: Final = 12
FIXED_BYTES: Final = 60
_PLACE_AT: Final = 32
_KIND_AT: Final = 58
_CHECKSUM_BYTES: Final = 4
_TOMBSTONE: Final = 1

# Answers have the text fields as headers: a line end would begin another header.
_CONTROL_BYTE: Final = re.compile(rb"[\x00-\x1f\x7f]")

if (
    _IDENTITY.size != IDENTITY_BYTES
    or _IDENTITY.size + _LENGTHS.size != _PLACE_AT
    or _PLACE_AT + _PLACE.size != FIXED_BYTES
    or _VOLUME_HEADER.size + _CHECKSUM_BYTES != VOLUME_HEADER_BYTES
):
    message = "the structs of format.py do not match the layout above them"
    raise AssertionError(message)

RECORD_OVERHEAD_BYTES: Final = FIXED_BYTES + _CHECKSUM_BYTES  # without key and value
RECORD_BYTES_MIN: Final = RECORD_OVERHEAD_BYTES + 1  # a key has at least one byte
VOLUME_ID_MAX: Final = 2**16 - 1
SEQ_MAX: Final = 2**47 - 1  # 44 years at 100,000 rotations per second
KEY_BYTES_MAX: Final = 2**16 - 1
VALUE_BYTES_MAX: Final = 2**30
MOUNT_COUNT_MAX: Final = 2**31 - 1
# Times are below it, of the unit that they have: in microseconds, the year 6537.
TIME_END: Final = 2**57
# The clock does not continue from such a time: what is stored then must be in bounds.
CLOCK_END: Final = 2**56
_TYPES_BYTES_MAX: Final = 3 * 255  # One byte for each of their lengths.
# The longest header part of a record, without the key and with the longest key.
HEADER_BYTES_MAX: Final = RECORD_OVERHEAD_BYTES + _TYPES_BYTES_MAX
RECORD_PREFIX_BYTES_MAX: Final = HEADER_BYTES_MAX + KEY_BYTES_MAX


class Ring(IntEnum):
    """The ring that a volume belongs to."""

    MAIN = 0
    PROBATION = 1


class VolumeUse(NamedTuple):
    """One use of one volume."""

    volume: int  # its id
    seq: int  # the sequence number: higher than that of every volume started before
    ring: Ring
    salt: int


class Segment(NamedTuple):
    """What one mount has appended to a volume that an earlier mount had started."""

    start: int  # offset in the volume; the next segment, or the volume, ends it
    salt: int


class RecordIdentity(NamedTuple):
    """What `decode_record` compares a record with."""

    prefix: bytes  # the first IDENTITY_BYTES bytes of all records of the segment
    volume: int


class VolumeHeader(NamedTuple):
    """The header of a volume; fields as in the layout above."""

    use: VolumeUse
    store_id: int
    mount_count: int
    started_ms: int
    oldest_seq: int  # volumes with a lower sequence number were invalid
    previous_salt: int


_ETAG: Final = '"%x-%08x"'  # Faster than an f-string.


class Record(NamedTuple):
    """
    One stored value and its metadata.

    `stored_us` is in microseconds, `expires_ms` in milliseconds since the epoch, 0 for
    "never expires". No two records of a store have the same `stored_us`, except copies of
    one record, and those with another expiry that `Store.touch` has made. `flags` are
    those of memcached; `size` is the size of the whole record in bytes; `length` and
    `checksum` (CRC-32C) are those of the value; `source` is the tier it was read from, as
    in the header `X-Cache`.
    """

    value: bytes
    content_type: bytes
    content_encoding: bytes
    cache_control: bytes  # directives of the upload, without its lifetime
    stored_us: int
    expires_ms: int
    flags: int
    volume: int
    offset: int
    size: int
    length: int
    checksum: int
    source: str = "DISK"

    @property
    def etag(self) -> str:
        """
        The entity tag, with its quotes.

        It has the time stored, which no two values share, and the checksum: a value stored
        again has another tag, and a value that is moved on the disk keeps its tag.
        """
        return _ETAG % (self.stored_us, self.checksum)


# The fields of a `Record`, in their order.
RecordFields = tuple[
    bytes, bytes, bytes, bytes, int, int, int, int, int, int, int, int, str
]

# A record to be stored: its key; then as in a `Record`, up to its flags, but a time of 0
# stands for the next one.
NewRecord = tuple[bytes, bytes, bytes, bytes, bytes, int, int, int]

# `new_record(Record, fields)` is Record(*fields) without a Python call: 0.3 us less.
new_record = tuple.__new__


class RecordHeader(NamedTuple):
    """The header part of a record; the first six fields are those of a `Record`."""

    content_type: bytes
    content_encoding: bytes
    cache_control: bytes
    stored_us: int
    expires_ms: int
    flags: int
    key: bytes
    offset: int
    length: int
    checksum: int
    tombstone: bool
    value_start: int  # from the beginning of the record
    size: int
    # Bytes before it that were not synced when it was written; at most 2**32 - 1.
    unsynced: int

    def is_relocated_from(self, other: Record | RecordHeader) -> bool:
        """Return whether a record of the same key is one that a reclaim has copied."""
        # `Store.touch` keeps the time stored, and changes the expiry.
        mine = self.stored_us, self.expires_ms, self.length, self.checksum
        return mine == (other.stored_us, other.expires_ms, other.length, other.checksum)


# --- Volume header -----------------------------------------------------------------


def encode_volume_header(header: VolumeHeader) -> bytes:
    """Return the first `VOLUME_HEADER_BYTES` bytes of a volume."""
    (volume, seq, ring, salt), store_id, *started = header
    names = (salt, store_id, seq, volume, ring)
    fixed = _VOLUME_HEADER.pack(_VOLUME_MAGIC, VERSION, *names, *started)
    return fixed + _CHECKSUM.pack(crc32c(fixed))


def decode_volume_header(data: bytes) -> VolumeHeader | None:
    """Return the header of a volume, or None if it is missing or damaged."""
    if volume_version(data) != VERSION:
        return None
    found = _VOLUME_HEADER.unpack_from(data)
    _, _, salt, store_id, seq, volume, ring, mount_count, *started = found
    started_ms, oldest_seq, _ = started
    if (
        ring > Ring.PROBATION
        or not oldest_seq <= seq <= SEQ_MAX
        or mount_count > MOUNT_COUNT_MAX
        or started_ms >= TIME_END // 1000
    ):
        return None
    use = VolumeUse(volume, seq, Ring(ring), salt)
    return VolumeHeader(use, store_id, mount_count, *started)


def volume_version(data: bytes) -> int | None:
    """Return the format version of a volume, or None if it has no valid header."""
    if len(data) < VOLUME_HEADER_BYTES or not data.startswith(_VOLUME_MAGIC):
        return None
    version = data[len(_VOLUME_MAGIC)]
    end = _V1_HEADER_BYTES if version == 1 else _VOLUME_HEADER.size
    (checksum,) = _CHECKSUM.unpack_from(data, end)
    return version if checksum == crc32c(data[:end]) else None


@lru_cache(1024)
def volume_identity(volume: int, salt: int) -> RecordIdentity:
    """Return the identity of the records with a salt."""
    return RecordIdentity(_IDENTITY.pack(_RECORD_MAGIC, VERSION, salt), volume)


# --- Records -----------------------------------------------------------------------


def decode_record(
    data: bytes, identity: RecordIdentity, offset: int, key: bytes
) -> Record | None:
    """
    Check a record and return it.

    Args:
        data: The bytes from `offset` on, at least the whole record.
        identity: The record must have the salt of this place.
        offset: Where in the volume `data` begins.
        key: The key that was looked up.

    Returns:
        None if an intact record of another key begins here: the index stores
        fingerprints, so two keys can have one position.

    Raises:
        DamagedRecordError: A check failed; the bytes are not an intact value record.
    """
    prefix, volume = identity
    size = record_size(data)
    if RECORD_BYTES_MIN <= len(data) < size and data.startswith(prefix):
        raise DamagedRecordError(f"record of {size} bytes is cut off", volume, offset)
    header = decode_header(data, identity, offset)
    if header is None or data[_KIND_AT]:
        raise DamagedRecordError(explain(data, identity), volume, offset)
    if header.key != key:
        return None
    value = data[header.value_start : size]
    if crc32c(value) != header.checksum:
        raise DamagedRecordError("value checksum mismatch", volume, offset)
    place = volume, offset, size
    return Record(value, *header[:6], *place, header.length, header.checksum)


def identity_of(data: bytes) -> tuple[RecordIdentity, int] | None:
    """
    Return the identity and the offset that a record names; None if it is too short.

    Nothing is checked: `decode_record` does that.
    """
    if len(data) < RECORD_BYTES_MIN:
        return None
    offset, _, _, volume, _, _ = _PLACE.unpack_from(data, _PLACE_AT)
    return RecordIdentity(data[:IDENTITY_BYTES], volume), offset


def explain(data: bytes, identity: RecordIdentity) -> str:
    """Return why bytes are not an intact header of a record of a volume."""
    if len(data) < RECORD_BYTES_MIN:
        return f"only {len(data)} bytes could be read"
    prefix, found = identity.prefix, data[:IDENTITY_BYTES]
    if found == prefix:
        return "header check failed"
    return f"identity mismatch: expected {prefix.hex()}, found {found.hex()}"


def prefix_length(data: bytes) -> int:
    """Return the length of a record without its value, from its first bytes."""
    if len(data) < FIXED_BYTES:
        return 0
    key_length = data[12] | data[13] << 8
    return RECORD_OVERHEAD_BYTES + key_length + data[14] + data[15] + data[59]


def record_size(data: bytes) -> int:
    """Return the length of a record, from its first bytes; not checked."""
    if len(data) < FIXED_BYTES:
        return len(data)
    return prefix_length(data) + int.from_bytes(data[16:20], "little")


def decode_header(
    data: bytes, identity: RecordIdentity, offset: int
) -> RecordHeader | None:
    """
    Check the header part of a record and return it.

    Args:
        data: The bytes from `offset` on, at least the header part.
        identity: Of the volume.
        offset: Where in the volume `data` begins.

    Returns:
        None if no intact header of that volume and offset is here. Each header contains
        its offset, so a copy of a record inside a value is not mistaken for a record.
    """
    prefix, volume = identity
    if len(data) < RECORD_BYTES_MIN or not data.startswith(prefix):
        return None
    lengths = _LENGTHS.unpack_from(data, IDENTITY_BYTES)
    key_length, type_length, encoding_length, length, checksum, *more = lengths
    place = _PLACE.unpack_from(data, _PLACE_AT)
    at, stored_us, expires_ms, volume_found, kind, cache_length = place
    flags, unsynced = more
    type_end = FIXED_BYTES + type_length
    encoding_end = type_end + encoding_length
    key_start = encoding_end + cache_length
    key_end = key_start + key_length
    value_start = key_end + _CHECKSUM_BYTES
    if (
        at != offset
        or volume_found != volume
        or not key_length
        or len(data) < value_start
        or _CHECKSUM.unpack_from(data, key_end)[0] != crc32c(data[:key_end])
        or not is_allowed(place, length, data[FIXED_BYTES:key_start])
    ):
        return None
    return RecordHeader(
        data[FIXED_BYTES:type_end],
        data[type_end:encoding_end],
        data[encoding_end:key_start],
        *(stored_us, expires_ms, flags),
        data[key_start:key_end],
        *(at, length, checksum),
        kind == _TOMBSTONE,
        *(value_start, value_start + length, unsynced),
    )


def is_allowed(place: tuple[int, ...], length: int, texts: bytes) -> bool:
    """Return whether the numbers of a record are in bounds, and its texts are text."""
    _, stored_us, expires_ms, _, kind, _ = place
    return (
        kind <= _TOMBSTONE
        and length <= (0 if kind else VALUE_BYTES_MAX)
        and max(stored_us, expires_ms) < TIME_END
        and not _CONTROL_BYTE.search(texts)
    )
