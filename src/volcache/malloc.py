"""
How the C library keeps memory: what a value took is kept for the next one.

glibc gives memory at the end of the heap back to the system with each value of 64 KiB that
is let go, and takes it again, page by page, for the next: a third of what such a GET costs.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Names and numbers are those of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
# As much stays with the process at most; larger pieces, which are no values, go back.
_KEPT_BYTES: Final = 64 << 20
_MMAP_BYTES: Final = 8 << 20
_TOP_PAD_BYTES: Final = 1 << 20


def keep_freed_memory() -> bool:
    """
    Let the process keep up to 64 MiB that it has freed.

    Returns:
        Whether the C library was told; one that is not glibc goes on as it was.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all(
        [
            mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES),
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES),
            mallopt(_M_TOP_PAD, _TOP_PAD_BYTES),
        ]
    )
