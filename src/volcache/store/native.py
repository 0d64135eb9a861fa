"""
The native core: an extension in C, which is built when volcache is installed.

It has the index, appends records, copies them and loads index files; its contracts are in
`_core/_native.pyi`. There is no other implementation.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, cast

from volcache.errors import CoreMissingError, DamagedRecordError
from volcache.geometry import refuse_too_many
from volcache.store.format import place_of

try:
    from volcache.store._core import _native
except ImportError as error:
    raise CoreMissingError(str(error)) from error

if TYPE_CHECKING:
    from volcache.store.clock import Clock
    from volcache.store.files import FileSystem
    from volcache.store.format import Place, Record

# The least range of offsets in the index, in bytes.
_VOLUME_BYTES_MIN: Final = 2**24

Index = _native.Index
Reclaim = _native.Reclaim
Records = _native.Records
SharedReader = _native.SharedReader
Writer = _native.Writer
decode_header = _native.decode_header
read_lines = _native.read_lines


def hash_key_of(store_id: int) -> bytes:
    """
    Return the secret key of the hash of keys.

    The same at every start: two keys with one fingerprint then have it again, so a key
    that was a miss and was deleted does not come back.
    """
    data = store_id.to_bytes(8, "little")
    return blake2b(data, digest_size=16, person=b"volcache index").digest()


def make_index(
    fs: FileSystem, store_id: int, *, volumes: int, volume_bytes: int, expected: int
) -> Index:
    """
    Return an empty index.

    Args:
        fs: Reads the data files.
        store_id: Of the store.
        volumes: The maximum number of volumes.
        volume_bytes: The longest volume.
        expected: The number of keys, if known, for the first allocation.

    Raises:
        GeometryError: There are too few positions for these volumes.
    """
    refuse_too_many(volume_bytes, volumes)
    return Index(
        fs,
        hash_key_of(store_id),
        volume_bytes=max(volume_bytes, _VOLUME_BYTES_MIN),
        volumes=volumes + 1,  # A rotation adds a volume before it reclaims one.
        expected=expected,
    )


def make_clock() -> Clock:
    """Return a clock of the machine, which the core reads without Python."""
    return cast("Clock", _native.Clock())


def decode_record(data: bytes, place: Place, key: bytes) -> Record | None:
    """
    Check a record and return it.

    Args:
        data: The bytes from its offset on, at least the whole record.
        place: Where it is.
        key: The key that was looked up.

    Returns:
        None if an intact record of another key begins here: the index stores
        fingerprints, so two keys can have one position.

    Raises:
        DamagedRecordError: A check failed; the bytes are not an intact value record.
    """
    header = decode_header(data, *place)
    if header is None or header.tombstone:
        raise DamagedRecordError(explain(data, place), place.volume, place.offset)
    if header.key != key:
        return None
    return header.record(data[header.value_start : header.size], place.volume)


def explain(data: bytes, place: Place) -> str:
    """Return why bytes are not an intact header of a record of a volume."""
    found = place_of(data)
    if found is None:
        return f"only {len(data)} bytes could be read"
    if found.salt == place.salt:
        return "header check failed"
    return f"salt mismatch: expected {place.salt:016x}, found {found.salt:016x}"
