"""
Compression of what the operator's programs read: metrics and statistics.

Values are never compressed: they are returned as they were stored.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

# Below this, both forms take one packet.
BYTES_MIN: Final = 1400
_LEVEL: Final = 1  # A third of the time of the default, and a quarter larger.
_GZIP_BITS: Final = 31
_NAMES: Final = frozenset({"gzip", "x-gzip"})
_ZERO: Final = re.compile(r"0(\.0{0,3})?")
_WEIGHT: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def accepts_gzip(accepted: str) -> bool:
    """
    Return whether a client wants gzip; not if the header is malformed.

    Args:
        accepted: The header `Accept-Encoding`, empty if there is none (RFC 9110, 12.5.3).
    """
    of_any = False
    for part in accepted.lower().split(","):
        coding, _, parameter = part.partition(";")
        name, _, weight = parameter.partition("=")
        weight = weight.strip()
        if parameter and (name.strip() != "q" or not _WEIGHT.fullmatch(weight)):
            continue
        is_wanted = not _ZERO.fullmatch(weight)
        if coding.strip() in _NAMES:
            return is_wanted
        if coding.strip() == "*":
            of_any = is_wanted
    return of_any


def compress(body: bytes) -> bytes:
    """Return a body in gzip's format, without a time."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    return packer.compress(body) + packer.flush()
