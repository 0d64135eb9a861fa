"""
The bytes of a volume: its header and its records, as specified in docs/FORMAT.md.

Pure functions over bytes: this module reads and writes no files. The core reads and writes
records. The text formats are in `index_format.py` and `manifest.py`. Do not change the
numbers below without a new format version: they are on disks, and `tests/golden` holds
directories written with them.

A volume is one header followed by records, the first at `VOLUME_HEADER_BYTES`. The bytes
after the last record are undefined: zeros of a new file or records of an earlier use.

Each use of a volume has a random *salt*, and so has each *segment*: what a later mount
appends to it. A record is valid only with the salt of its place, so records of an earlier
use, of a clone of the mount point or of another store are never accepted.
"""

from __future__ import annotations

from enum import IntEnum
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
_PLACE: Final = Struct("<4xQ20xQ16xH")  # salt, offset and volume id
FIXED_BYTES: Final = 60

RECORD_OVERHEAD_BYTES: Final = FIXED_BYTES + _CHECKSUM.size  # without key and value
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


class Place(NamedTuple):
    """What a record names, and must be: the salt of its segment, and where it is."""

    salt: int
    volume: int
    offset: int


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

    def record(self, value: bytes, volume: int) -> Record:
        """
        Return the record.

        Raises:
            DamagedRecordError: It has another value.
        """
        if len(value) != self.length or crc32c(value) != self.checksum:
            raise DamagedRecordError("value checksum mismatch", volume, self.offset)
        return self.without_value(volume)._replace(value=value)

    def without_value(self, volume: int) -> Record:
        """Return the record with an empty value."""
        place = volume, self.offset, self.size
        return Record(b"", *self[:6], *place, self.length, self.checksum)


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


# --- Records -----------------------------------------------------------------------


def place_of(data: bytes) -> Place | None:
    """
    Return the place that a record names; None if it is too short.

    Nothing is checked: `native.decode_record` does that.
    """
    if len(data) < RECORD_BYTES_MIN:
        return None
    salt, offset, volume = _PLACE.unpack_from(data)
    return Place(salt, volume, offset)


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
