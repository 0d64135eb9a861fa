"""
Settings of glibc's malloc: freed memory is kept for the next value.

By default glibc returns memory at the end of the heap to the system whenever a value of
64 KiB is freed, and requests it again, page by page, for the next value. That is a third
of the cost of such a GET.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Names and numbers are those of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
# The process keeps at most this much. Larger allocations are mapped, and returned.
_KEPT_BYTES: Final = 64 << 20
_MMAP_BYTES: Final = 8 << 20
_TOP_PAD_BYTES: Final = 1 << 20


def keep_freed_memory() -> bool:
    """
    Let the process keep up to 64 MiB of freed memory.

    Returns:
        Whether it was set; a C library other than glibc is left as it is.
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
