"""
How many volumes of a size there may be.

A position in the index has 48 bits: the offset in a volume, and the number of the volume.
There are twice as many numbers as volumes, since those that were reclaimed have entries for
a time. This module is apart from the store, so that settings can be checked without it.
"""

from __future__ import annotations

from typing import Final

from volcache.errors import GeometryError

VOLUME_BYTES_MAX: Final = 2**40
VOLUMES_MAX: Final = 65_535
_POSITION_BITS: Final = 48
_OFFSET_BITS_MIN: Final = 24


def volumes_max(volume_bytes: int) -> int:
    """Return how many volumes of a length there may be; 0: it is too long for one."""
    if volume_bytes > VOLUME_BYTES_MAX:
        return 0
    offset_bits = max(_OFFSET_BITS_MIN, (volume_bytes - 1).bit_length())
    # One less: a rotation adds a volume before it reclaims one.
    return min(VOLUMES_MAX, (1 << _POSITION_BITS - offset_bits) // 2 - 1)


def refuse_too_many(volume_bytes: int, volumes: int) -> None:
    """
    Raise if the index has too few positions for a number of volumes of a length.

    Raises:
        GeometryError: It has not.
    """
    most = volumes_max(volume_bytes)
    if volumes > most:
        raise GeometryError(volume_bytes, volumes, most, VOLUME_BYTES_MAX)
