"""
Where a record lies, packed into one integer.

The index holds one position for every key, so it is one Python int (48 bytes) and not a
tuple of four (over 150). From high bits to low::

    generation 32 | volume 16 | offset 40 | size 32

The two high fields together are a *life*: one use of one volume, from the time it becomes
the head to the time it is reclaimed. Generations count the turns of the cycle, so that
lives, compared as integers, stand in the order in which they were written.
"""

from __future__ import annotations

from typing import Final

VOLUME_MAX: Final = 2**16 - 1
OFFSET_MAX: Final = 2**40 - 1
SIZE_MAX: Final = 2**32 - 1

LIFE_SHIFT: Final = 72  # position >> LIFE_SHIFT is the life.
OFFSET_SHIFT: Final = 32  # position >> OFFSET_SHIFT & OFFSET_MAX is the offset.


def pack_life(generation: int, volume: int) -> int:
    """Return the life of a volume in a generation."""
    return generation << 16 | volume


def volume_of(life: int) -> int:
    """Return the id of the volume a life belongs to."""
    return life & VOLUME_MAX


def generation_of(life: int) -> int:
    """Return the generation of a life."""
    return life >> 16


def pack_position(life: int, offset: int, size: int) -> int:
    """Return the position of a record of `size` bytes at `offset`."""
    return life << LIFE_SHIFT | offset << OFFSET_SHIFT | size
