"""Keys: from what the caller gives to the path of a request."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes

from volcache_client.errors import InvalidKeyError

# The service would resolve these segments: the value would have another key.
_DOT_SEGMENT: Final = re.compile(rb"(?:^|/)\.{1,2}(?:/|$)")
_CONTROL_BYTE: Final = re.compile(rb"[\x00-\x1f\x7f]")
_RESERVED: Final = b"-/"
# Sent as they are; everything else is percent-encoded.
_SAFE: Final = "/~!$&'()*,;=:@"


def key_bytes(key: str | bytes) -> bytes:
    """
    Return a key as bytes: text as UTF-8.

    Raises:
        InvalidKeyError: It is neither text nor bytes, or text with a lone surrogate.
    """
    if isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise InvalidKeyError(f"{key!r}: a key is str or bytes")
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"{key!r}: {error}") from None


def checked_key(key: bytes) -> bytes:
    """
    Return the key, if the service stores a value under this and no other key.

    The service has keys that begin with a slash, of paths that begin with two. Whoever
    gives one here has given a path.

    The longest key, `max_key_size`, is a setting of the service, which refuses it.

    Raises:
        InvalidKeyError: It is empty, begins with `-/` or a slash, or has a control byte
            or a segment `.` or `..`.
    """
    reason = ""
    if not key:
        reason = "it is empty"
    elif key.startswith(_RESERVED):
        reason = 'the prefix "-/" is reserved'
    elif key.startswith(b"/"):
        reason = f"it begins with a slash; the key of this path is {key.lstrip(b'/')!r}"
    elif _CONTROL_BYTE.search(key):
        reason = "it has a control byte"
    elif _DOT_SEGMENT.search(key):
        reason = 'it has a segment "." or "..", which the service would resolve'
    if reason:
        raise InvalidKeyError(
            f"bad key {key!r}: {reason}; a key has at least one byte, no control bytes, no"
            ' segments "." and "..", and does not begin with "-/" or a slash'
        )
    return key


def path_of(key: bytes) -> str:
    """Return the path of a request for a key, percent-encoded."""
    return "/" + quote_from_bytes(key, _SAFE)
