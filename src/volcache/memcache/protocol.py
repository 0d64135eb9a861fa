"""Which protocol a connection speaks: the first byte decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.memcache.binary import BinaryDecoder
from volcache.memcache.text import TextDecoder

if TYPE_CHECKING:
    from volcache.memcache.commands import WireLimits
    from volcache.memcache.decoder import Decoder

_BINARY_MAGIC: Final = b"\x80"


def decoder_for(
    limits: WireLimits, data: bytes, *, wants_credentials: bool = False
) -> Decoder:
    """Return what reads a connection that begins with some bytes; see `Decoder`."""
    kind = BinaryDecoder if data[:1] == _BINARY_MAGIC else TextDecoder
    return kind(limits, wants_credentials=wants_credentials)
