"""CRC-32C, as the core computes it."""

from __future__ import annotations

from typing import Final

from volcache.errors import CoreMissingError

try:
    from volcache.checksum import _crc32c
except ImportError as error:
    raise CoreMissingError(str(error)) from error

crc32c: Final = _crc32c.crc32c
